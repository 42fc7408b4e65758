"""The waiting claims and the free slots in numbers: equal claims are counted together, and so are equal
slots.

Invariant: the claims of a bundle are interchangeable: they have the same slots and the same rank. So are the
reservations of a slot class: they have the same claims, owner, instance size and end. The result does not
depend on the order of the input.

Rank, best first: priority (nominated claims above all), held quota, no way but a slot, the higher On-Demand
price, the greater age; then gang by gang. Slot classes, best first: the smaller instance, then the sooner
end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker.capacity.class_catalog import FOREVER
from broker.capacity.entitlement import NO_ENTITLEMENTS, Entitlements, SlotPool
from broker.capacity.inventory import Inventory
from broker.capacity.matching import ends_at
from broker.capacity.types import size_key
from broker.lists import lists_by_key
from providers.model import InstanceType

Ints = NDArray[np.int64]
NOTHING_HELD: Final[Mapping[str, int]] = {}


class Rank(NamedTuple):
    """The order of claims if slots run out, the smaller first. `cost` is that of the option without a
    slot."""

    priority: int  # negated
    unheld: bool  # no quota is held for it
    falls_back: bool
    cost: float  # negated; 0 without a fallback
    created: datetime
    gang: str  # that launches with the claim or not at all; empty unless one of its claims cannot fall back


class ClaimDemand(NamedTuple):
    """A claim's usable slots, its rank, and the queue that it draws from."""

    slots: tuple[str, ...]
    rank: Rank
    queue: str = ""

    @property
    def gang(self) -> str:
        return self.rank.gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Interchangeable claims."""

    reach: int
    rank: Rank
    claims: tuple[str, ...]

    @property
    def gang(self) -> str:
        return self.rank.gang

    @property
    def count(self) -> int:
        return len(self.claims)

    @property
    def must(self) -> bool:
        """Whether its gang needs slots for all of these claims to launch."""
        return bool(self.gang) and not self.rank.falls_back


class SlotLimit(NamedTuple):
    """The most claims that these arcs carry together: by quota, a lending or borrowing limit, or a hold."""

    arcs: Ints
    most: int


@dataclass(frozen=True, kw_only=True)
class SlotProblem:
    """Bundles reach slot classes through reaches: arc i joins `arc_reach[i]` and `arc_slot[i]`.

    Bundles and slot classes are ordered, the best first; arcs by reach, then by slot class. `limits`: those
    that claims could exceed. `kept`: claims of each bundle that keep a slot, and a flow that serves them.
    """

    bundles: tuple[Bundle, ...]
    members: tuple[tuple[str, ...], ...]  # the reservations of each slot class
    room: Ints
    sizes: tuple[Ints, ...]  # of an instance of each slot class, the first measure counts first
    ends: tuple[Ints, ...]
    reaches: int
    arc_reach: Ints
    arc_slot: Ints
    lent: NDArray[np.bool_]  # by arc
    limits: tuple[SlotLimit, ...] = ()
    kept: SlotFlow | None = None

    @cached_property
    def counts(self) -> Ints:
        return np.array([bundle.count for bundle in self.bundles], dtype=np.int64)

    @cached_property
    def gangs(self) -> dict[str, tuple[int, ...]]:
        """The bundles of each binding gang, gangs in order of rank."""
        places = enumerate(self.bundles)
        by_gang = lists_by_key((bundle.gang, place) for place, bundle in places if bundle.gang)
        return {gang: tuple(places) for gang, places in by_gang.items()}

    @cached_property
    def largest_gang(self) -> int:
        """The number of claims of the largest gang; 1 without any."""
        sizes = (sum(self.bundles[place].count for place in places) for places in self.gangs.values())
        return max(sizes, default=1)

    @property
    def limited(self) -> bool:
        """Whether more than gangs may keep the network's optimum from being the best assignment."""
        return bool(self.limits or self.kept is not None or self.lent.any())

    @cached_property
    def exposed(self) -> Ints:
        """What a lent slot costs on each arc: more for a reach of higher priority, since owners take slots
        back.
        """
        strongest = np.full(self.reaches, max((bundle.rank.priority for bundle in self.bundles), default=0))
        for bundle in self.bundles:
            strongest[bundle.reach] = min(strongest[bundle.reach], bundle.rank.priority)
        _, place = np.unique(-strongest, return_inverse=True)
        return np.where(self.lent, place[self.arc_reach], 0)

    @cached_property
    def equal_gangs(self) -> list[list[str]]:
        """Gangs of equal needs, in order of rank."""
        equal: dict[tuple[object, ...], list[str]] = defaultdict(list)
        for gang, places in self.gangs.items():
            bundles = [self.bundles[place] for place in places]
            parts = sorted((bundle.reach, *bundle.rank[:4], bundle.count) for bundle in bundles)
            equal[tuple(parts)].append(gang)
        return [*equal.values()]


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotFlow:
    """The number of served claims of each bundle, and the flow over each arc."""

    served: Ints
    flow: Ints

    @property
    def reserved(self) -> int:
        return int(self.served.sum())

    def exceeds(self, problem: SlotProblem) -> bool:
        """Whether it exceeds a limit, or takes the slot of a claim that keeps one."""
        if problem.kept is not None and (self.served < problem.kept.served).any():
            return True
        return any(int(self.flow[limit.arcs].sum()) > limit.most for limit in problem.limits)

    def problems(self, problem: SlotProblem) -> str:
        """The first violated constraint of the network; empty if there is none."""
        if (self.flow < 0).any() or (self.served < 0).any() or (self.served > problem.counts).any():
            return "a count is out of its range"
        used = np.bincount(problem.arc_slot, weights=self.flow, minlength=len(problem.room))
        if (used > problem.room).any():
            return "a reservation is used beyond its room"
        reached = [bundle.reach for bundle in problem.bundles]
        served = np.bincount(reached, weights=self.served, minlength=problem.reaches)
        assigned = np.bincount(problem.arc_reach, weights=self.flow, minlength=problem.reaches)
        return "" if (served == assigned).all() else "claims and slots do not add up"


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotChoice:
    """The slots of all claims, the binding gangs that launch, and whether no other choice is better."""

    taken: SlotFlow
    launched: frozenset[str]
    proven: bool


def problem_of(
    demands: Mapping[str, ClaimDemand],
    inventory: Inventory,
    types: Mapping[str, InstanceType],
    entitlements: Entitlements = NO_ENTITLEMENTS,
    *,
    held: Mapping[str, int] = NOTHING_HELD,
    kept: Mapping[str, str] | None = None,
) -> SlotProblem:
    """The problem of these demands by claim (uid), in order. Claims with neither slots nor gang are left
    out.

    `held`: slots (by reservation) that only borrowers may have. `kept`: the reservation of each claim that
    keeps a slot, though maybe another.
    """
    reaches: dict[_Reach, int] = {}
    grouped: dict[tuple[int, Rank], list[str]] = defaultdict(list)
    for uid, demand in demands.items():
        owned = entitlements.slot_pools and not entitlements.slot_pools.keys().isdisjoint(demand.slots)
        reach = reaches.setdefault(_Reach(demand.slots, demand.queue if owned else ""), len(reaches))
        if demand.slots or demand.gang:
            grouped[reach, demand.rank].append(uid)
    ordered = sorted(reaches)
    order = {reaches[reach]: place for place, reach in enumerate(ordered)}
    bundles = sorted(
        (
            Bundle(reach=order[reach], rank=rank, claims=tuple(uids))
            for (reach, rank), uids in grouped.items()
        ),
        key=lambda bundle: (bundle.rank, bundle.reach),
    )
    ids = sorted({odcr_id for slots in reaches for odcr_id in slots.slots})
    matrix = _matrix(ordered, ids)
    classes = _classes(matrix, ids, inventory, types, entitlements, held)
    first = np.array([places[0] for _, places in classes], dtype=np.int64)
    arc_reach, arc_slot = np.nonzero(matrix[:, first]) if len(first) else (np.zeros(0), np.zeros(0))
    members = tuple(tuple(ids[place] for place in places) for _, places in classes)
    problem = SlotProblem(
        bundles=tuple(bundles),
        members=members,
        room=np.array([sum(map(inventory.free, class_members)) for class_members in members], dtype=np.int64),
        sizes=_measures([key.size for key, _ in classes], 4),
        ends=_measures(_ends([key.end for key, _ in classes]), 2),
        reaches=len(reaches),
        arc_reach=arc_reach.astype(np.int64),
        arc_slot=arc_slot.astype(np.int64),
        lent=np.zeros(len(arc_slot), dtype=bool),
    )
    if entitlements.slot_pools:
        pools = [key.slot_pool for key, _ in classes]
        queues = [reach.queue for reach in ordered]
        problem = _limited(problem, pools, queues, entitlements, inventory, held)
    return replace(problem, kept=_kept(problem, kept)) if kept is not None else problem


class _Reach(NamedTuple):
    """The slots that equal claims can use. `queue`: empty if none of them has an owner."""

    slots: tuple[str, ...]
    queue: str


class _Class(NamedTuple):
    """The properties of interchangeable slots, in order of preference."""

    size: tuple[int, bool, int, int]
    end: datetime
    slot_pool: SlotPool | None
    held: str
    reached_by: bytes


def _limited(
    problem: SlotProblem,
    pools: Sequence[SlotPool | None],
    queues: Sequence[str],
    entitlements: Entitlements,
    inventory: Inventory,
    held: Mapping[str, int],
) -> SlotProblem:
    """The problem with its lent arcs, and the limits that claims could exceed."""
    lent = np.zeros(len(problem.arc_slot), dtype=bool)
    arcs: dict[tuple[str, object], list[int]] = defaultdict(list)
    most: dict[tuple[str, object], int] = {}

    def limit(name: str, of: object, size: int, arc: int) -> None:
        arcs[name, of].append(arc)
        most[name, of] = max(0, size)

    concerned = np.array(
        [
            slot_pool is not None or ids[0] in held
            for slot_pool, ids in zip(pools, problem.members, strict=True)
        ],
        dtype=bool,
    )
    for arc in np.nonzero(concerned[problem.arc_slot])[0].tolist():
        reach, slot = problem.arc_reach[arc], problem.arc_slot[arc]
        slot_pool, odcr_ids = pools[slot], problem.members[slot]
        own = slot_pool is None or slot_pool.owner == queues[reach]
        if own and odcr_ids[0] in held:
            limit("held", odcr_ids, inventory.free(odcr_ids[0]) - held[odcr_ids[0]], arc)
        if slot_pool is None:
            continue
        availability = entitlements.of(slot_pool)
        limit("room", slot_pool, availability.room, arc)
        if own:
            limit("quota", slot_pool, availability.quota, arc)
        else:
            lent[arc] = True
            limit("lendable", slot_pool, availability.lendable, arc)
            borrower = SlotPool(queues[reach], slot_pool.flavor)
            limit("borrow", borrower, entitlements.borrow.get(borrower, 0), arc)
    counts = np.zeros(problem.reaches, dtype=np.int64)
    for bundle in problem.bundles:
        counts[bundle.reach] += bundle.count

    def possible(among: Ints) -> int:
        """How many claims the arcs could carry without a limit, at most."""
        slots, reached = np.unique(problem.arc_slot[among]), np.unique(problem.arc_reach[among])
        return int(min(problem.room[slots].sum(), counts[reached].sum()))

    limits = [SlotLimit(np.array(arcs[key], dtype=np.int64), most[key]) for key in sorted(arcs, key=str)]
    return replace(
        problem, lent=lent, limits=tuple(limit for limit in limits if possible(limit.arcs) > limit.most)
    )


def _kept(problem: SlotProblem, kept: Mapping[str, str]) -> SlotFlow:
    """The claims that keep a slot, as a flow."""
    slot_class = {odcr_id: place for place, ids in enumerate(problem.members) for odcr_id in ids}
    arcs = {
        key: arc
        for arc, key in enumerate(zip(problem.arc_reach.tolist(), problem.arc_slot.tolist(), strict=True))
    }
    served = np.zeros(len(problem.bundles), dtype=np.int64)
    flow = np.zeros(len(problem.arc_slot), dtype=np.int64)
    for place, bundle in enumerate(problem.bundles):
        for uid in bundle.claims:
            if uid in kept:
                served[place] += 1
                flow[arcs[bundle.reach, slot_class[kept[uid]]]] += 1
    return SlotFlow(served=served, flow=flow)


def _matrix(reaches: Sequence[_Reach], ids: Sequence[str]) -> NDArray[np.bool_]:
    """The reservations that each reach can use: a row for a reach, a column for a reservation."""
    place = {odcr_id: number for number, odcr_id in enumerate(ids)}
    matrix = np.zeros((len(reaches), len(ids)), dtype=bool)
    for number, reach in enumerate(reaches):
        matrix[number, [place[slot] for slot in reach.slots]] = True
    return matrix


def _classes(
    matrix: NDArray[np.bool_],
    ids: Sequence[str],
    inventory: Inventory,
    types: Mapping[str, InstanceType],
    entitlements: Entitlements,
    held: Mapping[str, int],
) -> list[tuple[_Class, list[int]]]:
    columns = np.ascontiguousarray(np.packbits(matrix, axis=0).T)
    places_by_class: dict[_Class, list[int]] = defaultdict(list)
    for place, odcr_id in enumerate(ids):
        odcr = inventory.odcrs[odcr_id]
        accelerators, bare, vcpus, memory, _ = size_key(types[odcr.instance_type])
        key = _Class(
            size=(accelerators, bare, vcpus, memory),
            end=ends_at(odcr) or FOREVER,
            slot_pool=entitlements.slot_pools.get(odcr_id),
            held=odcr_id if odcr_id in held else "",
            reached_by=columns[place].tobytes(),
        )
        places_by_class[key].append(place)
    return sorted(places_by_class.items(), key=lambda item: (item[0].size, item[0].end, item[1]))


def _measures(values: Sequence[Sequence[int]], count: int) -> tuple[Ints, ...]:
    """Each measure by slot class, counted from the least."""
    measured = np.array(values, dtype=np.int64).reshape(len(values), count)
    return tuple(column - column.min(initial=column[0]) if len(column) else column for column in measured.T)


def _ends(ends: Sequence[datetime]) -> list[tuple[bool, int]]:
    """Whether slots never end, and otherwise their ends in seconds."""
    seconds = [0 if end == FOREVER else int(end.timestamp()) for end in ends]
    soonest = min(filter(None, seconds), default=0)
    return [(not second, second or soonest) for second in seconds]


def in_rank_order(
    uids: Iterable[str], demands: Mapping[str, ClaimDemand], *, gangs: frozenset[str]
) -> list[tuple[str, list[str]]]:
    """Claims in order of rank; the claims of each of these gangs together at the first one."""
    units: dict[tuple[str, str], list[str]] = defaultdict(list)
    ranks: dict[str, Rank] = {uid: demands[uid].rank for uid in uids}
    for uid in sorted(ranks, key=lambda uid: ranks[uid]):
        gang = demands[uid].gang if demands[uid].gang in gangs else ""
        units[gang, "" if gang else uid].append(uid)
    return [(gang, unit) for (gang, _), unit in units.items()]
