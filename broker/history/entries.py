"""The record: an Entry is one attempt for a claim, or one change that the broker reported about an object.

Invariant: an entry's id is computed from its facts, so every view of the same fact has the same id, and a
fact that is stored twice is one row. The AWS request id is a column of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from broker.apis import names
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool
from broker.kube.events import RecordedEvent
from broker.oncall.journal import attempt_id, short_id

# Characters of a message or a list of pools; a row is about a KiB.
LONGEST_TEXT: Final = 1024
# Reservations by which an entry is found; a group or an open match rarely has more of one type and zone.
MOST_RESERVATIONS: Final = 50
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Topic(StrEnum):
    """The question of an on-call person that an entry answers."""

    LAUNCH = "launch"
    SHORTAGE = "shortage"
    FALLBACK = "fallback"
    ERROR = "error"
    RECLAIM = "reclaim"
    PURCHASE = "purchase"
    EXPIRY = "expiry"
    CHANGE = "change"


# The reasons of events; every other one is a change.
_REASONS: Final[Mapping[str, Topic]] = {
    **dict.fromkeys(("Reclaiming", "Preempted"), Topic.RECLAIM),
    **dict.fromkeys(
        (
            "InstancesReserved",
            "ReservationGrown",
            "ReservationShrunk",
            "ReservationMoved",
            "ReservationEndChanged",
            "ReservationGivenBack",
            "IdleReleased",
        ),
        Topic.PURCHASE,
    ),
    **dict.fromkeys(("CapacityBlockEnding", "ReservationEnding", "ReservationExpired"), Topic.EXPIRY),
    **dict.fromkeys(("DemotedToOnDemand", "PromotedToReserved", "ReservationChanged"), Topic.FALLBACK),
}
# Codes of options that other claims got by the order of the plan.
TURN: Final = frozenset({"OutbidInPlan", "HeldForGang"})
_ON_PURCHASER: Final = frozenset({"CapacityReservation", "ClusterCapacityReservation"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row. `at` is in microseconds since 1970; `also` are further pools with the same result.

    `reservation` is the id of the reservation in which an instance runs. Otherwise it is that of the pool:
    an id, a group's ARN, or empty.
    """

    id: str
    at: int
    topic: str
    outcome: str
    kind: str
    namespace: str = ""
    name: str
    node_class: str = ""
    capacity_type: str = ""
    instance_type: str = ""
    zone: str = ""
    reservation: str = ""
    placement: str = ""
    code: str = ""
    error_class: str = ""
    message: str = ""
    request_id: str = ""
    next_step: str = ""
    instance_id: str = ""
    also: str = ""
    warning: bool = False

    @property
    def time(self) -> datetime:
        return _EPOCH + self.at * _MICROSECOND

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def pool(self) -> str:
        """The pool as logs and conditions write it, with `reservation`; empty for an entry about none."""
        if not self.instance_type:
            return ""
        return ":".join(filter(None, (self.capacity_type, self.instance_type, self.zone, self.reservation)))


def microseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def of_attempt(attempt: Attempt) -> Entry:
    pool = attempt.pool
    launched = attempt.outcome in (Outcome.LAUNCHED, Outcome.ADOPTED)
    runs_in = attempt.odcr_ids[0] if launched and len(attempt.odcr_ids) == 1 else ""
    return Entry(
        id=attempt_id(attempt),
        at=microseconds(attempt.at),
        topic=_topic(attempt),
        outcome=attempt.outcome,
        kind="NodeClaim",
        name=attempt.claim,
        node_class=attempt.node_class,
        capacity_type=pool.capacity_type,
        instance_type=pool.instance_type,
        zone=pool.zone,
        reservation=runs_in or pool.reservation,
        placement=pool.placement,
        code=attempt.code,
        error_class=attempt.class_ or "",
        message=_cut(attempt.message),
        request_id=attempt.request_id,
        next_step=attempt.next_step,
        instance_id=attempt.instance_id,
        also=_cut(", ".join(map(str, attempt.also))),
        warning=not (launched or is_turn(attempt)),
    )


def of_event(event: RecordedEvent) -> Entry:
    about = event.about
    request = event.annotations.get(names.AWS_REQUESTS, "")
    return Entry(
        id=short_id(
            event.at.isoformat(), about.kind, about.namespace, about.name, event.reason, event.message
        ),
        at=microseconds(event.at),
        topic=_about(event),
        outcome=event.reason,
        kind=about.kind,
        namespace=about.namespace,
        name=about.name,
        message=_cut(event.message),
        request_id=request,
        warning=event.type == "Warning",
    )


def pools(attempt: Attempt) -> tuple[Pool, ...]:
    """All pools of a refusal."""
    return (attempt.pool, *attempt.also)


def reservations(attempt: Attempt) -> tuple[str, ...]:
    """The ids and groups by which the attempt is found."""
    keys = dict.fromkeys((*attempt.odcr_ids, *(pool.reservation for pool in pools(attempt))))
    return tuple(filter(None, keys))[:MOST_RESERVATIONS]


def is_shortage(attempt: Attempt) -> bool:
    """Whether EC2 refused in a way that the broker remembers."""
    class_ = attempt.class_
    return attempt.outcome is Outcome.REFUSED and class_ is not None and class_.policy.elsewhere


def is_turn(attempt: Attempt) -> bool:
    """Whether the option was skipped only because its slot went to a claim that comes before: no problem."""
    return attempt.outcome is Outcome.SKIPPED and attempt.code in TURN


def _topic(attempt: Attempt) -> Topic:
    match attempt.outcome:
        case Outcome.LAUNCHED | Outcome.ADOPTED:
            return Topic.LAUNCH
        case Outcome.SPILLED:
            return Topic.FALLBACK
        case Outcome.REFUSED:
            return Topic.SHORTAGE if is_shortage(attempt) else Topic.ERROR
        case Outcome.SKIPPED:
            return Topic.FALLBACK


def _about(event: RecordedEvent) -> Topic:
    if event.reason in _REASONS:
        return _REASONS[event.reason]
    bought = event.about.kind in _ON_PURCHASER and names.AWS_REQUESTS in event.annotations
    return Topic.PURCHASE if bought else Topic.CHANGE


def _cut(text: str) -> str:
    """Text that both databases take, of at most `LONGEST_TEXT` characters."""
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
