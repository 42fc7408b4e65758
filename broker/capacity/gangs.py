"""Chooses the gangs that launch, by branch and bound, if there are too many ways for `slot_model`.

Invariant: the chosen gangs fit together, and no other choice is better on any level (`levels`).
Age is not compared. Only gangs are decided here; the slots follow from them (see `network`). No limit binds.

A part of the search has gangs that must launch, and gangs that must not. Its bound is the network's optimum
with the former served first and all others split into single claims: no choice in that part is better. It is
divided at a gang that the network leaves in pieces. Of gangs with equal needs the first launch, so they are
not tried in every order. (Land and Doig, 1960.)
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from broker.capacity import network
from broker.capacity.levels import levels
from broker.capacity.problem import Ints, SlotChoice, SlotFlow, SlotProblem
from broker.capacity.time_budget import TimeBudget

Objective = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """A part of the search: gangs that must launch or must not, and the network's optimum with these.

    `whole`: the gangs that have all their slots in it; `split`: one in pieces, empty if there is none.
    """

    launch: frozenset[str]
    absent: frozenset[str]
    taken: SlotFlow
    whole: frozenset[str]
    bound: Objective
    split: str


def choose(problem: SlotProblem, fitting: frozenset[str], budget: TimeBudget) -> SlotChoice:
    """The best choice in the time that is left; at worst the `fitting` gangs."""
    search = _GangSearch(problem)
    best = search.part(fitting, frozenset(problem.gangs.keys() - fitting))
    if best is None:
        raise network.SolverFailed("branch and bound: gangs that fit together do not")
    parts = [search.part(frozenset(), frozenset())]
    heap: list[tuple[list[int], int, _Part]] = []  # the best bound first; of equals the latest, the deepest
    serial = itertools.count(0, -1)
    proven = True
    while proven:
        for part in parts:
            if part is not None and part.bound > best.bound:
                if part.split:
                    heapq.heappush(heap, ([-level for level in part.bound], next(serial), part))
                else:
                    best = part
        if not heap or heap[0][-1].bound <= best.bound:
            break
        proven = budget.seconds_left() > 0
        parts = [search.part(*halves) for halves in search.halves(heapq.heappop(heap)[-1])] if proven else []
    return SlotChoice(taken=best.taken, launched=best.whole, proven=proven)


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
        split = next(pieces, "")
        return _Part(launch=launch, absent=absent, taken=taken, whole=launching, bound=bound, split=split)

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
