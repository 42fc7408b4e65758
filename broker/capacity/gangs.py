"""Chooses the gangs that launch, by branch and bound, if there are too many ways for `slot_model`.

Invariant: the chosen gangs fit together, and no other choice is better on any level (`slot_model.levels`).
Age is not compared. Only gangs are decided here; the slots follow from them (see `network`). No limit binds.

A part of the search has gangs that must launch, and gangs that must not. Its bound is the network's optimum
with the former served first and all others split into single claims: no choice in that part is better. It is
divided at a gang that the network leaves in pieces. Of gangs with equal needs the first launch, so they are
not tried in every order. (Land and Doig, 1960.)
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from broker.capacity import network
from broker.capacity.class_catalog import FOREVER
from broker.capacity.problem import Bundle, Ints, Rank, SlotChoice, SlotFlow, SlotProblem
from broker.capacity.slot_model import levels
from broker.capacity.time_budget import TimeBudget

Objective = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """A part of the search: gangs that must launch or must not, and those whole in the network's optimum.

    `split`: a gang in pieces; empty if there is none.
    """

    launch: frozenset[str]
    absent: frozenset[str]
    whole: frozenset[str]
    bound: Objective
    split: str


def choose(problem: SlotProblem, fitting: frozenset[str], budget: TimeBudget) -> SlotChoice:
    """The best choice in the time that is left; at worst the `fitting` gangs."""
    search = _GangSearch(_without_age(problem))
    best = search.part(fitting, frozenset(problem.gangs.keys() - fitting))
    parts = [search.part(frozenset(), frozenset())]
    heap: list[tuple[list[int], int, _Part]] = []  # the best bound first; of equals the latest, the deepest
    serial = 0
    while parts or heap:
        for part in parts:
            if part is None or (best is not None and part.bound <= best.bound):
                continue
            if not part.split:
                best = part
                continue
            serial -= 1
            heapq.heappush(heap, ([-level for level in part.bound], serial, part))
        if not heap:
            break
        _, _, divided = heapq.heappop(heap)
        parts = []
        if best is not None and divided.bound <= best.bound:
            continue
        if budget.seconds_left() <= 0:
            return _choice(problem, best, proven=False)
        parts = [search.part(*halves) for halves in search.halves(divided)]
    return _choice(problem, best, proven=True)


def _choice(problem: SlotProblem, best: _Part | None, *, proven: bool) -> SlotChoice:
    if best is None:
        raise network.SolverFailed("branch and bound: no choice of gangs fits")
    launch = best.whole
    taken = network.solve(problem, at_most=without(problem, problem.gangs.keys() - launch), first=launch)
    if not all(whole(problem, gang, taken) for gang in launch):
        raise network.SolverFailed("branch and bound: it chose gangs that do not fit together")
    return SlotChoice(taken=taken, launched=launch, proven=proven)


def _without_age(problem: SlotProblem) -> SlotProblem:
    """The problem with one bundle for single claims that differ in age only."""
    single: dict[tuple[int, Rank], list[str]] = defaultdict(list)
    for bundle in problem.bundles:
        if not bundle.gang:
            single[bundle.reach, bundle.rank._replace(created=FOREVER)] += bundle.claims
    bundles = [
        *(bundle for bundle in problem.bundles if bundle.gang),
        *(
            Bundle(reach=reach, rank=rank, gang="", claims=tuple(claims))
            for (reach, rank), claims in single.items()
        ),
    ]
    return replace(problem, bundles=tuple(sorted(bundles, key=lambda bundle: (bundle.rank, bundle.reach))))


class _GangSearch:
    def __init__(self, problem: SlotProblem) -> None:
        self._problem = problem
        self._levels = levels(problem)
        self._equal = {gang: equal for equal in problem.equal_gangs for gang in equal}

    def part(self, launch: frozenset[str], absent: frozenset[str]) -> _Part | None:
        """The network's optimum if these gangs launch, and those do not; None if they do not fit."""
        problem = self._problem
        taken = network.solve(problem, at_most=without(problem, absent), first=launch)
        launching = frozenset(gang for gang in problem.gangs if whole(problem, gang, taken))
        if not launch <= launching:
            return None
        pieces = (gang for gang in problem.gangs if gang not in absent and not decided(problem, gang, taken))
        launched = np.array(
            [bool(bundle.gang) and bundle.gang not in absent for bundle in problem.bundles], dtype=bool
        )
        bound = tuple(
            int((level.served * taken.served).sum() + level.launched[launched].sum())
            + int((level.used * taken.flow).sum())
            for level in self._levels
        )
        return _Part(launch=launch, absent=absent, whole=launching, bound=bound, split=next(pieces, ""))

    def halves(self, part: _Part) -> list[tuple[frozenset[str], frozenset[str]]]:
        """The part without the gang in pieces and the equal gangs after it, and with it and those before."""
        equal = self._equal[part.split]
        place = equal.index(part.split)
        return [
            (part.launch, part.absent.union(equal[place:])),
            (part.launch.union(equal[: place + 1]), part.absent),
        ]


def without(problem: SlotProblem, absent: Collection[str]) -> Ints:
    """The slots that each bundle may have if these gangs do not launch."""
    kept = [not bundle.gang or bundle.gang not in absent for bundle in problem.bundles]
    return np.where(kept, problem.counts, 0)


def whole(problem: SlotProblem, gang: str, taken: SlotFlow) -> bool:
    """Whether every claim of the gang that needs a slot has one."""
    places = problem.gangs[gang]
    return all(
        taken.served[place] == problem.bundles[place].count for place in places if problem.bundles[place].must
    )


def decided(problem: SlotProblem, gang: str, taken: SlotFlow) -> bool:
    """Whether the network's optimum decides about the gang as the optimum with gangs does.

    A gang with claims that could fall back is decided only when whole: if absent, it saves their cost
    too.
    """
    places = problem.gangs[gang]
    if whole(problem, gang, taken):
        return True
    return all(problem.bundles[place].must and not taken.served[place] for place in places)
