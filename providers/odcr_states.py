"""The life, the kind and the maker of an ODCR: EC2's words, and the facts that follow from each.

Invariant: EC2's words are compared here alone. Other modules read the properties of `Odcr`, so a new state
is one more row of STATES. mypy finds a state that EC2's types have and `OdcrState` lacks
(providers.aws.reservations), and a unit test finds a state without a row.

Source: EC2 API Reference, CapacityReservation, State.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from providers.names import MANAGED_BY, MANAGER

OdcrState = Literal[
    "active",
    "assessing",
    "cancelled",
    "cancelling",
    "delayed",
    "expired",
    "failed",
    "payment-failed",
    "payment-pending",
    "pending",
    "scheduled",
    "unavailable",
    "unsupported",
]
OdcrKind = Literal["default", "capacity-block", "interruptible"]
Maker = Literal["broker", "terraform", "other"]
Phase = Literal[
    "begins",  # it may become active
    "active",
    "unavailable",  # it keeps its place, and nothing is launched into it
    "ending",  # EC2 gives its capacity to no launch any more, and has not taken it yet
    "ended",  # its instances run on outside it, or ended with it
    "failed",  # it never had capacity
    "unknown",  # a state that is newer than this table
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFacts:
    """`misfit`: the reason why nothing is launched into it; empty if launches use it, or wait for it.

    `on_time`: EC2 makes it active within minutes of its creation or start.
    """

    phase: Phase
    misfit: str = ""
    on_time: bool = False


_FAILED: Final = StateFacts(phase="failed", misfit="ReservationFailed")
_UNKNOWN: Final = StateFacts(phase="unknown", misfit="ReservationNotActive")
STATES: Final[Mapping[str, StateFacts]] = {
    "active": StateFacts(phase="active"),
    "pending": StateFacts(phase="begins", on_time=True),
    "scheduled": StateFacts(phase="begins", on_time=True),
    "assessing": StateFacts(phase="begins"),
    "delayed": StateFacts(phase="begins"),
    "payment-pending": StateFacts(phase="begins"),
    "unavailable": StateFacts(phase="unavailable", misfit="ReservationUnavailable"),
    "cancelling": StateFacts(phase="ending", misfit="ReservationCancelled"),
    "cancelled": StateFacts(phase="ended", misfit="ReservationCancelled"),
    "expired": StateFacts(phase="ended", misfit="ReservationExpired"),
    "failed": _FAILED,
    "payment-failed": _FAILED,
    "unsupported": _FAILED,
}

# Tag keys, in lower case and without separators, that name the manager of a resource.
_MANAGER_KEYS: Final = frozenset({"managedby", "createdby", "provisionedby", "app.kubernetes.io/managedby"})
_TERRAFORM: Final = frozenset({"terraform", "opentofu"})


def facts_of(state: str) -> StateFacts:
    """The facts of a state, which may be newer than the table."""
    return STATES.get(state, _UNKNOWN)


def is_over(state: str) -> bool:
    """Whether a reservation in this state is never active again, also while EC2 still ends it."""
    return facts_of(state).phase in ("ending", "ended", "failed")


def maker_of(tags: Mapping[str, str]) -> Maker:
    """The maker that the tags name. Terraform leaves no mark of its own, so it is known by usual tags.

    The tag of a cluster names no maker: an ODCR of any maker may carry it beside its owner's name.
    """
    if tags.get(MANAGED_BY) == MANAGER:
        return "broker"
    for key, value in tags.items():
        plain_key = key.casefold().replace("-", "").replace("_", "").replace(":", "")
        named = value.casefold()
        if plain_key in _MANAGER_KEYS and named in _TERRAFORM:
            return "terraform"
        if plain_key in _TERRAFORM and named not in ("false", "no", "0"):
            return "terraform"
    return "other"
