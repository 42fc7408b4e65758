"""Shortages and waiting claims, computed from the leader's memory and caches at each scrape.

A series disappears when its shortage ends or its claims have instances: nothing is kept between scrapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition
from broker.capacity.shortages import Shortage, Shortages
from broker.oncall.metrics import GaugeTable, Rows, follow_together, waiting_tables

_SCOPE: Final = ("kind", "scope", "class", "code")
_SINCE: Final = GaugeTable(
    "capacity_broker_shortage_since_timestamp_seconds",
    "When a pool, reservation, subnet or quota began to refuse launches, while that is remembered.",
    _SCOPE,
)
_UNTIL: Final = GaugeTable(
    "capacity_broker_shortage_until_timestamp_seconds",
    "When a remembered shortage ends: until then, claims that have another pool leave it out.",
    _SCOPE,
)
_NEXT_TRY: Final = GaugeTable(
    "capacity_broker_shortage_next_try_timestamp_seconds",
    "When a scope with a remembered shortage may be requested again: by claims without another pool, after "
    "six minutes at most.",
    _SCOPE,
)
_FAILED_RETRIES: Final = GaugeTable(
    "capacity_broker_shortage_repeats",
    "How often a scope refused again after its shortage ended; each repeat doubles the wait.",
    _SCOPE,
)
_COUNT: Final = GaugeTable(
    "capacity_broker_shortages", "Remembered shortages, by kind of scope and error class.", ("kind", "class")
)
_WAITING: Final = GaugeTable(
    "capacity_broker_claims_waiting",
    "Claims without an instance, by the reason of their condition Launched.",
    ("nodeclass", "reason"),
)
_OLDEST: Final = GaugeTable(
    "capacity_broker_claims_waiting_since_timestamp_seconds",
    "When the oldest of the claims without an instance, or of those before it for its pods, was created.",
    ("nodeclass", "reason"),
)


def is_brokers(claim: NodeClaim) -> bool:
    """Decides by the group of its class, or by the broker's marks on one taken over from Karpenter."""
    return (
        claim.spec.node_class_ref.group == names.BROKER
        or names.LAUNCH in claim.annotations
        or names.ATTEMPTS in claim.annotations
        or condition(claim.status.conditions, names.CAPACITY_RESERVATION) is not None
    )


def launch_state(claim: NodeClaim) -> tuple[str, str]:
    """The reason and the message of the claim's launch; `New` until its launcher has reported about it."""
    launched = condition(claim.status.conditions, names.LAUNCHED)
    return (launched.reason, launched.message) if launched else ("New", untried(claim))


def untried(claim: NodeClaim) -> str:
    """About a claim of which no attempt is known. The broker knows only its own launches."""
    if is_brokers(claim):
        return "no launch was tried yet"
    return (
        "Karpenter has reported no attempt; if the broker should launch it, make it with "
        f"nodeClassRef.group {names.BROKER}"
    )


def follow(
    shortages: Callable[[], Shortages],
    claims: Callable[[], Iterable[NodeClaim]],
    since: Callable[[NodeClaim], datetime | None],
    now: Callable[[], datetime],
) -> None:
    """Shows the values of these sources at each scrape, until the tables are cleared.

    `since`: when a claim, or the claims before it for its pods, began to wait.
    """

    follow_together(
        lambda: [*shortages().lasting(now())],
        {
            _SINCE: _by_scope(lambda shortage: shortage.since.timestamp()),
            _UNTIL: _by_scope(lambda shortage: shortage.until.timestamp()),
            _NEXT_TRY: _by_scope(lambda shortage: shortage.next_try.timestamp()),
            _FAILED_RETRIES: _by_scope(lambda shortage: shortage.step),
            _COUNT: _counts,
        },
    )

    def waiting(claims: Iterable[NodeClaim]) -> Iterable[tuple[tuple[str, ...], datetime | None]]:
        for claim in claims:
            if claim.waits:
                yield (claim.spec.node_class_ref.name, launch_state(claim)[0]), since(claim)

    follow_together(claims, waiting_tables(_WAITING, _OLDEST, waiting))


def _by_scope(value: Callable[[Shortage], float]) -> Callable[[Iterable[Shortage]], Rows]:
    return lambda shortages: {
        (shortage.scope.kind, shortage.scope.key, shortage.class_.value, shortage.code): value(shortage)
        for shortage in shortages
    }


def _counts(shortages: Iterable[Shortage]) -> Rows:
    return Counter((shortage.scope.kind, shortage.class_.value) for shortage in shortages)
