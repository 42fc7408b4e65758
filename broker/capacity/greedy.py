"""Assigns slots in one pass: where a better solver begins, and the result if there is no time for one.

Invariant: bundles are served in order of rank, each from the best slots left. A binding gang is served whole
or not at all. An assigned slot is never taken back. No limit is exceeded.

Let G be the size of the largest binding gang, or 1. If no limit binds, no plan has more than 1 + G times as
many claims in reservations, at any priority and above. Take anything that another plan serves and this one
does not: a claim, or a gang of at most G. An earlier claim took a slot that it needs. Each taken slot stands
in the way of at most one of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from broker.capacity.flow import Flow
from broker.capacity.problem import Ints, SlotChoice, SlotFlow, SlotProblem


def solve(problem: SlotProblem) -> SlotChoice:
    """The assigned slots, and the gangs that launch; not proven to be the best."""
    filling = _Filling(problem)
    served = np.zeros_like(problem.counts) if problem.kept is None else problem.kept.served.copy()
    whole = {gang for gang, places in problem.gangs.items() if served[list(places)].any()}
    tried = set(whole)
    for number, bundle in enumerate(problem.bundles):
        if bundle.must:
            if bundle.gang not in tried:
                tried.add(bundle.gang)
                whole |= {bundle.gang} if filling.take_whole(bundle.gang) else set()
            served[number] = bundle.count if bundle.gang in whole else 0
        elif not bundle.gang or bundle.gang in whole:
            served[number] += filling.take(bundle.reach, bundle.count - int(served[number]))
    return SlotChoice(
        taken=SlotFlow(served=served, flow=filling.flow), launched=frozenset(whole), proven=False
    )


class _Filling:
    """The flow so far, and the slots that are left. They only fill up."""

    def __init__(self, problem: SlotProblem) -> None:
        self._problem = problem
        self._room = problem.room.copy()
        self._begin = np.searchsorted(problem.arc_reach, np.arange(problem.reaches + 1))
        self._next = self._begin[:-1].copy()  # each reach's first arc that may have room
        self._left = np.array([limit.most for limit in problem.limits], dtype=np.int64)
        self._limits: dict[int, list[int]] = defaultdict(list)
        for number, limit in enumerate(problem.limits):
            for arc in limit.arcs.tolist():
                self._limits[arc].append(number)
        self.flow = np.zeros(len(problem.arc_slot), dtype=np.int64)
        if problem.kept is not None:
            for arc in np.nonzero(problem.kept.flow)[0].tolist():
                self._add(arc, int(problem.kept.flow[arc]))

    def _add(self, arc: int, count: int) -> None:
        self.flow[arc] += count
        self._room[self._problem.arc_slot[arc]] -= count
        if arc in self._limits:
            self._left[self._limits[arc]] -= count

    def take(self, reach: int, count: int) -> int:
        """Takes the best slots left for so many claims, and returns how many there are."""
        remaining = count
        while remaining and self._next[reach] < self._begin[reach + 1]:
            arc = int(self._next[reach])
            free = min(remaining, int(self._room[self._problem.arc_slot[arc]]))
            if arc in self._limits:
                free = min(free, int(self._left[self._limits[arc]].min()))
            if free > 0:
                self._add(arc, free)
                remaining -= free
            if remaining:
                self._next[reach] += 1
        return count - remaining

    def take_whole(self, gang: str) -> bool:
        """Takes slots for all claims of the gang that need one, or for none of them."""
        if not len(self._left):
            gang_flow = fits(self._problem, gang, self._room)
            for arc, count in (gang_flow or {}).items():
                self._add(arc, count)
            return gang_flow is not None
        before = self._room.copy(), self._next.copy(), self._left.copy(), self.flow.copy()
        bundles = [self._problem.bundles[place] for place in self._problem.gangs[gang]]
        if all(self.take(bundle.reach, bundle.count) == bundle.count for bundle in bundles if bundle.must):
            return True
        self._room, self._next, self._left, self.flow = before
        return False


def fits(problem: SlotProblem, gang: str, room: Ints) -> Mapping[int, int] | None:
    """The flow over each arc if all claims of the gang that need a slot get one; None if they cannot."""
    starts = np.searchsorted(problem.arc_reach, np.arange(problem.reaches + 1))
    needs: dict[int, int] = defaultdict(int)
    for place in problem.gangs[gang]:
        if problem.bundles[place].must:
            needs[problem.bundles[place].reach] += problem.bundles[place].count
    arcs = {reach: range(starts[reach], starts[reach + 1]) for reach in needs}
    edges = {reach: [int(problem.arc_slot[arc]) for arc in arcs[reach]] for reach in needs}
    if any(int(room[edges[reach]].sum()) < count for reach, count in needs.items()):
        return None
    flow = Flow(edges, {slot: int(room[slot]) for slots in edges.values() for slot in slots})
    if not all(flow.add(reach) for reach, count in needs.items() for _ in range(count)):
        return None
    arc_flow: dict[int, int] = {}
    for reach, reach_arcs in arcs.items():
        taken = flow.taken(reach)
        arc_flow |= {arc: taken[slot] for arc in reach_arcs if (slot := int(problem.arc_slot[arc])) in taken}
    return arc_flow
