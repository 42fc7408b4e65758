"""Assigns slots in one pass, if there is no time for a better solver.

Invariant: bundles are served in order of rank, each from the best slots left. A binding gang is served whole
or not at all. An assigned slot is never taken back.

Let G be the size of the largest binding gang, or 1. Then no plan has more than 1 + G times as many claims in
reservations, at any priority and above. Take anything that another plan serves and this one does not: a
claim, or a gang of at most G. An earlier claim took a slot that it needs. Each taken slot stands in the way
of at most one of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from broker.capacity.flow import Flow
from broker.capacity.problem import Ints, SlotFlow, SlotProblem


def solve(problem: SlotProblem) -> tuple[SlotFlow, frozenset[str]]:
    """The assigned slots, and the gangs that launch."""
    room = problem.room.copy()
    starts = np.searchsorted(problem.arc_reach, np.arange(problem.reaches + 1))
    place = starts[:-1].copy()  # each reach's first arc that may have room: slots only fill up
    served = np.zeros(len(problem.bundles), dtype=np.int64)
    flow = np.zeros(len(problem.arc_slot), dtype=np.int64)
    whole: set[str] = set()
    tried: set[str] = set()
    for number, bundle in enumerate(problem.bundles):
        if bundle.must:
            if bundle.gang not in tried:
                tried.add(bundle.gang)
                if (gang_flow := fits(problem, bundle.gang, room)) is not None:
                    whole.add(bundle.gang)
                    for arc, count in gang_flow.items():
                        flow[arc] += count
                        room[problem.arc_slot[arc]] -= count
            served[number] = bundle.count if bundle.gang in whole else 0
            continue
        if bundle.gang and bundle.gang not in whole:
            continue
        remaining, end = bundle.count, starts[bundle.reach + 1]
        while remaining and place[bundle.reach] < end:
            arc = place[bundle.reach]
            count = min(remaining, int(room[problem.arc_slot[arc]]))
            flow[arc] += count
            room[problem.arc_slot[arc]] -= count
            remaining -= count
            if remaining:
                place[bundle.reach] += 1
        served[number] = bundle.count - remaining
    return SlotFlow(served=served, flow=flow), frozenset(whole)


def bound(problem: SlotProblem, taken: SlotFlow) -> int:
    """No plan has more claims in reservations than this."""
    return min((1 + problem.largest_gang) * taken.reserved, ceiling(problem))


def ceiling(problem: SlotProblem) -> int:
    """An upper bound for every plan: the number of claims or the number of slots."""
    return int(min(problem.counts.sum(), problem.room.sum()))


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
