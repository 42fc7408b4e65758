"""The values of borrowing: its result, and the state of an allocation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.capacity.entitlement import Borrower, NominatedSlot, SlotPool
from broker.capacity.flow import FlowState


class SlotChoices(NamedTuple):
    """Takers with equal choices: slots of a flavor that others lend to a queue."""

    queue: str
    flavor: str
    slots: tuple[str, ...]


@dataclass(slots=True)
class PoolAvailability:
    """The rest of a slot pool's availability in this plan.

    `promised`: slots of claims for which quota is held, and that find neither a slot nor a victim.
    """

    quota: int
    room: int
    lendable: int
    promised: int = 0

    def take(self, *, own: bool) -> None:
        """Counts a slot that a claim of the owner has now, or one of another queue."""
        self.room -= 1
        if own:
            self.quota -= 1
        else:
            self.lendable -= 1
        self.lendable = min(self.lendable, self.room)


class AllocationState(NamedTuple):
    """The state that `BorrowAllocator` restores if a gang cannot be whole."""

    flow: FlowState[SlotChoices, str]
    remaining: dict[SlotPool, PoolAvailability]
    borrow: dict[SlotPool, int]
    borrowers: dict[SlotPool, list[Borrower]]
    kept: Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrowed:
    """The result for the claims (by uid) that the plan so far gave no slot.

    `allocated`: the reservation of each claim that has a slot now; `whole`: gangs that launch thereby;
    `nominated`: the slots that claims wait to get back; `kept`: the reservation of each claim that keeps a
    slot while its gang waits.
    """

    allocated: Mapping[str, str] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    nominated: Mapping[str, NominatedSlot] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
