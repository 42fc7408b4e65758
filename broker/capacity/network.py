"""Slots given out by a minimum-cost flow: exact, since without gangs the constraints are a network's.

Invariant: whoever weighs most has a slot unless only those that weigh more make that impossible, and the
slots used are the best that can be used by so many. Both hold at once: in a bipartite graph the takers of an
optimal set and the slots of an optimal set can be matched with each other (Mendelsohn and Dulmage, 1958), and
both kinds of set are the bases of a matroid, whose optimum follows from the order of the weights alone
(Edmonds and Fulkerson, 1965). So places in an order serve as costs, numbers stay small, and no level of the
objective is approximate.

The solver is OR-tools' SimpleMinCostFlow, a cost-scaling push-relabel on integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from ortools.graph.python import min_cost_flow

from broker.capacity.problem import Ints, SlotProblem, Taken

ARCS_PER_SECOND: Final = 500_000  # what a slow core solves; a problem beyond its time is not begun


class SolverFailed(Exception):
    """The solver gave no answer, or one that does not hold."""


def solve(problem: SlotProblem, *, at_most: Ints, first: frozenset[str] = frozenset()) -> Taken:
    """At most so many of each bundle, in order of rank; what these gangs must have comes before all."""
    order = [(not (each.must and each.gang in first), each.rank) for each in problem.bundles]
    reaches = np.array([each.reach for each in problem.bundles], dtype=np.int64)
    taken = give(problem, reaches=reaches, at_most=at_most, weights=weights(order))
    if wrong := taken.problems(problem):
        raise SolverFailed(f"min-cost flow: {wrong}")
    return taken


def weights(order: Sequence[Any]) -> Ints:
    """A weight for each place in an order, the first the largest; equal places weigh the same."""
    places = {key: place for place, key in enumerate(sorted(set(order), reverse=True), start=1)}
    return np.array([places[key] for key in order], dtype=np.int64)


def give(problem: SlotProblem, *, reaches: Ints, at_most: Ints, weights: Ints) -> Taken:
    """Slots for takers given by their reach, number and weight."""
    total = int(at_most.sum())
    slots, source = len(problem.room), problem.reaches + len(problem.room)
    sink = source + 1
    flow = min_cost_flow.SimpleMinCostFlow()
    takers = flow.add_arcs_with_capacity_and_unit_cost(
        np.full(len(reaches), source),
        reaches,
        at_most,
        -(slots + 1) * weights,  # more than any difference between slots: they never cost a taker its place
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
    return Taken(served=flow.flows(takers), flow=flow.flows(arcs))
