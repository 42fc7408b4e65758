"""Accepted values of options: one rule for each kind of value.

A rule takes a value and returns a hint for a right one, or an empty string if the value is right. A rule
for a number gets text that is no number as it is.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode
from binascii import Error
from collections.abc import Callable, Collection
from ipaddress import ip_network
from typing import Any, Final

from broker.reservations.ownership import Adopters
from broker.text import shortened
from providers.model import CLUSTER_NAME, PLATFORMS

Rule = Callable[[Any], str]

LONGEST_SECONDS: Final = 1e9  # seconds: a later time cannot be written


def listed(text: str) -> tuple[str, ...]:
    """The values of an option with commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def wrong(option: str, value: str | float, write: str) -> str:
    """The sentence about a value that a rule rejects."""
    shown = shortened(value, 120) if isinstance(value, str) else f"{value:g}"
    return f"{option} is {shown}: write {write}"


def seconds(least: float, *, more: bool = False) -> Rule:
    """From `least` on; above it if `more`."""
    bounds = f"{'above' if more else 'from'} {least:g} to {LONGEST_SECONDS:.0f}"

    def rule(value: Any) -> str:
        fits = (
            isinstance(value, int | float)
            and least <= value <= LONGEST_SECONDS
            and not (more and value == least)
        )
        return "" if fits else f"a number of seconds {bounds}"

    return rule


def days(value: Any) -> str:
    fits = isinstance(value, int | float) and 0 < value <= 3650
    return "" if fits else "a number of days above 0, up to 3650"


def database(value: str) -> str:
    path = value and "://" not in value and not value.startswith(("postgresql:", "postgres:"))
    fits = value == "memory" or path or value.startswith("postgresql://")
    return "" if fits else "memory, the path of a file, or postgresql://USER:PASSWORD@HOST/DATABASE"


def share(value: Any) -> str:
    fits = isinstance(value, int | float) and 0 <= value < 1
    return "" if fits else "a share from 0 to below 1, such as 0.075"


def factor(value: Any) -> str:
    fits = isinstance(value, int | float) and 1 <= value < math.inf
    return "" if fits else "a factor of at least 1, such as 10"


def dollars(value: Any) -> str:
    fits = isinstance(value, int | float) and value >= 0
    return "" if fits else "dollars an hour from 0 on, or inf for no cap"


def whole(most: float = math.inf, *, noun: str, least: int = 0) -> Rule:
    bounds = f"from {least} on" if math.isinf(most) else f"from {least} to {most:g}"

    def rule(value: Any) -> str:
        return "" if isinstance(value, int) and least <= value <= most else f"{noun} {bounds}"

    return rule


def matching(pattern: str, write: str) -> Rule:
    """Text of this pattern, or none."""
    known = re.compile(pattern)
    return lambda value: "" if not value or known.fullmatch(value) else write


def one_of(*words: str) -> Rule:
    return lambda value: "" if value in words else f"one of {', '.join(words)}"


def all_of(words: Collection[str]) -> Rule:
    """Words with commas, one at least."""
    allowed = f"one or more, with commas, of {', '.join(sorted(words))}"

    def rule(value: str) -> str:
        chosen = {*listed(value)}
        return "" if chosen and chosen <= {*words} else allowed

    return rule


def base64(value: str) -> str:
    try:
        b64decode(value, validate=True)
    except (Error, ValueError):
        return "the CA bundle in base64, as `aws eks describe-cluster` has it in certificateAuthority.data"
    return ""


def cidr(value: str) -> str:
    try:
        ip_network(value or "0.0.0.0/0")
    except ValueError:
        return "a CIDR block such as 10.100.0.0/16, or nothing for the cluster's own"
    return ""


def proxies(value: str) -> str:
    """A block of all addresses would let every client claim to be any person."""
    try:
        open_ = any(ip_network(block).prefixlen == 0 for block in listed(value))
    except ValueError:
        open_ = True
    return "with commas, the CIDR blocks of the proxies alone, such as 10.0.1.7/32" if open_ else ""


def adopters(value: str) -> str:
    try:
        Adopters.parse(listed(value))
    except ValueError:
        return "with commas, each NAMESPACE, NAMESPACE=cr-0123456789abcdef0, NAMESPACE=ARN of a group, or *"
    return ""


def receiver(value: str) -> str:
    """Its token is not repeated in the hint."""
    from urllib3.exceptions import LocationParseError  # which most commands do not need
    from urllib3.util import parse_url

    try:
        fits = not value or bool(re.fullmatch(r"https?://\S+", value) and parse_url(value).host)
    except LocationParseError:
        fits = False
    return "" if fits else "a URL such as https://alertmanager.example.com:9093"


port = whole(65535, noun="a port")
url = matching(r"https?://[^\s/]\S*", "a URL such as https://0123456789abcdef.eks.example.com")
header = matching(r"[A-Za-z0-9-]{1,100}", "the name of a header such as X-Forwarded-User")
name = matching(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "a name of lower case letters, digits, - and .")
cluster_name = matching(
    CLUSTER_NAME.pattern, "the EKS cluster's name (letters, digits, - and _, 100 at most)"
)
platforms, tenancies = all_of(PLATFORMS), all_of(("default", "dedicated"))
