"""Slots given out by a minimum-cost flow: exact, since without gangs the constraints are a network's.

Invariant: whoever comes first by rank has a slot unless only those before make that impossible, and the
slots used are the best that can be used by so many. Both hold at once: in a bipartite graph the takers of an
optimal set and the slots of an optimal set can be matched with each other (Mendelsohn and Dulmage, 1958), and
both kinds of set are the bases of a matroid, whose optimum follows from the order of the weights alone
(Edmonds and Fulkerson, 1965). So ranks serve as costs, numbers stay small, and no level of the objective is
approximate.

The solver is OR-tools' SimpleMinCostFlow, a cost-scaling push-relabel on integers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from ortools.graph.python import min_cost_flow

from broker.capacity.problem import Ints, Problem, Taken

ARCS_PER_SECOND: Final = 500_000  # what a slow core solves; a problem beyond its time is not begun


class SolverFailed(Exception):
    """The solver gave no answer, or one that does not hold."""


def solve(problem: Problem, *, at_most: Ints, before_all: NDArray[np.bool_] | None = None) -> Taken:
    """At most so many of each bundle, in order of rank; those of `before_all` come before all others."""
    total = int(at_most.sum())
    slots, source = len(problem.room), problem.reaches + len(problem.room)
    sink = source + 1
    flow = min_cost_flow.SimpleMinCostFlow()
    bundles = flow.add_arcs_with_capacity_and_unit_cost(
        np.full(len(problem.bundles), source),
        np.array([each.reach for each in problem.bundles], dtype=np.int64),
        at_most,
        # More than any difference between slots: they never cost a claim its place.
        -(slots + 1) * _weights(problem, before_all),
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
        raise SolverFailed(f"minimum-cost flow: {status}")
    taken = Taken(served=flow.flows(bundles), flow=flow.flows(arcs))
    if wrong := taken.problems(problem):
        raise SolverFailed(f"minimum-cost flow: {wrong}")
    return taken


def _weights(problem: Problem, before_all: NDArray[np.bool_] | None) -> Ints:
    """Larger for whoever comes first; equal ranks weigh the same."""
    first = before_all if before_all is not None else np.zeros(len(problem.bundles), dtype=bool)
    keys = [(not first[place], each.rank) for place, each in enumerate(problem.bundles)]
    places = {key: place for place, key in enumerate(sorted(set(keys), reverse=True), start=1)}
    return np.array([places[key] for key in keys], dtype=np.int64)
