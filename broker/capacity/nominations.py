"""Nominates slots for claims that wait until other claims give them back.

Invariant: no more claims of an owner wait than its quota has room for, and no slot is given back to two
claims. Claims come in order of rank; those with victims evicted already come first, then those within quota.
A gang is nominated whole or not at all. It keeps the slots that it has found, also before borrowers that come
later: they are assigned again without these slots.

A claim within its reservation's quota waits for a lent slot instead of falling back, as long as a borrower
may be preempted. The rule is `reclaimWithinCohort`, lowest priority first (Kueue, "Preemption").

A claim that cannot fall back waits also for claims of lower priority: of its own reservation
(`withinClusterQueue`), or, if it would borrow, of another borrower (`borrowWithinCohort`). These two rules
preempt no claim for one that can fall back.

This is a step after the assignment (`assign`), since it chooses victims and not slots: running claims are
evicted only for claims that no free slot serves, one at a time and in their owner's order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Literal

from broker.capacity.demand import WaitingClaims
from broker.capacity.entitlement import Borrower, Entitlements, NominatedSlot, SlotPool, gives_back
from broker.capacity.inventory import Inventory
from broker.capacity.problem import ClaimDemand, in_rank_order
from broker.quota.candidates import below_threshold, outranked


@dataclass(frozen=True, slots=True, kw_only=True)
class Nominations:
    """The slots that claims (by uid) wait to get back, and the reservation of each claim that keeps a slot
    while its gang waits. `conflicts`: borrowers that come later have kept slots.
    """

    nominated: Mapping[str, NominatedSlot] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    conflicts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LentSlots:
    """The slots after lending, by claim (uid), and the claims that they were assigned to.

    `borrowed`: those that claims got only by lending. `inventory`: the slots that could be assigned.
    """

    waiting: WaitingClaims
    demands: Mapping[str, ClaimDemand]
    entitlements: Entitlements
    inventory: Inventory
    allocated: Mapping[str, str]
    borrowed: Mapping[str, str]
    incomplete_gangs: frozenset[str]


def nominate(lent: LentSlots) -> Nominations:
    """The result for claims without a slot.

    A claim with held quota that gets no slot and no nomination keeps its entitlement. The step is repeated
    without such claims until there are no more.
    """
    unserved: frozenset[str] = frozenset()
    while True:
        nominations = _Nominator(lent).run(unserved)
        waits = lent.entitlements.held & lent.demands.keys()
        waits -= lent.allocated.keys() | nominations.nominated.keys()
        unserved_now = frozenset(uid for uid in waits if lent.waiting.candidates[uid].own)
        if not nominations.nominated or unserved_now <= unserved:
            return nominations
        unserved |= unserved_now


@dataclass(slots=True, kw_only=True)
class _Left:
    """The amounts that are left in this plan.

    `promised`: slots of claims for which quota is held, and that find neither a slot nor a victim.
    """

    free: Counter[str]
    quota: Counter[SlotPool]
    room: Counter[SlotPool]
    lendable: Counter[SlotPool]
    borrow: Counter[SlotPool]
    promised: Counter[SlotPool]
    borrowers: dict[SlotPool, tuple[Borrower, ...]]

    def copy(self) -> _Left:
        return _Left(**{item.name: copy(getattr(self, item.name)) for item in fields(self)})


class _Nominator:
    def __init__(self, lent: LentSlots) -> None:
        claims, demands = lent.waiting.by_uid, lent.demands
        self._claims, self._demands, self._candidates = claims, demands, lent.waiting.candidates
        self._entitlements, self._borrowed = lent.entitlements, lent.borrowed
        after = lent.entitlements.after((demands[uid].queue, slot) for uid, slot in lent.allocated.items())
        slot_pools = sorted(lent.entitlements.availability)
        used = Counter(lent.allocated.values())
        self._left = _Left(
            free=Counter({id_: lent.inventory.free(id_) - used[id_] for id_ in lent.inventory.odcrs}),
            quota=Counter({slot_pool: after.of(slot_pool).quota for slot_pool in slot_pools}),
            room=Counter({slot_pool: after.of(slot_pool).room for slot_pool in slot_pools}),
            lendable=Counter({slot_pool: after.of(slot_pool).lendable for slot_pool in slot_pools}),
            borrow=Counter(after.borrow),
            promised=Counter(),
            borrowers={slot_pool: after.of(slot_pool).borrowers for slot_pool in slot_pools},
        )
        without = [uid for uid in demands if uid not in lent.allocated]
        self._waiting = [uid for uid in without if self._concerned(uid)]
        self._incomplete_gangs = lent.incomplete_gangs
        self._gang_by_name = {claims[uid].name: claims[uid].gang for uid in without}

    def run(self, unserved: frozenset[str]) -> Nominations:
        """`unserved`: claims that are not nominated, though quota is held for them."""
        waiting = [uid for uid in self._waiting if uid not in unserved]
        units = in_rank_order([*waiting, *self._borrowed], self._demands, gangs=self._incomplete_gangs)
        units.sort(key=self._turn)
        order = {uid: number for number, (_, uids) in enumerate(units) for uid in uids}
        for uid in sorted(unserved):
            self._promise(uid)
        nominated: dict[str, NominatedSlot] = {}
        kept: dict[str, str] = {}
        for gang, uids in units:
            if uids[0] in self._borrowed:
                continue
            before = self._left.copy() if gang else self._left
            later = [uid for uid in self._borrowed if gang and order[uid] > order[uids[0]]]
            self._borrow(later, -1)
            slots, keeps = self._nominate_unit(gang, uids)
            if slots or not gang:
                self._borrow(later, 1)
                nominated |= slots
                kept |= keeps
            else:
                self._left = before
        pools = {pool for slot in kept.values() if (pool := self._entitlements.slot_pools.get(slot))}
        free, room = self._left.free, self._left.room
        conflicts = any(free[slot] < 0 for slot in kept.values()) or any(room[pool] < 0 for pool in pools)
        return Nominations(nominated=nominated, kept=kept, conflicts=conflicts)

    def _turn(self, unit: tuple[str, Sequence[str]]) -> tuple[bool, bool]:
        """Nominated claims come first, then those within quota."""
        _, uids = unit
        later = not any(uid in self._entitlements.nominated for uid in uids)
        return later, not any(map(self._in_quota, uids))

    def _concerned(self, uid: str) -> bool:
        candidates = self._candidates[uid]
        return bool(candidates.borrowable or candidates.own or candidates.lenders or self._demands[uid].gang)

    def _in_quota(self, uid: str) -> bool:
        slot_pools = {self._entitlements.slot_pools[odcr_id] for odcr_id in self._candidates[uid].own}
        return any(self._left.quota[slot_pool] > 0 for slot_pool in slot_pools)

    def _promise(self, uid: str) -> None:
        """Counts the entitlement of a claim that finds no slot, as the decision about slots does."""
        for odcr_id in self._candidates[uid].own:
            slot_pool = self._entitlements.slot_pools[odcr_id]
            if self._left.quota[slot_pool] > self._left.promised[slot_pool]:
                self._left.promised[slot_pool] += 1
                return

    def _nominate_unit(
        self, gang: str, uids: Sequence[str]
    ) -> tuple[dict[str, NominatedSlot], dict[str, str]]:
        """Nominates slots for these claims. A gang keeps the other slots it has found, so that no claim
        borrows them.
        """
        nominated: dict[str, NominatedSlot] = {}
        keeps: dict[str, str] = {}
        for uid in uids:
            if gang and (slot := self._keep(uid)):
                keeps[uid] = slot
            elif nominated_slot := self._nominate(uid):
                nominated[uid] = nominated_slot
            elif gang and not self._demands[uid].rank.falls_back:
                return {}, {}
        return nominated, keeps

    def _keep(self, uid: str) -> str:
        """A slot that no other queue has to lend: of the claim's own reservation, or without an owner; or one
        of another owner, if victims were evicted from it for this claim.
        """
        candidates, queue = self._candidates[uid], self._demands[uid].queue
        nominated, slot_pools = self._entitlements.nominated.get(uid), self._entitlements.slot_pools
        evicted = [slot for slot in candidates.borrowable if nominated and slot_pools[slot] == nominated]
        for slot in (*candidates.slots, *evicted):
            slot_pool = slot_pools.get(slot)
            if self._left.free[slot] > 0 and (slot_pool is None or self._has_room(slot_pool, queue)):
                self._take(queue, slot, 1)
                return slot
        return ""

    def _take(self, queue: str, slot: str, count: int) -> None:
        left, slot_pool = self._left, self._entitlements.slot_pools.get(slot)
        left.free[slot] -= count
        if slot_pool is None:
            return
        left.room[slot_pool] -= count
        if slot_pool.owner == queue:
            left.quota[slot_pool] -= count
        else:
            left.lendable[slot_pool] -= count
            left.borrow[SlotPool(queue, slot_pool.flavor)] -= count

    def _borrow(self, uids: Iterable[str], count: int) -> None:
        """Counts the borrowed slots of these claims again (1), or as free (-1)."""
        for uid in uids:
            self._take(self._demands[uid].queue, self._borrowed[uid], count)

    def _nominate(self, uid: str) -> NominatedSlot | None:
        queue, candidates, left = self._demands[uid].queue, self._candidates[uid], self._left
        name, gang = self._claims[uid].name, self._claims[uid].gang
        slot_pools = (
            self._entitlements.slot_pools[odcr_id] for odcr_id in (*candidates.own, *candidates.lenders)
        )
        for slot_pool in dict.fromkeys(slot_pools):
            ids = candidates.own if slot_pool.owner == queue else candidates.lenders
            reach = tuple(odcr_id for odcr_id in ids if self._entitlements.slot_pools[odcr_id] == slot_pool)
            if any(left.free[odcr_id] > 0 for odcr_id in reach) and self._has_room(slot_pool, queue):
                continue  # free slots with room: no holder needs to give one back
            borrowers = left.borrowers.get(slot_pool, ())
            places = sorted(range(len(borrowers)), key=lambda place: borrowers[place].evicted_for != name)
            for place in places:
                borrower = borrowers[place]
                if borrower.odcr_id and borrower.odcr_id not in reach:
                    continue
                # A cluster that is evicted for one claim of a gang is evicted for the whole gang.
                other = self._gang_by_name.get(borrower.evicted_for)
                if borrower.evicted_for != name and other is not None and (not other or other != gang):
                    continue
                if (spent := self._reclaim_cost(borrower, uid, slot_pool)) is None:
                    continue
                if spent is slot_pool:
                    left.quota[slot_pool] -= 1
                elif spent:
                    left.borrow[spent] -= 1
                left.borrowers[slot_pool] = (*borrowers[:place], *borrowers[place + 1 :])
                return NominatedSlot(slot_pool=slot_pool, odcr_ids=reach, queue=queue)
        return None

    def _has_room(self, slot_pool: SlotPool, queue: str) -> bool:
        if slot_pool.owner == queue:
            return self._left.room[slot_pool] > 0
        return self._lendable(slot_pool) > 0 and self._left.borrow[SlotPool(queue, slot_pool.flavor)] > 0

    def _lendable(self, slot_pool: SlotPool) -> int:
        return min(self._left.lendable[slot_pool], self._left.room[slot_pool])

    def _reclaim_cost(
        self, borrower: Borrower, uid: str, slot_pool: SlotPool
    ) -> SlotPool | Literal[False] | None:
        """The quota (the slot pool) or the borrowing limit that the claim uses up with a borrower's slot.

        False if it uses up neither; None if the borrower does not give its slot to the claim.
        """
        claim, rule, left = self._claims[uid], self._entitlements.rule(uid), self._left
        queue, waits = self._demands[uid].queue, not self._demands[uid].rank.falls_back
        decided = borrower.terminating and borrower.evicted_for == claim.name
        own = slot_pool.owner == queue
        promised = left.promised[slot_pool]
        if not decided and (left.room[slot_pool] if own else self._lendable(slot_pool)) < promised:
            return None  # its slot would not be free after its eviction
        if borrower.queue == queue:
            lower = outranked(rule.within, borrower.priority, claim.priority)
            return False if decided or (waits and lower) else None
        if own:
            gives = gives_back(rule, borrower, claim.priority)
            return slot_pool if gives and left.quota[slot_pool] > promised else None
        limit = SlotPool(queue, slot_pool.flavor)
        gives = waits and rule.reclaim != "Never" and borrower.queue != slot_pool.owner
        gives = decided or (gives and below_threshold(rule, borrower.priority, claim.priority))
        return limit if gives and left.borrow[limit] > 0 else None
