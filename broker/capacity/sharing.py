"""Gives own, unowned and lent slots at once, if owners first and borrowers afterwards leave a slot idle.

Invariant: each claim that own and unowned slots serve keeps a slot, though maybe another one. No quota,
borrowing limit or lending limit is exceeded, and a binding gang is whole or absent. Of all such assignments
the result is the best in the order of the plan's objective.

The limits join claims of one queue with slots of one owner, across the network of claims and slots. So the
optimum is found by integer programming: a variable counts the claims of a kind in equal reservations (SCIP,
branch and cut). The levels of the objective are solved one after another, and each is held from then on. If
there are too many variables, the program has the claims without a slot and the claims with slots that they
could use, as far as there is room. All others keep their slots, and the result is not proven.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ortools.linear_solver import pywraplp

from broker.capacity.class_catalog import FOREVER
from broker.capacity.entitlement import Entitlements, SlotPool
from broker.capacity.matching import ends_at
from broker.capacity.model import Inventory
from broker.capacity.option_catalog import CandidateOptions
from broker.capacity.problem import ClaimDemand
from broker.capacity.types import size_key
from providers.model import InstanceType

MOST_VARIABLES: Final = 20_000
_NEAR: Final = 1e-6


class _ClaimKind(NamedTuple):
    """Claims with equal choices. `on_own_slots`: each of them keeps a slot."""

    queue: str
    slots: tuple[str, ...]
    priority: int  # negated
    held: bool
    falls_back: bool
    cost: float
    gang: str
    on_own_slots: bool


_Place = tuple[_ClaimKind, str]  # a kind in a reservation
_Level = Mapping[_Place, float]  # the value of one claim there


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSlots:
    """The reservation of each claim (by uid), and the gangs that are whole.

    Not `proven`: a better assignment may exist, and `note` has the reason.
    """

    allocated: Mapping[str, str]
    whole: frozenset[str] = frozenset()
    proven: bool = True
    note: str = ""


def share(
    demands: Mapping[str, ClaimDemand],
    candidates: Mapping[str, CandidateOptions],
    entitlements: Entitlements,
    inventory: Inventory,
    types: Mapping[str, InstanceType],
    *,
    allocated: Mapping[str, str],
    on_own_slots: Collection[str],
    kept: Mapping[str, str],
    nominated: Mapping[str, SlotPool],
    seconds: float,
) -> SharedSlots | None:
    """A better assignment than `allocated`; None if there is none.

    `on_own_slots`: claims that keep a slot. `kept`: slots that other claims keep while they wait; `demands`
    has no such claim. `nominated`: claims that wait for a slot of a slot pool otherwise.
    """
    debits = Counter(inventory.debits)
    debits.update(kept.values())
    inventory = replace(inventory, debits=debits)
    reach: dict[str, tuple[int, int]] = {}
    usable: dict[tuple[int, int], tuple[str, ...]] = {}  # equal claims share their slots
    for uid, demand in demands.items():
        key = reach[uid] = (id(demand.slots), id(candidates[uid].borrowable))
        if key not in usable:
            usable[key] = (*demand.slots, *candidates[uid].borrowable)
    if all(uid in on_own_slots or not usable[reach[uid]] for uid in demands):
        return None
    equal = EqualSlots.of(usable.values(), inventory, entitlements, types)
    first = {key: equal.first(slots) for key, slots in usable.items()}
    kinds: dict[_ClaimKind, list[str]] = defaultdict(list)
    for uid, demand in demands.items():
        rank = demand.rank
        kinds[
            _ClaimKind(
                queue=entitlements.draws.get(uid, ""),
                slots=first[reach[uid]],
                priority=rank.priority,
                held=not rank.unheld,
                falls_back=rank.falls_back,
                cost=-rank.cost,
                gang=demand.gang,
                on_own_slots=uid in on_own_slots,
            )
        ].append(uid)
    used = Counter(equal.representative[slot] for uid, slot in allocated.items() if uid in demands)
    idle = any(equal.room[slot] > used[slot] for kind in kinds for slot in kind.slots)
    if not (idle or len(allocated) > len(on_own_slots)):
        return None
    note, fixed = "", dict[str, str]()
    if (count := sum(len(kind.slots) for kind in kinds)) > MOST_VARIABLES:
        note = f"{count:,} ways to lend slots are more than {MOST_VARIABLES:,}: only a part was compared"
        chosen = _first(kinds, allocated)
        left_out = [uid for kind, uids in kinds.items() if kind not in chosen for uid in uids]
        fixed = {uid: allocated[uid] for uid in left_out if uid in allocated}
        kinds = {kind: kinds[kind] for kind in chosen}
    taken: Counter[_Limit] = Counter()
    for uid, slot in (*kept.items(), *fixed.items()):
        taken.update(limit for limit, _ in _limits(entitlements.draws.get(uid, ""), slot, entitlements))
    taken.update(_Limit("quota", slot_pool) for slot_pool in nominated.values())
    room = Counter(equal.room)
    room.subtract(equal.representative[slot] for slot in fixed.values())
    program = _Program(kinds, room, entitlements, taken)
    at = {uid: equal.representative[slot] for uid, slot in allocated.items() if uid in demands}
    before = Counter((kind, at[uid]) for kind, uids in kinds.items() for uid in uids if uid in at)
    improved = program.better(
        before, at, [*_levels(kinds, entitlements), *_ties(kinds, inventory, types)], seconds
    )
    if improved is None:
        return SharedSlots(allocated=allocated, proven=False, note=note) if note else None
    if not improved.proven and not note:
        note = f"{seconds:.3g} s were too short to compare all ways to lend slots"
    moved = {uid: slot for uid, slot in improved.allocated.items() if uid not in fixed}
    return replace(
        improved,
        allocated=fixed | equal.spread(moved, allocated, inventory, Counter(fixed.values())),
        proven=improved.proven and not note,
        note=note,
    )


def _first(
    kinds: Mapping[_ClaimKind, Sequence[str]], allocated: Mapping[str, str]
) -> Mapping[_ClaimKind, None]:
    """The kinds to decide about if there are too many: those with claims left out, the first in front, then
    those with slots that they could use. A gang comes whole or not at all.
    """
    gangs: dict[str, list[_ClaimKind]] = defaultdict(list)
    for kind in kinds:
        gangs[kind.gang or f"\0{len(gangs)}"].append(kind)
    units = sorted(gangs.values(), key=lambda unit: min(_order(kind) for kind in unit))
    lacking = [unit for unit in units if any(uid not in allocated for kind in unit for uid in kinds[kind])]
    selected: dict[_ClaimKind, None] = {}
    remaining, reached = MOST_VARIABLES, set[str]()
    for unit, share_ in [*((unit, 0.5) for unit in lacking), *((unit, 0.0) for unit in units)]:
        count = sum(len(kind.slots) for kind in unit)
        near = share_ or any(not reached.isdisjoint(kind.slots) for kind in unit)
        if near and remaining - count >= MOST_VARIABLES * share_ and unit[0] not in selected:
            selected |= dict.fromkeys(unit)
            remaining -= count
            reached.update(slot for kind in unit for slot in kind.slots)
    return selected


def _order(kind: _ClaimKind) -> tuple[int, bool, bool, float]:
    return kind.priority, not kind.held, kind.falls_back, -kind.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualSlots:
    """Reservations that the same claims can use, of one owner, size and end, count as one: the first of them.

    `room`: the free slots of all of them.
    """

    representative: Mapping[str, str]
    members: Mapping[str, Sequence[str]]
    room: Mapping[str, int]

    @staticmethod
    def of(
        usable: Iterable[tuple[str, ...]],
        inventory: Inventory,
        entitlements: Entitlements,
        types: Mapping[str, InstanceType],
    ) -> EqualSlots:
        users: dict[str, list[int]] = defaultdict(list)
        for number, slots in enumerate(sorted({tuple(sorted({*slots})) for slots in usable})):
            for slot in slots:
                users[slot].append(number)
        members: dict[tuple[object, ...], list[str]] = defaultdict(list)
        for slot in sorted(users):
            odcr = inventory.odcrs[slot]
            size, end = size_key(types[odcr.instance_type])[:4], ends_at(odcr)
            members[tuple(users[slot]), entitlements.slot_pools.get(slot), size, end].append(slot)
        return EqualSlots(
            representative={slot: equal[0] for equal in members.values() for slot in equal},
            members={equal[0]: equal for equal in members.values()},
            room={equal[0]: sum(map(inventory.free, equal)) for equal in members.values()},
        )

    def first(self, slots: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.representative[slot] for slot in slots))

    def spread(
        self,
        allocated: Mapping[str, str],
        before: Mapping[str, str],
        inventory: Inventory,
        used: Mapping[str, int],
    ) -> dict[str, str]:
        """The reservation of each claim; the one before if that is equal. `used`: by other claims."""
        free = {slot: inventory.free(slot) - used.get(slot, 0) for slot in self.representative}
        placed: dict[str, str] = {}
        for uid, slot in allocated.items():
            same = before.get(uid, "")
            if self.representative.get(same) == slot and free[same] > 0:
                placed[uid] = same
                free[same] -= 1
        units = {first: (s for s in equal for _ in range(free[s])) for first, equal in self.members.items()}
        return placed | {uid: next(units[slot]) for uid, slot in allocated.items() if uid not in placed}


class _Limit(NamedTuple):
    """A limit of the slots of a slot pool, or of those that a queue borrows of a flavor."""

    name: str
    of: SlotPool


def _limits(queue: str, slot: str, entitlements: Entitlements) -> list[tuple[_Limit, int]]:
    """The limits that a claim of the queue counts against in a reservation, with their sizes."""
    if (slot_pool := entitlements.slot_pools.get(slot)) is None:
        return []
    availability = entitlements.of(slot_pool)
    room = (_Limit("room", slot_pool), availability.room)
    if slot_pool.owner == queue:
        return [room, (_Limit("quota", slot_pool), availability.quota)]
    borrower = SlotPool(queue, slot_pool.flavor)
    borrowed = (_Limit("borrow", borrower), entitlements.borrow.get(borrower, 0))
    return [room, (_Limit("lendable", slot_pool), availability.lendable), borrowed]


def _levels(kinds: Collection[_ClaimKind], entitlements: Entitlements) -> list[_Level]:
    """Claims in reservations by priority; with held quota; those that cannot fall back; the saved cost; the
    fewest lent slots.
    """
    places = [(kind, slot) for kind in kinds for slot in kind.slots]
    lent = [place for place in places if entitlements.right(place[0].queue, place[1]) == "lent"]
    return [
        *(
            {place: 1.0 for place in places if place[0].priority == priority}
            for priority in sorted({kind.priority for kind in kinds})
        ),
        {place: 1.0 for place in places if place[0].held},
        {place: 1.0 for place in places if not place[0].falls_back},
        {place: place[0].cost for place in places if place[0].cost},
        dict.fromkeys(lent, -1.0),
    ]


def _ties(
    kinds: Collection[_ClaimKind], inventory: Inventory, types: Mapping[str, InstanceType]
) -> list[_Level]:
    """The smaller instance, then the sooner end."""
    odcrs = {slot: inventory.odcrs[slot] for kind in kinds for slot in kind.slots}
    sizes = {slot: size_key(types[odcr.instance_type])[:4] for slot, odcr in odcrs.items()}
    ends = {slot: ends_at(odcr) or FOREVER for slot, odcr in odcrs.items()}
    by_size = {size: place for place, size in enumerate(sorted(set(sizes.values())))}
    by_end = {end: place for place, end in enumerate(sorted(set(ends.values())))}
    return [
        {(kind, slot): -float(by_size[sizes[slot]]) for kind in kinds for slot in kind.slots},
        {(kind, slot): -float(by_end[ends[slot]]) for kind in kinds for slot in kind.slots},
    ]


class _Program:
    """The integer program of these kinds."""

    def __init__(
        self,
        kinds: Mapping[_ClaimKind, list[str]],
        room: Mapping[str, int],
        entitlements: Entitlements,
        taken: Mapping[_Limit, int],
    ) -> None:
        """`room`: the free slots. `taken`: the part of each limit that claims without a variable use."""
        self._kinds = kinds
        solver = pywraplp.Solver.CreateSolver("SCIP")
        if solver is None:
            raise RuntimeError("this OR-tools was built without SCIP")
        self._solver = solver
        self._claims = {
            (kind, slot): solver.IntVar(0, min(len(uids), room[slot]), "")
            for kind, uids in kinds.items()
            for slot in kind.slots
        }
        self._gangs = {kind.gang: solver.BoolVar("") for kind in kinds if kind.gang}
        self._served()
        self._limited(room, entitlements, taken)

    def better(
        self,
        before: Mapping[_Place, int],
        allocated: Mapping[str, str],
        levels: list[_Level],
        seconds: float,
    ) -> SharedSlots | None:
        """The optimum if it is better on a level."""
        self._solver.set_time_limit(max(1, round(1000 * seconds / len(levels))))
        better, proven = False, True
        for level in levels:
            reached = self._maximize(level)
            if reached is None:
                return (
                    SharedSlots(allocated=allocated, proven=False)
                    if not better
                    else self._result(proven=False)
                )
            value, exact = reached
            proven = proven and exact
            now = sum(count * level.get(place, 0.0) for place, count in before.items())
            better = better or value > now + _NEAR * max(1.0, abs(now))
        return self._result(proven=proven) if better else None

    def _maximize(self, level: _Level) -> tuple[float, bool] | None:
        """The most that a level reaches, which is held from then on, and whether that is proven."""
        objective = self._solver.Objective()
        objective.Clear()
        for place, value in level.items():
            objective.SetCoefficient(self._claims[place], value)
        objective.SetMaximization()
        status = self._solver.Solve()
        if status not in (self._solver.OPTIMAL, self._solver.FEASIBLE):
            return None
        reached = float(objective.Value())
        self._counts = {place: round(variable.solution_value()) for place, variable in self._claims.items()}
        self._whole = frozenset(
            gang for gang, launches in self._gangs.items() if launches.solution_value() > 0.5
        )
        constraint = self._solver.Constraint(
            reached - _NEAR * max(1.0, abs(reached)), self._solver.infinity()
        )
        for place, value in level.items():
            constraint.SetCoefficient(self._claims[place], value)
        return reached, status == self._solver.OPTIMAL

    def _result(self, *, proven: bool) -> SharedSlots:
        allocated: dict[str, str] = {}
        for kind, uids in self._kinds.items():
            units = (slot for slot in kind.slots for _ in range(self._counts[kind, slot]))
            allocated |= dict(zip(uids, units, strict=False))
        return SharedSlots(allocated=allocated, whole=self._whole, proven=proven)

    def _served(self) -> None:
        """Claims on own slots keep one each; gangs have all slots that they need, or none."""
        for kind, uids in self._kinds.items():
            count = len(uids)
            must = bool(kind.gang) and not kind.falls_back
            rows = [self._solver.Constraint(count if kind.on_own_slots else 0, count)]
            if kind.gang:
                rows.append(self._solver.Constraint(0 if must else -count, 0))
                rows[-1].SetCoefficient(self._gangs[kind.gang], -count)
            for row in rows:
                for slot in kind.slots:
                    row.SetCoefficient(self._claims[kind, slot], 1)

    def _limited(
        self, room: Mapping[str, int], entitlements: Entitlements, taken: Mapping[_Limit, int]
    ) -> None:
        """No reservation, quota, lending limit or borrowing limit is exceeded."""
        rows: dict[str | _Limit, pywraplp.Constraint] = {}
        for (kind, slot), variable in self._claims.items():
            limits: list[tuple[str | _Limit, int]] = [(slot, room[slot])]
            limits += _limits(kind.queue, slot, entitlements)
            for limit, size in limits:
                if limit not in rows:
                    free = size - (taken.get(limit, 0) if isinstance(limit, _Limit) else 0)
                    rows[limit] = self._solver.Constraint(0, max(0, free))
                rows[limit].SetCoefficient(variable, 1)
