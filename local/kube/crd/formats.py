"""String formats that the API server checks; one that is not here is a hint only.

Rule: k8s.io/apiextensions-apiserver/pkg/apiserver/validation/formats.go over k8s.io/kube-openapi's strfmt.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import uuid
from collections.abc import Callable
from datetime import date
from urllib.parse import urlsplit

from local.kube.names import dns_label, dns_subdomain
from local.kube.times import parse
from local.kube.wire import Obj

_DURATION = re.compile(r"^([+-]?(\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+$|^0$")
_LOOSE_DURATION = re.compile(r"^((\d+)\s*([A-Za-zµ]+))+$")
_MAC = re.compile(
    r"^([0-9A-Fa-f]{2}[:-]){5}([0-9A-Fa-f]{2}[:-]){0,2}[0-9A-Fa-f]{2}$|^([0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}$"
)
_EMAIL = re.compile(r"^[^@\s<>]+@[^@\s<>]+$")
_HOSTNAME = re.compile(
    r"^([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$"
)


def succeeds(parser: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parser(text)
        except ValueError:
            return False
        return True

    return check


def _date_time(value: str) -> bool:
    return parse(value) is not None


def _uri(value: str) -> bool:
    return value.startswith("/") or bool(urlsplit(value).scheme)


def effective(schema: Obj) -> str:
    """The format that a schema names; empty (ignored) if its type does not know the format."""
    name, kind = schema.get("format", ""), schema.get("type", "")
    if kind in ("", "string"):
        return name if name.replace("-", "") in _KNOWN else ""
    return name if name in _NUMBERS.get(kind, ()) else ""


_NUMBERS = {"integer": ("int32", "int64"), "number": ("float", "double")}
CHECKS: dict[str, Callable[[str], bool]] = {
    "datetime": _date_time,
    "date": succeeds(date.fromisoformat),
    "duration": lambda value: bool(_DURATION.match(value) or _LOOSE_DURATION.match(value)),
    "ipv4": succeeds(ipaddress.IPv4Address),
    "ipv6": succeeds(ipaddress.IPv6Address),
    "cidr": lambda value: (
        "/" in value and succeeds(lambda text: ipaddress.ip_network(text, strict=False))(value)
    ),
    "mac": lambda value: bool(_MAC.match(value)),
    "email": lambda value: bool(_EMAIL.match(value)),
    "hostname": lambda value: bool(_HOSTNAME.match(value)),
    "uri": _uri,
    "uuid": succeeds(uuid.UUID),
    "uuid3": succeeds(uuid.UUID),
    "uuid4": succeeds(uuid.UUID),
    "uuid5": succeeds(uuid.UUID),
    "byte": succeeds(lambda text: base64.b64decode(text, validate=True)),
    "k8sshortname": lambda value: not dns_label(value),
    "k8slongname": lambda value: not dns_subdomain(value),
}
_KNOWN = frozenset(
    {
        *CHECKS,
        # known by name; their content is not checked here
        *(
            "bsonobjectid",
            "isbn",
            "isbn10",
            "isbn13",
            "creditcard",
            "ssn",
            "hexcolor",
            "rgbcolor",
            "password",
        ),
    }
)
