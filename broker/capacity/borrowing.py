"""Allocates owned slots: to owners within quota, then to borrowers; else nominates slots to reclaim.

Invariant: no reservation's claims take more of its slots than its quota has room for, and every borrowing
and lending limit holds. Owners come first for their own slots. Borrowers get the slots that the owner's
claims of the same plan leave. An owner's gang that waits to be whole keeps the slots it has found. Borrowers
are served in order of rank, each if that leaves out no other (see `flow`), gangs whole or not at all.

A claim within its reservation's quota waits for a lent slot instead of falling back, as long as a borrower
may be preempted. The rule is `reclaimWithinCohort`, lowest priority first (Kueue, "Preemption").

A claim that cannot fall back waits also for claims of lower priority: of its own reservation
(`withinClusterQueue`), or, if it would borrow, of another borrower (`borrowWithinCohort`). These two rules
preempt no claim for one that can fall back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Literal

from broker.capacity.borrowing_model import AllocationState, Borrowed, PoolAvailability, SlotChoices
from broker.capacity.entitlement import (
    Borrower,
    Entitlements,
    NominatedSlot,
    SlotAvailability,
    SlotPool,
    gives_back,
)
from broker.capacity.flow import Flow
from broker.capacity.model import Claim, Inventory
from broker.capacity.option_catalog import CandidateOptions
from broker.capacity.problem import ClaimDemand, in_rank_order
from broker.quota.candidates import below_threshold, outranked


def allocate_borrowed(
    claims: Mapping[str, Claim],
    demands: Mapping[str, ClaimDemand],
    candidates: Mapping[str, CandidateOptions],
    entitlements: Entitlements,
    inventory: Inventory,
    *,
    allocated: Mapping[str, str],
    incomplete_gangs: frozenset[str],
) -> Borrowed:
    """The result for claims without a slot.

    A claim with held quota that gets no slot and no nomination keeps its entitlement. The allocation is
    repeated without such claims until there are no more.
    """
    unserved: frozenset[str] = frozenset()
    while True:
        borrowed = BorrowAllocator(
            claims,
            demands,
            candidates,
            entitlements,
            inventory,
            allocated=allocated,
            incomplete_gangs=incomplete_gangs,
            unserved=unserved,
        ).run()
        served = allocated.keys() | borrowed.allocated.keys() | borrowed.nominated.keys()
        waits = entitlements.held & demands.keys()
        unserved_now = frozenset(uid for uid in waits if uid not in served and candidates[uid].own)
        if not borrowed.nominated or unserved_now <= unserved:
            return borrowed
        unserved |= unserved_now


class BorrowAllocator:
    """Allocates and nominates slots for claims without one. `incomplete_gangs` have missing slots."""

    def __init__(
        self,
        claims: Mapping[str, Claim],
        demands: Mapping[str, ClaimDemand],
        candidates: Mapping[str, CandidateOptions],
        entitlements: Entitlements,
        inventory: Inventory,
        *,
        allocated: Mapping[str, str],
        incomplete_gangs: frozenset[str],
        unserved: frozenset[str] = frozenset(),
    ) -> None:
        """`unserved`: claims that borrow nothing here, though quota is held for them."""
        self._claims = claims
        self._demands = demands
        self._candidates = candidates
        self._entitlements = entitlements
        self._inventory = inventory
        self._incomplete_gangs = incomplete_gangs
        self._allocated = Counter(allocated.values())
        # Nominated claims got slots of other owners before this.
        borrowed = Counter(
            SlotPool(queue, slot_pool.flavor)
            for uid, odcr_id in allocated.items()
            if (slot_pool := entitlements.slot_pools.get(odcr_id))
            and (queue := entitlements.draws[uid]) != slot_pool.owner
        )
        self._lent_counts = Counter(
            slot_pool
            for uid, odcr_id in allocated.items()
            if (slot_pool := entitlements.slot_pools.get(odcr_id))
            and entitlements.draws[uid] != slot_pool.owner
        )
        self._gang_by_name = {claims[uid].name: claims[uid].gang for uid in demands if uid not in allocated}
        self._waiting = [
            uid for uid in demands if uid not in allocated and uid not in unserved and self._concerned(uid)
        ]
        self._ids = entitlements.by_slot_pool()
        self._remaining = {
            slot_pool: self._after(slot_pool, entitlements.of(slot_pool)) for slot_pool in self._ids
        }
        self._borrow = {
            slot_pool: count - borrowed[slot_pool] for slot_pool, count in entitlements.borrow.items()
        }
        self._borrowers = {slot_pool: list(entitlements.of(slot_pool).borrowers) for slot_pool in self._ids}
        self._choices = {uid: self._choices_of(uid) for uid in self._waiting}
        # A claim borrows first in the slot pool with victims evicted for it. Victims of another pool may have
        # been evicted for another claim.
        self._at_first = {
            uid: self._choices_of(uid, nominated_pool)
            for uid in self._waiting
            if not demands[uid].gang and (nominated_pool := entitlements.nominated.get(uid)) is not None
        }
        edges = {
            choices: choices.slots
            for choices_by_claim in (self._choices, self._at_first)
            for claim_choices in choices_by_claim.values()
            for choices in claim_choices
        }
        self._kept: Counter[str] = Counter()
        self._borrowable_ids = frozenset(slot for slots in edges.values() for slot in slots)
        self._flow: Flow[SlotChoices, str] = Flow(
            edges, {slot: inventory.free(slot) - self._allocated[slot] for slot in self._borrowable_ids}
        )
        for slot_pool in self._remaining:
            self._close(slot_pool)
        self._borrowing: dict[SlotChoices, list[str]] = defaultdict(list)
        self._own: dict[str, str] = {}
        self._whole: set[str] = set()
        self._nominated: dict[str, NominatedSlot] = {}
        self._keeps: dict[str, str] = {}
        for uid in unserved:
            self._promise(uid)

    def run(self) -> Borrowed:
        items = in_rank_order(self._waiting, self._demands, gangs=self._incomplete_gangs)
        for gang, uids in sorted(items, key=self._turn):
            if not self._take(gang, uids):
                self._nominate_unit(gang, uids)
        served = {uid for uids in self._borrowing.values() for uid in uids}
        for uid in [uid for uid in self._at_first if uid not in served]:
            self._take_idle(uid)
        borrowed = {
            uid: odcr_id
            for choices, uids in self._borrowing.items()
            for uid, odcr_id in zip(uids, _units(self._flow.taken(choices)), strict=True)
        }
        return Borrowed(
            allocated=borrowed | self._own,
            whole=frozenset(self._whole),
            nominated=self._nominated,
            kept=self._keeps,
        )

    def _turn(self, item: tuple[str, Sequence[str]]) -> tuple[bool, bool]:
        """Nominated claims come first, then those within quota."""
        _, uids = item
        later = not any(uid in self._entitlements.nominated for uid in uids)
        return later, not any(map(self._in_quota, uids))

    def _concerned(self, uid: str) -> bool:
        candidates = self._candidates[uid]
        reachable = candidates.borrowable or candidates.own or candidates.lenders
        return bool(reachable) or self._demands[uid].gang in self._incomplete_gangs

    def _after(self, slot_pool: SlotPool, availability: SlotAvailability) -> PoolAvailability:
        """A slot pool's availability after the slots that claims got in the plan so far."""
        taken = sum(self._allocated[odcr_id] for odcr_id in self._ids[slot_pool])
        lent_count = self._lent_counts[slot_pool]
        room = availability.room - taken
        return PoolAvailability(
            quota=availability.quota - taken + lent_count,
            room=room,
            lendable=min(availability.lendable - lent_count, room),
        )

    def _promise(self, uid: str) -> None:
        """Counts the entitlement of a claim that finds no slot, as the decision about slots does."""
        for slot_pool in {self._entitlements.slot_pools[odcr_id] for odcr_id in self._candidates[uid].own}:
            remaining = self._remaining[slot_pool]
            if remaining.quota > remaining.promised:
                remaining.promised += 1
                return

    def _free(self, odcr_id: str) -> int:
        borrowed = self._flow.holds(odcr_id) if odcr_id in self._borrowable_ids else 0
        return self._inventory.free(odcr_id) - self._allocated[odcr_id] - self._kept[odcr_id] - borrowed

    def _choices_of(self, uid: str, slot_pool: SlotPool | None = None) -> tuple[SlotChoices, ...]:
        """One `SlotChoices` for each flavor, so that every borrowing limit holds.

        `slot_pool`: only this one.
        """
        flavors: dict[str, list[str]] = defaultdict(list)
        for slot in self._candidates[uid].borrowable:
            if slot_pool in (None, self._entitlements.slot_pools[slot]):
                flavors[self._entitlements.slot_pools[slot].flavor].append(slot)
        queue = self._entitlements.draws.get(uid, "")
        return tuple(SlotChoices(queue, flavor, tuple(slots)) for flavor, slots in flavors.items())

    def _in_quota(self, uid: str) -> bool:
        slot_pools = {self._entitlements.slot_pools[odcr_id] for odcr_id in self._candidates[uid].own}
        return any(self._remaining[slot_pool].quota > 0 for slot_pool in slot_pools)

    def _take(self, gang: str, uids: Sequence[str]) -> bool:
        """Takes slots for these claims now; for a gang, for all its claims that need one."""
        before = self._save() if gang else None
        borrowed: list[tuple[SlotChoices, str]] = []
        own: dict[str, str] = {}
        for uid in uids:
            if gang and (slot := self._keep(uid)):
                own[uid] = slot
            elif choices := self._borrow_slot(uid):
                borrowed.append((choices, uid))
            elif not gang:
                return False
            elif before is not None and not self._demands[uid].rank.falls_back:
                self._restore(before)
                return False
        for choices, uid in borrowed:
            self._borrowing[choices].append(uid)
        self._own |= own
        self._whole |= {gang} if gang else set()
        return True

    def _keep(self, uid: str) -> str:
        """A free slot that no other queue has to lend: of the claim's own reservation, or without an
        owner.
        """
        for slot in self._candidates[uid].slots:
            slot_pool = self._entitlements.slot_pools.get(slot)
            if self._free(slot) <= 0 or (slot_pool is not None and self._remaining[slot_pool].room <= 0):
                continue
            self._kept[slot] += 1
            if slot_pool is not None:
                self._remaining[slot_pool].take(own=True)
                self._close(slot_pool)
            if slot in self._borrowable_ids:
                self._flow.narrow(slot, self._free(slot))
            return slot
        return ""

    def _keep_borrowed(self, uid: str) -> str:
        """A free slot of another owner, if victims were evicted from it for this claim."""
        slot_pool = self._entitlements.nominated.get(uid)
        if (
            slot_pool is None
            or slot_pool.owner == self._entitlements.draws.get(uid)
            or self._borrow_slot(uid) is None
        ):
            return ""
        return self._flow.filled or ""

    def _take_idle(self, uid: str) -> None:
        """A slot that is left over in this plan, for a claim that waits for its nominated one."""
        if choices := self._borrow_slot(uid, self._choices[uid]):
            self._borrowing[choices].append(uid)
            self._nominated.pop(uid, None)

    def _borrow_slot(
        self, uid: str, claim_choices: Sequence[SlotChoices] | None = None
    ) -> SlotChoices | None:
        for choices in (
            claim_choices if claim_choices is not None else self._at_first.get(uid, self._choices[uid])
        ):
            limit = SlotPool(choices.queue, choices.flavor)
            if self._borrow.get(limit, 0) > 0 and self._flow.add(choices):
                assert self._flow.filled is not None
                slot_pool = self._entitlements.slot_pools[self._flow.filled]
                self._borrow[limit] -= 1
                self._remaining[slot_pool].take(own=False)
                self._close(slot_pool)
                return choices
        return None

    def _nominate_unit(self, gang: str, uids: Sequence[str]) -> None:
        """Nominates slots for these claims. A gang keeps the other slots it has found, so that no claim
        borrows them.
        """
        before = self._save() if gang else None
        nominated: dict[str, NominatedSlot] = {}
        keeps: dict[str, str] = {}
        for uid in uids:
            if gang and (slot := self._keep(uid) or self._keep_borrowed(uid)):
                keeps[uid] = slot
                continue
            if nominated_slot := self._nominate(uid):
                nominated[uid] = nominated_slot
            elif before is not None and not self._demands[uid].rank.falls_back:
                self._restore(before)
                return
        self._nominated |= nominated
        if nominated:
            self._keeps |= keeps

    def _nominate(self, uid: str) -> NominatedSlot | None:
        queue, candidates = self._entitlements.draws.get(uid, ""), self._candidates[uid]
        slot_pools = (
            self._entitlements.slot_pools[odcr_id] for odcr_id in (*candidates.own, *candidates.lenders)
        )
        for slot_pool in dict.fromkeys(slot_pools):
            ids = candidates.own if slot_pool.owner == queue else candidates.lenders
            reach = tuple(odcr_id for odcr_id in ids if self._entitlements.slot_pools[odcr_id] == slot_pool)
            if any(self._free(odcr_id) > 0 for odcr_id in reach) and self._has_room(slot_pool, queue):
                continue  # free slots with room: no holder needs to give one back
            borrowers = self._borrowers[slot_pool]
            name = self._claims[uid].name
            places = enumerate(borrowers)
            for place, borrower in sorted(places, key=lambda item: (item[1].evicted_for != name, item[0])):
                if borrower.odcr_id and borrower.odcr_id not in reach:
                    continue
                # A cluster that is evicted for one claim of a gang is evicted for the whole gang.
                gang = self._gang_by_name.get(borrower.evicted_for)
                if (
                    borrower.evicted_for != name
                    and gang is not None
                    and (not gang or gang != self._claims[uid].gang)
                ):
                    continue
                if (spent := self._reclaim_cost(borrower, uid, slot_pool, queue)) is None:
                    continue
                if spent is slot_pool:
                    self._remaining[slot_pool].quota -= 1
                elif spent:
                    self._borrow[spent] -= 1
                self._borrowers[slot_pool] = [*borrowers[:place], *borrowers[place + 1 :]]
                return NominatedSlot(slot_pool=slot_pool, odcr_ids=reach, queue=queue)
        return None

    def _has_room(self, slot_pool: SlotPool, queue: str) -> bool:
        remaining = self._remaining[slot_pool]
        if slot_pool.owner == queue:
            return remaining.room > 0
        return remaining.lendable > 0 and self._borrow.get(SlotPool(queue, slot_pool.flavor), 0) > 0

    def _reclaim_cost(
        self, borrower: Borrower, uid: str, slot_pool: SlotPool, queue: str
    ) -> SlotPool | Literal[False] | None:
        """The quota (the slot pool) or the borrowing limit that the claim uses up with a borrower's slot.

        False if it uses up neither; None if the borrower does not give its slot to the claim.
        """
        claim, rule = self._claims[uid], self._entitlements.rule(uid)
        waits = not self._demands[uid].rank.falls_back
        decided = borrower.terminating and borrower.evicted_for == claim.name
        remaining = self._remaining[slot_pool]
        if (
            not decided
            and (remaining.room if slot_pool.owner == queue else remaining.lendable) < remaining.promised
        ):
            return None  # its slot would not be free after its eviction
        if borrower.queue == queue:
            lower = outranked(rule.within, borrower.priority, claim.priority)
            return False if decided or (waits and lower) else None
        if slot_pool.owner == queue:
            gives = gives_back(rule, borrower, claim.priority)
            return slot_pool if gives and remaining.quota > remaining.promised else None
        limit = SlotPool(queue, slot_pool.flavor)
        gives = waits and rule.reclaim != "Never" and borrower.queue != slot_pool.owner
        gives = decided or (gives and below_threshold(rule, borrower.priority, claim.priority))
        return limit if gives and self._borrow.get(limit, 0) > 0 else None

    def _close(self, slot_pool: SlotPool) -> None:
        """Stops borrowing from a slot pool that is used up, or not lent further."""
        if self._remaining[slot_pool].lendable <= 0:
            for odcr_id in self._ids[slot_pool]:
                if odcr_id in self._borrowable_ids:
                    self._flow.narrow(odcr_id, 0)

    def _save(self) -> AllocationState:
        remaining = {slot_pool: replace(availability) for slot_pool, availability in self._remaining.items()}
        return AllocationState(
            self._flow.state(), remaining, dict(self._borrow), dict(self._borrowers), Counter(self._kept)
        )

    def _restore(self, saved: AllocationState) -> None:
        flow, self._remaining, self._borrow, self._borrowers, self._kept = saved
        self._flow.restore(flow)


def _units(taken: Mapping[str, int]) -> Iterator[str]:
    return chain.from_iterable(repeat(slot, count) for slot, count in taken.items())
