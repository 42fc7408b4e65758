"""Skips a pass of the launch loop if no input has changed since the last pass.

Invariant: a pass is skipped only if the pass before it launched nothing, reported to every claim, and had the
same inputs. The end of a shortage or of a hold counts as a change. After `LONGEST_REST` a pass is made in any
case: a date in EC2's description may have come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from broker.apis.karpenter import NodeClaim
from broker.capacity.domains import LaunchedGangs
from broker.capacity.entitlement import Entitlements
from broker.capacity.inventory import Inventory
from broker.capacity.shortages import Shortages
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.controllers.snapshot import Snapshot

LONGEST_REST = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoClass:
    """Why a class cannot launch; `passing`: it ends in a moment without any action, and is not reported."""

    reason: str
    message: str
    passing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInputs:
    """Claims and types are compared by identity: a cache replaces a changed object."""

    waiting: Mapping[str, NodeClaim]  # by uid
    classes: Mapping[str, LaunchClass | NoClass]
    snapshot: Snapshot
    shortages: Shortages
    gangs: LaunchedGangs
    entitlements: Entitlements

    def same(self, other: PassInputs) -> bool:
        """Whether a pass would decide the same; the time of EC2's description does not count."""
        return (
            self.snapshot.types is other.snapshot.types
            and self.waiting.keys() == other.waiting.keys()
            and all(claim is other.waiting[uid] for uid, claim in self.waiting.items())
            and self.gangs == other.gangs
            and self.shortages == other.shortages
            and _counts(self.snapshot.inventory) == _counts(other.snapshot.inventory)
            and self.classes == other.classes
            and self.entitlements == other.entitlements
        )


class UnchangedInputs:
    """Remembers the last pass; one thread works with it."""

    def __init__(self) -> None:
        self._last: PassInputs | None = None
        self._until = datetime.max

    def until(self, inputs: PassInputs, now: datetime) -> datetime | None:
        """The time until which no pass is needed unless an input changes; None if a pass is due."""
        if self._last is None or now >= self._until or not inputs.same(self._last):
            return None
        return self._until

    def record_pass(self, inputs: PassInputs, *, now: datetime, wakes: datetime | None) -> None:
        """A pass ended that reported to every claim; `wakes` is the first end of a shortage or hold."""
        self._last = inputs
        self._until = min(now + LONGEST_REST, wakes or datetime.max.replace(tzinfo=now.tzinfo))

    def forget(self) -> None:
        self._last = None


def _counts(inventory: Inventory) -> tuple[object, ...]:
    taken = inventory.debits, inventory.credits, inventory.occupied
    promised = inventory.left, inventory.joining, inventory.kept
    return inventory.odcrs, inventory.groups, *taken, *promised
