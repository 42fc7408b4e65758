"""Entitlements to the slots of EC2 reservations that a CapacityReservation owns.

Invariant: a claim of the owner gets a slot before a claim of another queue, up to the owner's quota. It may
get another slot than its own, and keeps one in any case, if the plan is better with that (see `plan`). The
owner's other slots go to claims of the cohort, as far as they may borrow and the owner lends. No other claim
gets one. A slot without an owner is open to any claim.

Nothing is decided here: the amounts come from the quota tree, and a plan keeps to them. The rules are
Kueue's (ClusterQueue: nominalQuota, borrowingLimit, lendingLimit), counted in instances.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from broker.lists import lists_by_key
from broker.quota.candidates import outranked
from broker.quota.model import Preemption

Right = Literal["free", "own", "lent"]

RESERVED_FOR_OTHERS: Final = "ReservedForOthers"
RESERVATION_FULL: Final = "ReservationFull"
QUOTA_REACHED: Final = "QuotaReached"
NO_QUOTA: Final = "has no quota left for slots of flavor "
_OUT_OF_QUOTA: Final = re.compile(rf"(\S+) {NO_QUOTA}([^\s,;]+)")
BORROWING_LIMIT: Final = "BorrowingLimitReached"
LENDING_LIMIT: Final = "LendingLimitReached"
RECLAIMING: Final = "ReclaimingSlots"
# The queue of claims that may take no slot now, whichever reservation they draw from: no reservation has this
# name.
KEPT: Final = "?"
KEPT_REASON: Final = (
    "the quota that it would use is kept for a dedicated cluster for which others are evicted"
)


class SlotPool(NamedTuple):
    """The slots of one flavor that one reservation owns. `owner` is the name of its queue."""

    owner: str
    flavor: str


class Borrower(NamedTuple):
    """A holder of a slot of a pool that could give it back, and the queue that it draws from.

    `terminating`: the slot becomes free, for the claim `evicted_for` (by name) if known. A holder without
    `odcr_id` is promised a slot of any reservation of the slot pool.
    """

    odcr_id: str
    priority: int
    terminating: bool = False
    queue: str = ""
    evicted_for: str = ""


def gives_back(rule: Preemption, borrower: Borrower, priority: int) -> bool:
    """Whether a borrower gives its slot back to a claim of the owner with this priority."""
    return borrower.terminating or outranked(rule.reclaim, borrower.priority, priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAvailability:
    """The number of further slots of a slot pool that may be taken.

    `quota`: by its owner, if all slots came back but the `unreturned`, which it has quota for and others do
    not give back; `room`: by all together; `lendable`: of those by others. `room` and `lendable` are negative
    if more is held or promised than exists: no single eviction helps then. `scarce`: the owner has quota for
    more slots than exist. `borrowers` hold slots that others may get, the first to give back first.
    """

    quota: int = 0
    room: int = 0
    lendable: int = 0
    scarce: bool = False
    unreturned: int = 0
    borrowers: tuple[Borrower, ...] = ()


_NONE: Final = SlotAvailability()
NO_PREEMPTION: Final = Preemption()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entitlements:
    """Entitlements of one plan.

    `slot_pools`: the slot pool of each owned EC2 reservation, by id. `availability`: of each slot pool.
    `draws`: the queue of each claim (by uid) that draws from a reservation. `borrow`: the further slots of
    others that a queue may take, by queue and flavor. `peers`: the queues that a queue may borrow from.

    `names`: names as people write them. `absent`: what to correct, if an owner does not exist. `barred`: the
    reason if a queue is entitled to nothing. `rules`: the preemption that its claims may cause. `held`:
    claims (by uid) for which quota is held already. `nominated`: nominated claims (by uid), with the slot
    pool if known. They come before all others.
    """

    slot_pools: Mapping[str, SlotPool] = field(default_factory=dict)
    availability: Mapping[SlotPool, SlotAvailability] = field(default_factory=dict)
    draws: Mapping[str, str] = field(default_factory=dict)
    borrow: Mapping[SlotPool, int] = field(default_factory=dict)
    peers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    barred: Mapping[str, str] = field(default_factory=dict)
    rules: Mapping[str, Preemption] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    nominated: Mapping[str, SlotPool | None] = field(default_factory=dict)

    @property
    def owned(self) -> bool:
        """Whether any slot is owned, or quota is kept."""
        return bool(self.slot_pools or KEPT in self.barred)

    def of(self, slot_pool: SlotPool) -> SlotAvailability:
        return self.availability.get(slot_pool, _NONE)

    def right(self, queue: str, odcr_id: str) -> Right | None:
        """The right by which a claim of this queue (empty: of none) may have a slot of the reservation;
        None without one.
        """
        slot_pool = self.slot_pools.get(odcr_id)
        if slot_pool is None:
            return None if queue == KEPT else "free"
        if not queue or queue in self.barred or not slot_pool.flavor:
            return None
        if slot_pool.owner == queue:
            return "own"
        return "lent" if slot_pool.owner in self.peers.get(queue, ()) else None

    def foreign(self, queue: str, odcr_id: str) -> bool:
        """Whether the reservation belongs to another queue. One that is barred loses no node by that."""
        slot_pool = self.slot_pools.get(odcr_id)
        return slot_pool is not None and slot_pool.owner != queue and queue not in self.barred

    def denial(self, queue: str, odcr_id: str) -> str:
        """The reason why a claim of this queue may not have a slot of the reservation."""
        if (slot_pool := self.slot_pools.get(odcr_id)) is None:
            return f"the claim waits: {self.barred[queue]}"
        ownership = f"reservation {odcr_id} belongs to {self.name(slot_pool.owner)}"
        if not queue:
            return f"{ownership}, and the claim draws from no reservation"
        if queue == KEPT:
            return f"{ownership}; {self.barred[queue]}"
        draws = f"the claim draws from {self.name(queue)}"
        if queue in self.barred:
            return f"{ownership}; {draws}: {self.barred[queue]}"
        if absent := self.absent.get(slot_pool.owner):
            return f"{ownership}; {absent}"
        if not slot_pool.flavor:
            return f"{ownership} and fits none of its flavors"
        if queue not in self.peers:
            return f"{ownership}; {draws}, which may not borrow"
        return f"{ownership}; {draws}, which is not in its cohort"

    def limit(self, queue: str, slot_pool: SlotPool) -> tuple[str, str] | None:
        """The reason and the message if a claim of this queue may have no more slots of a pool now."""
        availability = self.of(slot_pool)
        slots = f"slots of flavor {slot_pool.flavor}"
        if slot_pool.owner == queue:
            if availability.quota <= 0 and availability.unreturned:
                stay = "that do not come back now (as those of do-not-disrupt pods)"
                return QUOTA_REACHED, f"{self.name(queue)} lends {slots} {stay}"
            if availability.quota <= 0 and availability.scarce:
                return RESERVATION_FULL, f"{self.name(queue)} has quota for more, but uses all its {slots}"
            if availability.quota <= 0:
                return QUOTA_REACHED, f"{self.name(queue)} {NO_QUOTA}{slot_pool.flavor}"
            return None
        if self.borrow.get(SlotPool(queue, slot_pool.flavor), 0) <= 0:
            return BORROWING_LIMIT, f"{self.name(queue)} may borrow no more {slots}"
        if availability.lendable <= 0 and availability.room > 0:
            return LENDING_LIMIT, f"{self.name(slot_pool.owner)} lends no more {slots}"
        if availability.room <= 0:
            return QUOTA_REACHED, f"all {slots} that {self.name(slot_pool.owner)} has quota for are taken"
        return None

    def loans(self, odcr_ids: Sequence[str]) -> str:
        """A clause if others hold slots of these reservations of one slot pool; empty if not.

        Without their number: each change of a reason is another event of every claim that waits.
        """
        slot_pool = self.slot_pools[odcr_ids[0]]
        lent = any(
            borrower.odcr_id in odcr_ids and borrower.queue not in ("", slot_pool.owner)
            for borrower in self.of(slot_pool).borrowers
        )
        owner, rule = self.name(slot_pool.owner), self.rules.get(slot_pool.owner, NO_PREEMPTION).reclaim
        return f"; {owner} lends slots of it (reclaimWithinCohort: {rule})" if lent else ""

    def returnable(self, queue: str, slot_pool: SlotPool, priority: int) -> Counter[str]:
        """The lent slots, by reservation, that a claim of the owner may have back within its quota."""
        if slot_pool.owner != queue:
            return Counter()
        availability, rule = self.of(slot_pool), self.rules.get(queue, NO_PREEMPTION)
        lent = [
            borrower.odcr_id
            for borrower in availability.borrowers
            if borrower.odcr_id and borrower.queue != queue and not borrower.evicted_for
            if gives_back(rule, borrower, priority)
        ]
        return Counter(lent[: max(0, availability.quota)])

    def after(self, taken: Iterable[tuple[str, str]]) -> Entitlements:
        """The entitlements that are left after these slots: the queue of each claim, and its reservation."""
        own: Counter[SlotPool] = Counter()
        lent: Counter[SlotPool] = Counter()
        borrowed: Counter[SlotPool] = Counter()
        for queue, odcr_id in taken:
            if (slot_pool := self.slot_pools.get(odcr_id)) is not None:
                (own if slot_pool.owner == queue else lent)[slot_pool] += 1
                borrowed[SlotPool(queue, slot_pool.flavor)] += slot_pool.owner != queue
        if not own and not lent:
            return self
        left = {
            slot_pool: replace(
                given,
                quota=given.quota - own[slot_pool],
                room=given.room - own[slot_pool] - lent[slot_pool],
                lendable=given.lendable - lent[slot_pool],
            )
            for slot_pool, given in self.availability.items()
        }
        borrow = {limit: count - borrowed[limit] for limit, count in self.borrow.items()}
        return replace(self, availability=left, borrow=borrow)

    def rule(self, uid: str) -> Preemption:
        """The preemption that the claim's queue may cause."""
        return self.rules.get(self.draws.get(uid, ""), NO_PREEMPTION)

    def by_slot_pool(self) -> dict[SlotPool, tuple[str, ...]]:
        """The reservations of each slot pool, by id."""
        ids_by_pool = lists_by_key((self.slot_pools[odcr_id], odcr_id) for odcr_id in sorted(self.slot_pools))
        return {slot_pool: tuple(ids) for slot_pool, ids in ids_by_pool.items()}

    def name(self, queue: str) -> str:
        """The name as people write it."""
        return self.names.get(queue, queue)


NO_ENTITLEMENTS: Final = Entitlements()


def out_of_quota(reason: str) -> list[tuple[str, str]]:
    """The owners without quota in a claim's or a pod's reason, each with the flavor."""
    return _OUT_OF_QUOTA.findall(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class NominatedSlot:
    """A slot that a claim waits for, in any of these reservations of a slot pool. `queue`: the queue that
    the claim draws from, of the owner or another.
    """

    slot_pool: SlotPool
    odcr_ids: tuple[str, ...]
    queue: str
