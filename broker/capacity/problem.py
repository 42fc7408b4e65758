"""The waiting claims and the free slots in numbers: equal claims are counted together, and so are equal
slots.

Invariant: the claims of a bundle are interchangeable: they have the same slots and the same rank. So are the
reservations of a slot class: they have the same claims, instance size and end. The result does not depend on
the order of the input.

Rank, best first: priority (nominated claims above all), held quota, no way but a slot, the higher On-Demand
price, the greater age; then gang by gang. Slot classes, best first: the smaller instance, then the sooner
end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker.capacity.class_catalog import FOREVER
from broker.capacity.matching import ends_at
from broker.capacity.model import Inventory
from broker.capacity.types import size_key
from providers.model import InstanceType

Ints = NDArray[np.int64]


class Rank(NamedTuple):
    """The order of claims if slots run out, the smaller first. `cost` is that of the option without a
    slot."""

    priority: int  # negated
    unheld: bool  # no quota is held for it
    falls_back: bool
    cost: float  # negated; 0 without a fallback
    created: datetime
    gang: str


class ClaimDemand(NamedTuple):
    """A claim's usable slots, its rank, and the gang that launches with it or not at all."""

    slots: Collection[str]
    rank: Rank
    gang: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Interchangeable claims. `gang` is empty unless the gang binds: one of its claims cannot fall back."""

    reach: int
    rank: Rank
    gang: str
    claims: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.claims)

    @property
    def must(self) -> bool:
        """Whether its gang needs slots for all of these claims to launch."""
        return bool(self.gang) and not self.rank.falls_back


@dataclass(frozen=True, kw_only=True)
class SlotProblem:
    """Bundles reach slot classes through reaches: arc i joins `arc_reach[i]` and `arc_slot[i]`.

    Bundles and slot classes are ordered, the best first; arcs by reach, then by slot class.
    """

    bundles: tuple[Bundle, ...]
    members: tuple[tuple[str, ...], ...]  # the reservations of each slot class
    room: Ints
    sizes: Ints  # rank among the sizes, by slot class
    ends: Ints  # rank among the ends, by slot class
    reaches: int
    arc_reach: Ints
    arc_slot: Ints

    @cached_property
    def counts(self) -> Ints:
        return np.array([bundle.count for bundle in self.bundles], dtype=np.int64)

    @cached_property
    def gangs(self) -> dict[str, tuple[int, ...]]:
        """The bundles of each binding gang, gangs in order of rank."""
        by_gang: dict[str, list[int]] = defaultdict(list)
        for place, bundle in enumerate(self.bundles):
            if bundle.gang:
                by_gang[bundle.gang].append(place)
        return {gang: tuple(places) for gang, places in by_gang.items()}

    @cached_property
    def largest_gang(self) -> int:
        """The number of claims of the largest gang; 1 without any."""
        sizes = (sum(self.bundles[place].count for place in places) for places in self.gangs.values())
        return max(sizes, default=1)

    @cached_property
    def must(self) -> NDArray[np.bool_]:
        return np.array([bundle.must for bundle in self.bundles], dtype=bool)


@dataclass(frozen=True, kw_only=True, eq=False)
class SlotFlow:
    """The number of served claims of each bundle, and the flow over each arc."""

    served: Ints
    flow: Ints

    @property
    def reserved(self) -> int:
        return int(self.served.sum())

    def problems(self, problem: SlotProblem) -> str:
        """The first violated constraint; empty if there is none."""
        if (self.flow < 0).any() or (self.served < 0).any() or (self.served > problem.counts).any():
            return "a count is out of its range"
        used = np.bincount(problem.arc_slot, weights=self.flow, minlength=len(problem.room))
        if (used > problem.room).any():
            return "a reservation is used beyond its room"
        reached = [bundle.reach for bundle in problem.bundles]
        served = np.bincount(reached, weights=self.served, minlength=problem.reaches)
        assigned = np.bincount(problem.arc_reach, weights=self.flow, minlength=problem.reaches)
        return "" if (served == assigned).all() else "claims and slots do not add up"


def problem_of(
    demands: Mapping[str, ClaimDemand], inventory: Inventory, types: Mapping[str, InstanceType]
) -> SlotProblem:
    """The problem of these demands by claim (uid), in order. Claims with neither slots nor gang are left
    out."""
    reaches: dict[tuple[str, ...], int] = {}
    known: dict[int, int] = {}  # identity of a set of slots that many demands share → its reach
    grouped: dict[tuple[int, Rank, str], list[str]] = defaultdict(list)
    for uid, demand in demands.items():
        if (reach := known.get(id(demand.slots))) is None:
            slots = tuple(demand.slots)
            reach = known[id(demand.slots)] = reaches.setdefault(slots, len(reaches))
        if demand.slots or demand.gang:
            grouped[reach, demand.rank, demand.gang].append(uid)
    order = _canonical(reaches)
    bundles = sorted(
        (
            Bundle(reach=order[reach], rank=rank, gang=gang, claims=tuple(uids))
            for (reach, rank, gang), uids in grouped.items()
        ),
        key=lambda bundle: (bundle.rank, bundle.reach, bundle.gang),
    )
    ids = sorted({odcr_id for slots in reaches for odcr_id in slots})
    matrix = _matrix(reaches, order, ids)
    classes = _classes(matrix, ids, inventory, types)
    first = np.array([places[0] for _, places in classes], dtype=np.int64)
    arc_reach, arc_slot = np.nonzero(matrix[:, first]) if len(first) else (np.zeros(0), np.zeros(0))
    sizes, ends = _ranks(key.size for key, _ in classes), _ranks(key.end for key, _ in classes)
    members = tuple(tuple(ids[place] for place in places) for _, places in classes)
    return SlotProblem(
        bundles=tuple(bundles),
        members=members,
        room=np.array(
            [sum(inventory.free(odcr_id) for odcr_id in class_members) for class_members in members],
            dtype=np.int64,
        ),
        sizes=sizes,
        ends=ends,
        reaches=len(reaches),
        arc_reach=arc_reach.astype(np.int64),
        arc_slot=arc_slot.astype(np.int64),
    )


class _Class(NamedTuple):
    """The properties of interchangeable slots, in order of preference."""

    size: tuple[int, bool, int, int]
    end: datetime
    reached_by: bytes


def _canonical(reaches: Mapping[tuple[str, ...], int]) -> dict[int, int]:
    """Numbers reaches by their slots, independently of the order of the input."""
    return {reaches[slots]: place for place, slots in enumerate(sorted(reaches))}


def _matrix(
    reaches: Mapping[tuple[str, ...], int], order: Mapping[int, int], ids: Sequence[str]
) -> NDArray[np.bool_]:
    """The reservations that each reach can use: a row for a reach, a column for a reservation."""
    place = {odcr_id: number for number, odcr_id in enumerate(ids)}
    matrix = np.zeros((len(reaches), len(ids)), dtype=bool)
    for slots, reach in reaches.items():
        matrix[order[reach], [place[slot] for slot in slots]] = True
    return matrix


def _classes(
    matrix: NDArray[np.bool_], ids: Sequence[str], inventory: Inventory, types: Mapping[str, InstanceType]
) -> list[tuple[_Class, list[int]]]:
    columns = np.ascontiguousarray(np.packbits(matrix, axis=0).T)
    places_by_class: dict[_Class, list[int]] = defaultdict(list)
    for place, odcr_id in enumerate(ids):
        odcr = inventory.odcrs[odcr_id]
        accelerators, bare, vcpus, memory, _ = size_key(types[odcr.instance_type])
        key = _Class(
            size=(accelerators, bare, vcpus, memory),
            end=ends_at(odcr) or FOREVER,
            reached_by=columns[place].tobytes(),
        )
        places_by_class[key].append(place)
    return sorted(places_by_class.items(), key=lambda item: (item[0].size, item[0].end, item[1]))


def _ranks(values: Iterable[Hashable]) -> Ints:
    """The position of each value among the distinct values."""
    ordered = list(values)
    places = {value: place for place, value in enumerate(sorted(set(ordered)))}  # type: ignore[type-var]
    return np.array([places[value] for value in ordered], dtype=np.int64)


def in_rank_order(
    uids: Iterable[str], demands: Mapping[str, ClaimDemand], *, gangs: frozenset[str] | None = None
) -> list[tuple[str, list[str]]]:
    """Claims in order of rank; the claims of a gang (of all gangs, or of these) together at the first one."""
    units: dict[tuple[str, str], list[str]] = defaultdict(list)
    ranks: dict[str, Rank] = {uid: demands[uid].rank for uid in uids}
    for uid in sorted(ranks, key=lambda uid: ranks[uid]):
        gang = demands[uid].gang if gangs is None or demands[uid].gang in gangs else ""
        units[gang, "" if gang else uid].append(uid)
    return [(gang, unit) for (gang, _), unit in units.items()]
