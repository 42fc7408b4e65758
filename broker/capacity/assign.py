"""Assigns slots to demands: own and unowned slots, then lent ones, then both at once if that is better.

Invariant: a gang that binds is whole, or it has no slot; the gangs that wait are named. A slot that is held
for a gang goes to no claim of lower priority that the gang could not have it back from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from broker.capacity.allocation import allocate
from broker.capacity.borrowing import allocate_borrowed
from broker.capacity.borrowing_model import Borrowed
from broker.capacity.entitlement import Entitlements
from broker.capacity.gang_hold import (
    HoldingGang,
    first_come,
    from_borrowers,
    from_its_queue,
    held_for,
    merged,
    without_slots,
)
from broker.capacity.model import Claim, GangHold, Inventory, Solution
from broker.capacity.option_catalog import CandidateOptions
from broker.capacity.problem import ClaimDemand, SlotProblem, problem_of
from broker.capacity.rationing import rationed
from broker.capacity.sharing import share
from broker.capacity.solve import SolvedSlots, solve
from broker.capacity.time_budget import SLOTS, TimeBudget
from providers.model import InstanceType

NO_HOLDERS: Mapping[str, HoldingGang] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedSlots:
    """The reservation of each claim (by uid) that has a slot, and the gangs that wait.

    `borrowed`: the part that owners lend, and the slots that claims wait for. `room`: the slots that could
    be assigned. `kept`: reservations with free slots for nominated gangs, or for gangs that hold them.
    """

    allocated: Mapping[str, str]
    waits: frozenset[str]
    solution: Solution
    room: Inventory
    borrowed: Borrowed = field(default_factory=Borrowed)
    kept: frozenset[str] = frozenset()
    holds: tuple[GangHold, ...] = ()

    nominated_gangs: frozenset[str] = frozenset()  # gangs that wait for slots which others give back


@dataclass(frozen=True, kw_only=True)
class SlotAssigner:
    """Assigns slots to demands of one plan. `claims`: all that wait, by uid."""

    claims: Mapping[str, Claim]
    gangs: Mapping[str, Sequence[Claim]]
    candidates: Mapping[str, CandidateOptions]
    entitlements: Entitlements
    inventory: Inventory
    types: Mapping[str, InstanceType]
    budget: TimeBudget
    timer: Callable[[], float] = field(repr=False)

    def assign(
        self, all_demands: Mapping[str, ClaimDemand], holders: Mapping[str, HoldingGang] = NO_HOLDERS
    ) -> AssignedSlots:
        """`holders`: gangs that wait, and hold the free slots that they could use."""
        entitlements = self.entitlements
        demands = all_demands
        if holders:
            demands = {uid: demand for uid, demand in all_demands.items() if demand.gang not in holders}
        room = rationed(all_demands, entitlements, self.inventory) if entitlements.owned else self.inventory
        held = self._held(demands, first_come(holders.values()), room)
        room = without_slots(room, _sum(held))
        problem, solved = self._solved(demands, room)
        incomplete_gangs = solved.incomplete_gangs
        kept: frozenset[str] = frozenset()
        uids = entitlements.nominated.keys() & demands.keys()
        if nominated := frozenset(demands[uid].gang for uid in uids) & incomplete_gangs:
            # A nominated gang keeps the slots that are already free for it, before all other claims.
            reduced = _kept_for(nominated, demands, room)
            kept = frozenset(
                odcr_id for odcr_id in reduced.debits if reduced.debits[odcr_id] > room.debits.get(odcr_id, 0)
            )
            room = reduced
            rest = {uid: demand for uid, demand in demands.items() if demand.gang not in nominated}
            problem, solved = self._solved(rest, room)
            incomplete_gangs = solved.incomplete_gangs | nominated
        assigned = AssignedSlots(
            allocated=allocate(problem, solved.taken, demands, room),
            waits=incomplete_gangs,
            solution=solved.solution,
            room=room,
            kept=kept,
        )
        unlendable: Mapping[str, Mapping[str, int]] = {}
        if entitlements.owned:
            unlendable = self._held_from_borrowers(first_come(holders.values()), assigned.allocated)
            assigned = self._with_borrowed(demands, assigned, held=_sum(held), unlendable=_sum(unlendable))
        holds = [
            merged(gang, held.get(gang.name, {}), unlendable.get(gang.name, {}))
            for gang in first_come(holders.values())
        ]
        return replace(
            assigned,
            waits=assigned.waits | holders.keys(),
            kept=assigned.kept.union(*(hold.slots for hold in holds)),
            holds=tuple(hold for hold in holds if hold.slots),
        )

    def _solved(self, demands: Mapping[str, ClaimDemand], room: Inventory) -> tuple[SlotProblem, SolvedSlots]:
        problem = problem_of(demands, room, self.types)
        return problem, solve(problem, seconds=max(0.0, self.budget.seconds_left(SLOTS)), timer=self.timer)

    def _held(
        self, demands: Mapping[str, ClaimDemand], holders: Sequence[HoldingGang], room: Inventory
    ) -> dict[str, Mapping[str, int]]:
        """The slots that each gang holds after the claims that it does not outrank have theirs."""
        held: dict[str, Mapping[str, int]] = {}
        for priority, gangs in groupby(holders, key=lambda gang: gang.priority):
            before = {uid: demand for uid, demand in demands.items() if -demand.rank.priority >= priority}
            problem, solved = self._solved(before, room)
            remaining = without_slots(room, Counter(allocate(problem, solved.taken, before, room).values()))
            for gang in gangs:
                slots = held_for(gang, remaining, lendable=from_its_queue(self.entitlements))
                remaining, room = without_slots(remaining, slots), without_slots(room, slots)
                held[gang.name] = slots
        return held

    def _held_from_borrowers(
        self, holders: Sequence[HoldingGang], allocated: Mapping[str, str]
    ) -> dict[str, Mapping[str, int]]:
        """The slots that each gang holds against borrowers, which would not give them back."""
        held: dict[str, Mapping[str, int]] = {}
        remaining = without_slots(self.inventory, Counter(allocated.values()))
        for gang in holders:
            held[gang.name] = held_for(gang, remaining, lendable=from_borrowers(self.entitlements))
            remaining = without_slots(remaining, held[gang.name])
        return held

    def _with_borrowed(
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
        inventory = without_slots(self.inventory, unlendable)
        entitlements, candidates = self.entitlements, self.candidates
        allocated, incomplete_gangs, solution = dict(assigned.allocated), assigned.waits, assigned.solution
        borrowed = allocate_borrowed(
            self.claims,
            demands,
            candidates,
            entitlements,
            inventory,
            allocated=allocated,
            incomplete_gangs=incomplete_gangs,
        )
        on_own_slots = frozenset(allocated)
        allocated |= borrowed.allocated
        if more := len(borrowed.allocated):
            solver = f"{solution.solver}, then lending" if solution.bundles else "lending"
            reserved, bound = solution.reserved + more, solution.bound + more
            solution = replace(solution, solver=solver, reserved=reserved, bound=bound)
        # A borrower in a slot that a gang holds would give it back; another claim in its place might not.
        in_held = {uid for uid, odcr_id in borrowed.allocated.items() if held.get(odcr_id)}
        aside_gangs = {self.claims[uid].gang for uid in (*borrowed.nominated, *in_held)} - {""}
        aside = in_held | {claim.uid for name in aside_gangs for claim in self.gangs[name]}
        used = Counter(allocated.values())
        free = {odcr_id: self.inventory.free(odcr_id) - used[odcr_id] for odcr_id in {*held, *unlendable}}
        still_held = {
            odcr_id: min(free_slots, max(held.get(odcr_id, 0), unlendable.get(odcr_id, 0)))
            for odcr_id, free_slots in free.items()
        }
        shared = share(
            {uid: demand for uid, demand in demands.items() if uid not in aside},
            candidates,
            entitlements,
            without_slots(self.inventory, still_held),
            self.types,
            allocated={uid: odcr_id for uid, odcr_id in allocated.items() if uid not in aside},
            on_own_slots=on_own_slots,
            kept={uid: odcr_id for uid, odcr_id in (allocated | dict(borrowed.kept)).items() if uid in aside},
            nominated={uid: slot.slot_pool for uid, slot in borrowed.nominated.items()},
            seconds=max(0.0, self.budget.seconds_left(SLOTS)),
        )
        if shared is not None:
            allocated = {uid: odcr_id for uid, odcr_id in allocated.items() if uid in aside} | dict(
                shared.allocated
            )
            nominated = {uid: slot for uid, slot in borrowed.nominated.items() if uid not in allocated}
            borrowed = replace(
                borrowed, nominated=nominated, whole=borrowed.whole | shared.whole & incomplete_gangs
            )
            solution = replace(
                solution,
                solver=f"{solution.solver}, then integer programming",
                optimal=solution.optimal and shared.proven,
                reserved=len(allocated),
                bound=max(solution.bound, len(allocated)),
                note="; ".join(filter(None, (solution.note, shared.note))),
            )
        return replace(
            assigned,
            allocated=allocated,
            waits=incomplete_gangs - borrowed.whole,
            borrowed=borrowed,
            solution=solution,
            nominated_gangs=frozenset(self.claims[uid].gang for uid in borrowed.nominated),
        )


def _kept_for(gangs: frozenset[str], demands: Mapping[str, ClaimDemand], inventory: Inventory) -> Inventory:
    """The inventory without the free slots that these gangs can use."""
    debits = Counter(inventory.debits)
    for demand in demands.values():
        if demand.gang in gangs:
            reduced = replace(inventory, debits=debits)
            if slot := next((odcr_id for odcr_id in demand.slots if reduced.free(odcr_id) > 0), ""):
                debits[slot] += 1
    return replace(inventory, debits=debits)


def _sum(held: Mapping[str, Mapping[str, int]]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for slots in held.values():
        total.update(slots)
    return total
