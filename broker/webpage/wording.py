"""Shortages and ways out in the words of a person on call: no ARN, no spelling of the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.text import group_name, plain
from providers.errors import ErrorClass

_EXPLAIN: Final = "The command capacity-broker explain claim NAME lists its options."
# By the class of EC2's refusal.
WAYS_OUT: Final[Mapping[ErrorClass, str]] = {
    ErrorClass.CAPACITY: f"Wait, or allow more types, zones or capacity types in the NodePool. {_EXPLAIN}",
    ErrorClass.RESERVATION_FULL: (
        "Free a slot, enlarge the reservation, or allow on-demand in the claim or NodePool."
    ),
    ErrorClass.RESERVATION_GONE: "Give the EC2NodeClass a reservation that is active, or allow on-demand.",
    ErrorClass.NOT_OFFERED: "Allow other types or zones in the NodePool: EC2 does not offer this one there.",
    ErrorClass.UNSUPPORTED: (
        "Correct the EC2NodeClass, or exclude the type: EC2 does not support the class's settings with it."
    ),
    ErrorClass.SPREAD_FULL: "Allow another zone or placement group: this one is full in the zone.",
    ErrorClass.SUBNET: "Add a subnet with free addresses in this zone to the EC2NodeClass.",
    ErrorClass.QUOTA: "Request a higher limit in Service Quotas, or free instances of these families.",
}


def way_out(error_class: str) -> str:
    """The remedy that a person has."""
    return WAYS_OUT.get(ErrorClass(error_class), _EXPLAIN) if error_class in [*ErrorClass] else _EXPLAIN


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
