"""Assigns slots by a minimum-cost flow, which is exact: without gangs, the constraints are those of a
network.

Invariant: a taker goes without a slot only if takers of larger weight make that necessary, and so many
takers cannot use better slots. Both hold at once: in a bipartite graph, the takers of an optimal set can be
matched with the slots of an optimal set (Mendelsohn and Dulmage, 1958). Both kinds of set are bases of a
matroid, and its optimum follows from the order of the weights alone (Edmonds and Fulkerson, 1965). So
positions in an order serve as costs, numbers stay small, and no level of the objective is approximate.

The solver is OR-tools' SimpleMinCostFlow, a cost-scaling push-relabel on integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from ortools.graph.python import min_cost_flow

from broker.capacity.problem import Ints, SlotFlow, SlotProblem

ARCS_PER_SECOND: Final = 500_000  # the speed of a slow core; a problem that takes longer is not begun


class SolverFailed(Exception):
    """The solver returned no result, or an invalid one."""


def solve(problem: SlotProblem, *, at_most: Ints, first: frozenset[str] = frozenset()) -> SlotFlow:
    """At most `at_most` claims of each bundle, in order of rank; claims that these gangs must place come
    first."""
    order = [(not (bundle.must and bundle.gang in first), bundle.rank) for bundle in problem.bundles]
    reaches = np.array([bundle.reach for bundle in problem.bundles], dtype=np.int64)
    taken = give(problem, reaches=reaches, at_most=at_most, weights=weights(order))
    if problem_text := taken.problems(problem):
        raise SolverFailed(f"min-cost flow: {problem_text}")
    return taken


def weights(order: Sequence[Any]) -> Ints:
    """A weight for each position in an order, the first the largest; equal positions weigh the same."""
    places = {key: place for place, key in enumerate(sorted(set(order), reverse=True), start=1)}
    return np.array([places[key] for key in order], dtype=np.int64)


def give(problem: SlotProblem, *, reaches: Ints, at_most: Ints, weights: Ints) -> SlotFlow:
    """Assigns slots to takers, given by their reach, number and weight."""
    total = int(at_most.sum())
    slots, source = len(problem.room), problem.reaches + len(problem.room)
    sink = source + 1
    flow = min_cost_flow.SimpleMinCostFlow()
    takers = flow.add_arcs_with_capacity_and_unit_cost(
        np.full(len(reaches), source),
        reaches,
        at_most,
        -(slots + 1) * weights,  # exceeds any difference between slots, so slots never decide between takers
    )
    arcs = flow.add_arcs_with_capacity_and_unit_cost(
        problem.arc_reach,
        problem.reaches + problem.arc_slot,
        problem.room[problem.arc_slot],
        np.zeros(len(problem.arc_slot), dtype=np.int64),
    )
    flow.add_arcs_with_capacity_and_unit_cost(
        problem.reaches + np.arange(slots), np.full(slots, sink), problem.room, np.arange(slots)
    )
    flow.add_arc_with_capacity_and_unit_cost(source, sink, total, 0)
    flow.set_node_supply(source, total)
    flow.set_node_supply(sink, -total)
    status = flow.solve()
    if status != flow.OPTIMAL:
        raise SolverFailed(f"min-cost flow: {status}")
    return SlotFlow(served=flow.flows(takers), flow=flow.flows(arcs))
