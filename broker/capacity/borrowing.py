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
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Literal, NamedTuple

from broker.capacity.entitlement import (
    Borrower,
    Entitlements,
    NominatedSlot,
    SlotAvailability,
    SlotPool,
)
from broker.capacity.flow import Flow, FlowState
from broker.capacity.model import Claim, Inventory
from broker.capacity.option_catalog import CandidateOptions
from broker.capacity.problem import ClaimDemand, in_rank_order
from broker.quota.candidates import below_threshold, outranked


class _Kind(NamedTuple):
    """Takers with equal choices: slots of a flavor that others lend to a queue."""

    queue: str
    flavor: str
    slots: tuple[str, ...]


@dataclass(slots=True)
class _PoolAvailability:
    """The rest of a lot's availability in this plan.

    `promised`: slots of claims for which quota is held, and that find neither a slot nor a victim.
    """

    quota: int
    room: int
    lendable: int
    promised: int = 0


class _AllocationState(NamedTuple):
    """The state that `BorrowAllocator` restores if a gang cannot be whole."""

    flow: FlowState[_Kind, str]
    left: dict[SlotPool, _PoolAvailability]
    borrow: dict[SlotPool, int]
    borrowers: dict[SlotPool, list[Borrower]]
    kept: Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrowed:
    """The result for the claims (by uid) that the plan so far gave no slot.

    `dealt`: the reservation of each claim that has a slot now; `whole`: gangs that launch thereby;
    `awaited`: the slots that claims wait to get back; `kept`: the reservation of each claim that keeps a
    slot while its gang waits.
    """

    dealt: Mapping[str, str] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    awaited: Mapping[str, NominatedSlot] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)


def lend(
    claims: Mapping[str, Claim],
    wishes: Mapping[str, ClaimDemand],
    prospects: Mapping[str, CandidateOptions],
    entitlements: Entitlements,
    inventory: Inventory,
    *,
    dealt: Mapping[str, str],
    absent: frozenset[str],
) -> Borrowed:
    """The result for claims without a slot.

    A claim with held quota that neither gets nor awaits a slot keeps its entitlement. The allocation is
    repeated without such claims until there are no more.
    """
    idle: frozenset[str] = frozenset()
    while True:
        lent = BorrowAllocator(
            claims, wishes, prospects, entitlements, inventory, dealt=dealt, absent=absent, idle=idle
        ).run()
        served = dealt.keys() | lent.dealt.keys() | lent.awaited.keys()
        waits = entitlements.held & wishes.keys()
        found = frozenset(uid for uid in waits if uid not in served and prospects[uid].own)
        if not lent.awaited or found <= idle:
            return lent
        idle |= found


class BorrowAllocator:
    """Allocates borrowed and awaited slots to claims without one. `absent` are gangs with missing slots."""

    def __init__(
        self,
        claims: Mapping[str, Claim],
        wishes: Mapping[str, ClaimDemand],
        prospects: Mapping[str, CandidateOptions],
        entitlements: Entitlements,
        inventory: Inventory,
        *,
        dealt: Mapping[str, str],
        absent: frozenset[str],
        idle: frozenset[str] = frozenset(),
    ) -> None:
        """`idle`: claims that borrow nothing here, though quota is held for them."""
        self._claims = claims
        self._wishes = wishes
        self._prospects = prospects
        self._entitlements = entitlements
        self._inventory = inventory
        self._absent = absent
        self._dealt = Counter(dealt.values())
        # Nominated claims got slots of other owners before this.
        borrowed = Counter(
            SlotPool(queue, lot.flavor)
            for uid, odcr_id in dealt.items()
            if (lot := entitlements.lots.get(odcr_id)) and (queue := entitlements.draws[uid]) != lot.owner
        )
        self._lent_to = Counter(
            lot
            for uid, odcr_id in dealt.items()
            if (lot := entitlements.lots.get(odcr_id)) and entitlements.draws[uid] != lot.owner
        )
        self._names = {claims[uid].name: claims[uid].gang for uid in wishes if uid not in dealt}
        self._waiting = [
            uid for uid in wishes if uid not in dealt and uid not in idle and self._concerned(uid)
        ]
        self._ids = entitlements.by_lot()
        self._left = {lot: self._after(lot, entitlements.of(lot)) for lot in self._ids}
        self._borrow = {lot: count - borrowed[lot] for lot, count in entitlements.borrow.items()}
        self._borrowers = {lot: list(entitlements.of(lot).borrowers) for lot in self._ids}
        self._kinds = {uid: self._kinds_of(uid) for uid in self._waiting}
        # A claim borrows first in the lot that victims left for it: elsewhere they may have left for another
        # claim.
        self._at_first = {
            uid: self._kinds_of(uid, made)
            for uid in self._waiting
            if not wishes[uid].gang and (made := entitlements.nominated.get(uid)) is not None
        }
        edges = {
            kind: kind.slots
            for some in (self._kinds, self._at_first)
            for kinds in some.values()
            for kind in kinds
        }
        self._kept: Counter[str] = Counter()
        self._lendable = frozenset(slot for slots in edges.values() for slot in slots)
        self._flow: Flow[_Kind, str] = Flow(
            edges, {slot: inventory.free(slot) - self._dealt[slot] for slot in self._lendable}
        )
        for lot in self._left:
            self._close(lot)
        self._lent: dict[_Kind, list[str]] = defaultdict(list)
        self._own: dict[str, str] = {}
        self._whole: set[str] = set()
        self._awaited: dict[str, NominatedSlot] = {}
        self._keeps: dict[str, str] = {}
        for uid in idle:
            self._promise(uid)

    def run(self) -> Borrowed:
        items = in_rank_order(self._waiting, self._wishes, gangs=self._absent)
        for gang, uids in sorted(items, key=self._turn):
            if not self._take(gang, uids):
                self._wait(gang, uids)
        got = {uid for uids in self._lent.values() for uid in uids}
        for uid in [uid for uid in self._at_first if uid not in got]:
            self._take_idle(uid)
        lent = {
            uid: odcr_id
            for kind, uids in self._lent.items()
            for uid, odcr_id in zip(uids, _units(self._flow.taken(kind)), strict=True)
        }
        return Borrowed(
            dealt=lent | self._own, whole=frozenset(self._whole), awaited=self._awaited, kept=self._keeps
        )

    def _turn(self, item: tuple[str, Sequence[str]]) -> tuple[bool, bool]:
        """Nominated claims come first, then those within quota."""
        _, uids = item
        later = not any(uid in self._entitlements.nominated for uid in uids)
        return later, not any(map(self._in_quota, uids))

    def _concerned(self, uid: str) -> bool:
        prospect = self._prospects[uid]
        some = prospect.lent or prospect.own or prospect.others
        return bool(some) or self._wishes[uid].gang in self._absent

    def _after(self, lot: SlotPool, terms: SlotAvailability) -> _PoolAvailability:
        """A lot's availability after the slots that claims got in the plan so far."""
        taken, lent = sum(self._dealt[odcr_id] for odcr_id in self._ids[lot]), self._lent_to[lot]
        room = terms.room - taken
        return _PoolAvailability(
            quota=terms.quota - taken + lent, room=room, lendable=min(terms.lendable - lent, room)
        )

    def _promise(self, uid: str) -> None:
        """Counts the entitlement of a claim that finds no slot, as the decision about slots does."""
        for lot in {self._entitlements.lots[each] for each in self._prospects[uid].own}:
            left = self._left[lot]
            if left.quota > left.promised:
                left.promised += 1
                return

    def _free(self, odcr_id: str) -> int:
        lent = self._flow.holds(odcr_id) if odcr_id in self._lendable else 0
        return self._inventory.free(odcr_id) - self._dealt[odcr_id] - self._kept[odcr_id] - lent

    def _kinds_of(self, uid: str, lot: SlotPool | None = None) -> tuple[_Kind, ...]:
        """One kind for each flavor, so that every borrowing limit holds. `lot`: only this one."""
        flavors: dict[str, list[str]] = defaultdict(list)
        for slot in self._prospects[uid].lent:
            if lot in (None, self._entitlements.lots[slot]):
                flavors[self._entitlements.lots[slot].flavor].append(slot)
        queue = self._entitlements.draws.get(uid, "")
        return tuple(_Kind(queue, flavor, tuple(slots)) for flavor, slots in flavors.items())

    def _in_quota(self, uid: str) -> bool:
        lots = {self._entitlements.lots[each] for each in self._prospects[uid].own}
        return any(self._left[lot].quota > 0 for lot in lots)

    def _take(self, gang: str, uids: Sequence[str]) -> bool:
        """Takes slots for these claims now; for a gang, for all its claims that need one."""
        before = self._save() if gang else None
        lent: list[tuple[_Kind, str]] = []
        own: dict[str, str] = {}
        for uid in uids:
            if gang and (slot := self._keep(uid)):
                own[uid] = slot
            elif kind := self._borrowed(uid):
                lent.append((kind, uid))
            elif not gang:
                return False
            elif before is not None and not self._wishes[uid].rank.falls_back:
                self._restore(before)
                return False
        for kind, uid in lent:
            self._lent[kind].append(uid)
        self._own |= own
        self._whole |= {gang} if gang else set()
        return True

    def _keep(self, uid: str) -> str:
        """A free slot that no other queue has to lend: of the claim's own reservation, or without an
        owner.
        """
        for slot in self._prospects[uid].slots:
            lot = self._entitlements.lots.get(slot)
            if self._free(slot) <= 0 or (lot is not None and self._left[lot].room <= 0):
                continue
            self._kept[slot] += 1
            if lot is not None:
                self._left[lot].room -= 1
                self._left[lot].quota -= 1
                self._left[lot].lendable = min(self._left[lot].lendable, self._left[lot].room)
                self._close(lot)
            if slot in self._lendable:
                self._flow.narrow(slot, self._free(slot))
            return slot
        return ""

    def _keep_lent(self, uid: str) -> str:
        """A free slot of another owner, if victims left it for this claim."""
        lot = self._entitlements.nominated.get(uid)
        if lot is None or lot.owner == self._entitlements.draws.get(uid) or self._borrowed(uid) is None:
            return ""
        return self._flow.filled or ""

    def _take_idle(self, uid: str) -> None:
        """A slot that is left over in this plan, for a claim that waits for its nominated one."""
        if kind := self._borrowed(uid, self._kinds[uid]):
            self._lent[kind].append(uid)
            self._awaited.pop(uid, None)

    def _borrowed(self, uid: str, kinds: Sequence[_Kind] | None = None) -> _Kind | None:
        for kind in kinds if kinds is not None else self._at_first.get(uid, self._kinds[uid]):
            limit = SlotPool(kind.queue, kind.flavor)
            if self._borrow.get(limit, 0) > 0 and self._flow.add(kind):
                assert self._flow.filled is not None
                lot = self._entitlements.lots[self._flow.filled]
                self._borrow[limit] -= 1
                self._left[lot].room -= 1
                self._left[lot].lendable = min(self._left[lot].lendable - 1, self._left[lot].room)
                self._close(lot)
                return kind
        return None

    def _wait(self, gang: str, uids: Sequence[str]) -> None:
        """Nominates slots for these claims. A gang keeps the other slots it has found, so that no claim
        borrows them.
        """
        before = self._save() if gang else None
        found: dict[str, NominatedSlot] = {}
        keeps: dict[str, str] = {}
        for uid in uids:
            if gang and (slot := self._keep(uid) or self._keep_lent(uid)):
                keeps[uid] = slot
                continue
            if back := self._back(uid):
                found[uid] = back
            elif before is not None and not self._wishes[uid].rank.falls_back:
                self._restore(before)
                return
        self._awaited |= found
        if found:
            self._keeps |= keeps

    def _back(self, uid: str) -> NominatedSlot | None:
        queue, prospect = self._entitlements.draws.get(uid, ""), self._prospects[uid]
        lots = (self._entitlements.lots[each] for each in (*prospect.own, *prospect.others))
        for lot in dict.fromkeys(lots):
            ids = prospect.own if lot.owner == queue else prospect.others
            reach = tuple(each for each in ids if self._entitlements.lots[each] == lot)
            if any(self._free(each) > 0 for each in reach) and self._has_room(lot, queue):
                continue  # free slots with room: no holder is in its way
            borrowers = self._borrowers[lot]
            name = self._claims[uid].name
            places = enumerate(borrowers)
            for place, each in sorted(places, key=lambda item: (item[1].leaves_for != name, item[0])):
                if each.odcr_id and each.odcr_id not in reach:
                    continue
                # A cluster that leaves for one claim of a gang leaves for the whole gang.
                gang = self._names.get(each.leaves_for)
                if (
                    each.leaves_for != name
                    and gang is not None
                    and (not gang or gang != self._claims[uid].gang)
                ):
                    continue
                if (spends := self._gives(each, uid, lot, queue)) is None:
                    continue
                if spends is lot:
                    self._left[lot].quota -= 1
                elif spends:
                    self._borrow[spends] -= 1
                self._borrowers[lot] = [*borrowers[:place], *borrowers[place + 1 :]]
                return NominatedSlot(lot=lot, odcr_ids=reach, queue=queue)
        return None

    def _has_room(self, lot: SlotPool, queue: str) -> bool:
        left = self._left[lot]
        if lot.owner == queue:
            return left.room > 0
        return left.lendable > 0 and self._borrow.get(SlotPool(queue, lot.flavor), 0) > 0

    def _gives(self, each: Borrower, uid: str, lot: SlotPool, queue: str) -> SlotPool | Literal[False] | None:
        """Whether a holder of a slot of the lot gives it to this claim. None: no. Otherwise the quota (the
        lot) or the borrowing limit that this uses; False: neither.
        """
        claim, rule = self._claims[uid], self._entitlements.rule(uid)
        waits = not self._wishes[uid].rank.falls_back
        decided = each.coming and each.leaves_for == claim.name
        left = self._left[lot]
        if not decided and (left.room if lot.owner == queue else left.lendable) < left.promised:
            return None  # its slot would not be free after it left
        if each.queue == queue:
            lower = outranked(rule.within, each.priority, claim.priority)
            return False if decided or (waits and lower) else None
        if lot.owner == queue:
            gives = each.coming or outranked(rule.reclaim, each.priority, claim.priority)
            return lot if gives and left.quota > left.promised else None
        limit = SlotPool(queue, lot.flavor)
        gives = waits and rule.reclaim != "Never" and each.queue != lot.owner
        gives = decided or (gives and below_threshold(rule, each.priority, claim.priority))
        return limit if gives and self._borrow.get(limit, 0) > 0 else None

    def _close(self, lot: SlotPool) -> None:
        """Stops borrowing from a lot that is used up, or not lent further."""
        if self._left[lot].lendable <= 0:
            for odcr_id in self._ids[lot]:
                if odcr_id in self._lendable:
                    self._flow.narrow(odcr_id, 0)

    def _save(self) -> _AllocationState:
        left = {lot: replace(each) for lot, each in self._left.items()}
        return _AllocationState(
            self._flow.state(), left, dict(self._borrow), dict(self._borrowers), Counter(self._kept)
        )

    def _restore(self, saved: _AllocationState) -> None:
        flow, self._left, self._borrow, self._borrowers, self._kept = saved
        self._flow.restore(flow)


def _units(taken: Mapping[str, int]) -> Iterator[str]:
    return chain.from_iterable(repeat(slot, count) for slot, count in taken.items())
