"""Assigns slots to demands: own and unowned slots, then with the slots that owners lend.

Invariant: a gang that binds is whole, or it has no slot; the gangs that wait are named. A claim that own and
unowned slots serve keeps a slot when slots are lent, though maybe another. A slot that is held for a gang
goes to no claim of lower priority that the gang could not have it back from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby

from broker.capacity.allocation import allocate, matched
from broker.capacity.demand import WaitingClaims
from broker.capacity.entitlement import Entitlements
from broker.capacity.gang_hold import (
    HoldingGang,
    first_come,
    from_borrowers,
    from_its_queue,
    held_for,
    merged,
)
from broker.capacity.inventory import Inventory
from broker.capacity.model import GangHold, Solution
from broker.capacity.nominations import LentSlots, Nominations, nominate
from broker.capacity.problem import NOTHING_HELD, ClaimDemand, problem_of
from broker.capacity.solve import solve
from broker.capacity.supply import LaunchSupply
from broker.capacity.time_budget import SLOTS, TimeBudget

NO_HOLDERS: Mapping[str, HoldingGang] = {}
_Held = Mapping[str, Mapping[str, str]]  # by gang, the reservation of each claim


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedSlots:
    """The reservation of each claim (by uid) that has a slot, and the gangs that wait.

    `nominations`: the slots that claims wait for. `room`: the slots that could be assigned. `kept`:
    reservations with free slots for nominated gangs, or for gangs that hold them.
    """

    allocated: Mapping[str, str]
    waits: frozenset[str]
    solution: Solution
    room: Inventory
    nominations: Nominations = field(default_factory=Nominations)
    kept: frozenset[str] = frozenset()
    holds: tuple[GangHold, ...] = ()

    nominated_gangs: frozenset[str] = frozenset()  # gangs that wait for slots which others give back


@dataclass(frozen=True, kw_only=True)
class SlotAssigner:
    """Assigns slots to demands of one plan."""

    waiting: WaitingClaims
    supply: LaunchSupply
    budget: TimeBudget

    def assign(
        self, all_demands: Mapping[str, ClaimDemand], holders: Mapping[str, HoldingGang] = NO_HOLDERS
    ) -> AssignedSlots:
        """`holders`: gangs that wait, and hold the free slots that they could use."""
        demands = all_demands
        if holders:
            demands = {uid: demand for uid, demand in all_demands.items() if demand.gang not in holders}
        gangs = first_come(holders.values())
        held = self._held(demands, gangs)
        assigned = self._assigned(demands, *self._without(held.values()))
        uids = self.supply.entitlements.nominated.keys() & demands.keys()
        if nominated := frozenset(demands[uid].gang for uid in uids) & assigned.waits:
            # A nominated gang keeps the slots that are already free for it, before all other claims.
            gang_slots = {uid: item.slots for uid, item in demands.items() if item.gang in nominated}
            kept = matched(gang_slots, *self._without(held.values()))
            rest = {uid: demand for uid, demand in demands.items() if demand.gang not in nominated}
            again = self._assigned(rest, *self._without([*held.values(), kept]))
            assigned = replace(again, waits=again.waits | nominated, kept=frozenset(kept.values()))
        unlendable: _Held = {}
        if self.supply.entitlements.owned:
            unlendable = self._held_from_borrowers(gangs, assigned.allocated)
            assigned = self._with_lent(demands, assigned, held=_slots(held), unlendable=_slots(unlendable))
        holds = [
            merged(gang, *(part.get(gang.name, {}).values() for part in (held, unlendable))) for gang in gangs
        ]
        return replace(
            assigned,
            waits=assigned.waits | holders.keys(),
            kept=assigned.kept.union(*(hold.slots for hold in holds)),
            holds=tuple(hold for hold in holds if hold.slots),
        )

    def _assigned(
        self,
        demands: Mapping[str, ClaimDemand],
        room: Inventory,
        entitlements: Entitlements,
        *,
        held: Mapping[str, int] = NOTHING_HELD,
        keeps: Mapping[str, str] | None = None,
    ) -> AssignedSlots:
        """The best assignment. `held`: slots that only borrowers may have; `keeps`: claims with a slot."""
        problem = problem_of(demands, room, self.supply.types, entitlements, held=held, kept=keeps)
        seconds = max(0.0, self.budget.seconds_left(SLOTS))
        solved = solve(problem, seconds=seconds, timer=self.budget.timer)
        return AssignedSlots(
            allocated=allocate(problem, solved.taken, demands, room),
            waits=solved.incomplete_gangs,
            solution=solved.solution,
            room=room,
        )

    def _without(self, taken: Iterable[Mapping[str, str]]) -> tuple[Inventory, Entitlements]:
        """The slots and the entitlements that are left after the slots of these claims."""
        slots = [item for part in taken for item in part.items()]
        draws = self.supply.entitlements.draws
        return (
            self.supply.inventory.taken(Counter(slot for _, slot in slots)),
            self.supply.entitlements.after((draws.get(uid, ""), slot) for uid, slot in slots),
        )

    def _held(self, demands: Mapping[str, ClaimDemand], holders: Sequence[HoldingGang]) -> _Held:
        """The slots that each gang holds after the claims that it does not outrank have theirs."""
        held: dict[str, Mapping[str, str]] = {}
        for priority, gangs in groupby(holders, key=lambda gang: gang.priority):
            before = {uid: demand for uid, demand in demands.items() if -demand.rank.priority >= priority}
            served = self._assigned(before, *self._without(held.values())).allocated
            for gang in gangs:
                left = self._without([served, *held.values()])
                held[gang.name] = held_for(gang, *left, lendable=from_its_queue(self.supply.entitlements))
        return held

    def _held_from_borrowers(self, holders: Sequence[HoldingGang], allocated: Mapping[str, str]) -> _Held:
        """The slots that each gang holds against borrowers, which would not give them back."""
        held: dict[str, Mapping[str, str]] = {}
        for gang in holders:
            left = self._without([allocated, *held.values()])
            held[gang.name] = held_for(gang, *left, lendable=from_borrowers(self.supply.entitlements))
        return held

    def _with_lent(
        self,
        demands: Mapping[str, ClaimDemand],
        assigned: AssignedSlots,
        *,
        held: Mapping[str, int],
        unlendable: Mapping[str, int],
    ) -> AssignedSlots:
        """The same with the slots that owners lend, and with those that claims wait to get back.

        `held`: slots held for gangs against claims of any queue; `unlendable`: against borrowers.
        """
        keeps: dict[str, str] = {}
        inventory = self.supply.inventory.taken(unlendable)
        lent = self._lent(demands, assigned, keeps, inventory, held)
        nominations = self._nominations(demands, assigned, lent, inventory)
        for _ in self.waiting.gangs:  # each may keep slots that were lent
            if not nominations.conflicts or nominations.kept.keys() <= keeps.keys():
                break
            keeps = dict(nominations.kept)
            lent = self._lent(demands, assigned, keeps, inventory, held)
            nominations = self._nominations(demands, assigned, lent, inventory)
        return replace(
            lent,
            nominations=nominations,
            nominated_gangs=frozenset(self.waiting.by_uid[uid].gang for uid in nominations.nominated),
        )

    def _nominations(
        self,
        demands: Mapping[str, ClaimDemand],
        assigned: AssignedSlots,
        lent: AssignedSlots,
        inventory: Inventory,
    ) -> Nominations:
        borrowed = {uid: slot for uid, slot in lent.allocated.items() if uid not in assigned.allocated}
        slots = LentSlots(
            waiting=self.waiting,
            demands=demands,
            entitlements=self.supply.entitlements,
            inventory=inventory,
            allocated=lent.allocated,
            borrowed=borrowed,
            incomplete_gangs=lent.waits,
        )
        return nominate(slots)

    def _lent(
        self,
        demands: Mapping[str, ClaimDemand],
        assigned: AssignedSlots,
        keeps: Mapping[str, str],
        inventory: Inventory,
        held: Mapping[str, int],
    ) -> AssignedSlots:
        """The best assignment with lent slots in which each claim that has a slot keeps one.

        `keeps`: slots of gangs that wait for further ones. A nominated claim may borrow also from other slot
        pools than that of its victims.
        """
        gangs = {self.waiting.by_uid[uid].gang for uid in keeps}
        rest = {uid: demand for uid, demand in demands.items() if not demand.gang or demand.gang not in gangs}
        borrowing = self._borrowing(rest)
        lends = any(self.waiting.candidates[uid].borrowable for uid in rest)
        if not lends or not any(borrowing[uid].slots for uid in rest if uid not in assigned.allocated):
            return assigned
        room = inventory.taken(Counter(keeps.values()))
        _, entitlements = self._without([keeps])
        lent = self._assigned(borrowing, room, entitlements, held=held, keeps=assigned.allocated)
        return replace(
            assigned,
            allocated=lent.allocated,
            waits=lent.waits | (assigned.waits - {demand.gang for demand in rest.values()}),
            solution=_joined(assigned.solution, lent.solution),
        )

    def _borrowing(self, demands: Mapping[str, ClaimDemand]) -> dict[str, ClaimDemand]:
        """The demands with the slots that others may lend."""
        borrowable = {uid: self.waiting.candidates[uid].borrowable for uid in demands}
        return {
            uid: demand._replace(slots=tuple(dict.fromkeys((*demand.slots, *borrowable[uid]))))
            for uid, demand in demands.items()
        }


def _joined(first: Solution, second: Solution) -> Solution:
    """The solution of own slots, and the one that includes lent slots."""
    solver = " and ".join(dict.fromkeys((first.solver, second.solver)))
    return replace(
        second,
        solver=solver,
        optimal=first.optimal and second.optimal,
        seconds=first.seconds + second.seconds,
        note="; ".join(dict.fromkeys(filter(None, (first.note, second.note)))),
        gaps=second.gaps or first.gaps,
    )


def _slots(held: _Held) -> Mapping[str, int]:
    return Counter(chain.from_iterable(slots.values() for slots in held.values()))
