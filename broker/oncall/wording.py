"""Shortages, ways out and severities in the words of a person on call: no ARN, no spelling of the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.apis.karpenter_aws import EC2NodeClass
from broker.text import group_name, plain
from providers.errors import CLASSES, EXPLAIN

CRITICAL: Final = "critical"  # paid for, and of no use
WARNING: Final = "warning"
# Colour only repeats the word.
SEVERITIES: Final[Mapping[str, str]] = {
    "broken": CRITICAL,
    "short": WARNING,
    "pods": WARNING,
    "waiting": WARNING,
}


def way_out(error_class: str) -> str:
    """The remedy that a person has."""
    class_ = CLASSES.get(error_class)
    return class_.policy.remedy if class_ is not None and class_.policy.remedy else EXPLAIN


def scope_name(kind: str, key: str) -> str:
    """The resource of a shortage."""
    head, _, rest = key.partition(":")
    match kind:
        case "pool":
            return plain(key)
        case "class":
            return f"{plain(rest)}, for EC2NodeClass {head}"
        case "placement":
            return f"placement group {head} in {rest}"
        case "quota":
            return f"the account's {head} limit of {rest.upper()} instances"
        case "reservation":
            return f"EC2 reservation {key}" if key.startswith("cr-") else f"group {group_name(key)}"
    return f"{kind} {key}"


def limit_name(key: str) -> str:
    """What a vCPU limit of the account counts: `on-demand G vCPUs`."""
    market, _, families = key.partition(":")
    return f"{market} {families.upper()} vCPUs"


def untargeted(class_: EC2NodeClass) -> str:
    """What a class without a target requests, after its name; empty if it has a target."""
    spec = class_.reservation_settings.spec
    if spec is None:
        return "" if class_.spec.capacity_reservation_selector_terms else "requests no reservation"
    preference = spec.preference
    if preference == "none":
        return "requests no reservation"
    return "takes open reservations only, and this one is targeted" if preference else ""
