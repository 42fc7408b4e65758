"""Whether anything that a pass of the launch loop decides by has changed since the last one.

Invariant: a pass is skipped only when the one before it launched nothing, told every claim, and would be
given the very same things now; a remembered shortage or a hold that ends is such a change, and after
`LONGEST` a pass is made whatever there is, since a date in what EC2 describes may have come.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from broker.apis.karpenter import NodeClaim
from broker.capacity.model import Inventory
from broker.capacity.shortages import Shortages
from broker.controllers.nodeclass.resolve import LaunchClass
from providers.model import InstanceType

LONGEST = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a pass is given. Claims and types are compared by identity: a cache makes a changed one anew.

    `classes` are what launches need of each class, or why it cannot be had; `entitled` stands for whose the
    slots are.
    """

    waiting: Mapping[str, NodeClaim]  # by uid
    classes: Mapping[str, LaunchClass | Hashable]
    types: Mapping[str, InstanceType]
    inventory: Inventory
    shortages: Shortages
    gangs: Mapping[str, int]
    entitled: object

    def same(self, other: Inputs) -> bool:
        """Whether a pass would be given the same; when EC2 was asked does not count."""
        return (
            self.types is other.types
            and self.waiting.keys() == other.waiting.keys()
            and all(claim is other.waiting[uid] for uid, claim in self.waiting.items())
            and self.gangs == other.gangs
            and self.shortages == other.shortages
            and _counts(self.inventory) == _counts(other.inventory)
            and self.classes == other.classes
            and self.entitled == other.entitled
        )


class Standstill:
    """Remembers the last pass; one thread works with it."""

    def __init__(self) -> None:
        self._last: Inputs | None = None
        self._until = datetime.max

    def until(self, inputs: Inputs, now: datetime) -> datetime | None:
        """Until when nothing is to be done unless something changes; None where a pass is due."""
        if self._last is None or now >= self._until or not inputs.same(self._last):
            return None
        return self._until

    def passed(self, inputs: Inputs, *, now: datetime, wakes: datetime | None) -> None:
        """A pass that told everybody ended; `wakes` is when the first thing that it waits for ends."""
        self._last = inputs
        self._until = min(now + LONGEST, wakes or datetime.max.replace(tzinfo=now.tzinfo))

    def forget(self) -> None:
        self._last = None


def _counts(inventory: Inventory) -> tuple[object, ...]:
    return inventory.odcrs, inventory.groups, inventory.debits, inventory.credits
