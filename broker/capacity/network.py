"""Assigns slots by a minimum-cost flow, which is exact: without gangs, the constraints are those of a
network.

Invariant: a taker goes without a slot only if takers of larger weight make that necessary, and so many
takers cannot use better slots. Both hold at once: in a bipartite graph, the takers of an optimal set can be
matched with the slots of an optimal set (Mendelsohn and Dulmage, 1958). Both kinds of set are bases of a
matroid, and its optimum follows from the order of the weights alone (Edmonds and Fulkerson, 1965). So
positions in an order serve as costs, numbers stay small, and no level of the objective is approximate.

If the quota of a slot pool binds, or slots are lent, slots decide between takers too. The network is then
solved level by level: the optimal flows of a level are those of a smaller network, in which each way with a
reduced cost is fixed (complementary slackness). Takers of an optimal flow are bases of a matroid there too,
so their age is a level, and the last is which of them have lent slots.

The solver is OR-tools' SimpleMinCostFlow, a cost-scaling push-relabel on integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from broker.capacity.problem import Ints, SlotFlow, SlotProblem

ARCS_PER_SECOND: Final = 500_000  # the speed of a slow core; a problem that takes longer is not begun


class SolverFailed(Exception):
    """The solver returned no result, or an invalid one."""


def solve(problem: SlotProblem, *, at_most: Ints, first: frozenset[str] = frozenset()) -> SlotFlow:
    """The best flow without gangs, and with those limits that hold for all ways to a slot.

    It serves at most `at_most` claims of each bundle, and first those that these gangs must place.
    """
    if not problem.room[problem.arc_slot].any():
        return SlotFlow(served=np.zeros_like(at_most), flow=np.zeros_like(problem.arc_slot))
    network = _Network(problem, at_most)
    if problem.limited:
        _by_levels(network, problem)
    else:
        order = [(not (bundle.must and bundle.gang in first), bundle.rank) for bundle in problem.bundles]
        slots = len(problem.room)
        # A claim's weight exceeds any difference between slots, so slots never decide between claims.
        network.minimize(served=-(slots + 1) * _weights(order), used=np.arange(slots)[problem.arc_slot])
    taken = network.taken()
    if problem_text := taken.problems(problem):
        raise SolverFailed(f"min-cost flow: {problem_text}")
    return taken


def _by_levels(network: _Network, problem: SlotProblem) -> None:
    """Narrows the network level by level, in the order of the plan's objective."""
    ranks = [bundle.rank for bundle in problem.bundles]
    network.minimize(served=-_weights([rank[:4] for rank in ranks]))
    for measure in (problem.lent, *(sizes[problem.arc_slot] for sizes in (*problem.sizes, *problem.ends))):
        if measure.any():
            network.minimize(used=measure.astype(np.int64))
    network.minimize(served=-_weights([(rank.priority, rank.created) for rank in ranks]))
    if problem.exposed.any():
        network.minimize(used=problem.exposed)


def _weights(order: Sequence[Any]) -> Ints:
    """A weight for each position in an order, the first the largest; equal positions weigh the same."""
    places = {key: place for place, key in enumerate(sorted(set(order), reverse=True), start=1)}
    return np.array([places[key] for key in order], dtype=np.int64)


class _Network:
    """A network of arcs with bounds, which each level narrows: takers, ways, slots, slot pools, the rest."""

    def __init__(self, problem: SlotProblem, at_most: Ints) -> None:
        reaches, slots = problem.reaches, len(problem.room)
        pools = _pools(problem)
        source, sink = reaches + slots + len(pools), reaches + slots + len(pools) + 1
        to = np.full(slots, sink)
        for number, (members, _) in enumerate(pools):
            to[members] = reaches + slots + number
        total = int(at_most.sum())
        takers = np.array([bundle.reach for bundle in problem.bundles], dtype=np.int64)
        self._sizes = [len(takers), len(problem.arc_slot)]
        self._tail = np.concatenate(
            [
                np.full(len(takers), source),
                problem.arc_reach,
                reaches + np.arange(slots),
                reaches + slots + np.arange(len(pools)),
                [source],
            ]
        )
        self._head = np.concatenate(
            [takers, reaches + problem.arc_slot, to, np.full(len(pools), sink), [sink]]
        )
        room = [problem.room[problem.arc_slot], problem.room, [most for _, most in pools], [total]]
        self._upper = np.concatenate([at_most, *room]).astype(np.int64)
        self._lower = np.zeros_like(self._upper)
        if problem.kept is not None:
            self._lower[: len(takers)] = np.minimum(problem.kept.served, at_most)
        self._nodes, self._supply = sink + 1, np.zeros(sink + 1, dtype=np.int64)
        self._supply[source], self._supply[sink] = total, -total
        self._flow, self._cost = self._lower, np.zeros_like(self._upper)

    def minimize(self, *, served: Ints | None = None, used: Ints | None = None) -> None:
        """Finds a flow of least cost among the flows of least cost so far."""
        self._narrow()
        cost = np.zeros_like(self._upper)
        takers, ways = self._sizes
        if served is not None:
            cost[:takers] = served
        if used is not None:
            cost[takers : takers + ways] = used
        from ortools.graph.python import min_cost_flow  # 18 MB, which a broker at rest does not need

        flow = min_cost_flow.SimpleMinCostFlow()
        arcs = flow.add_arcs_with_capacity_and_unit_cost(
            self._tail, self._head, self._upper - self._lower, cost
        )
        supply = self._supply.copy()
        np.subtract.at(supply, self._tail, self._lower)
        np.add.at(supply, self._head, self._lower)
        flow.set_nodes_supplies(np.arange(self._nodes), supply)
        status = flow.solve()
        if status != flow.OPTIMAL:
            raise SolverFailed(f"min-cost flow: {status}")
        self._flow, self._cost = self._lower + flow.flows(arcs), cost

    def _narrow(self) -> None:
        """Narrows the bounds to the flows that cost no more than the present one."""
        if not self._cost.any():
            return
        potential = self._potential(self._cost)
        reduced = self._cost + potential[self._tail] - potential[self._head]
        self._upper = np.where(reduced > 0, self._flow, self._upper)
        self._lower = np.where(reduced < 0, self._flow, self._lower)

    def _potential(self, cost: Ints) -> Ints:
        """The least cost to reach each node from anywhere in what is left of the network."""
        more, less = self._flow < self._upper, self._flow > self._lower
        tail = np.concatenate([self._tail[more], self._head[less]])
        head = np.concatenate([self._head[more], self._tail[less]])
        costs = np.concatenate([cost[more], -cost[less]])
        potential = np.zeros(self._nodes, dtype=np.int64)
        for _ in range(self._nodes + 1):
            nearer = potential.copy()
            np.minimum.at(nearer, head, potential[tail] + costs)
            if (nearer == potential).all():
                return potential
            potential = nearer
        raise SolverFailed("min-cost flow: not optimal")

    def taken(self) -> SlotFlow:
        takers, ways = self._sizes
        return SlotFlow(served=self._flow[:takers], flow=self._flow[takers : takers + ways])


def _pools(problem: SlotProblem) -> list[tuple[Ints, int]]:
    """Slot classes with a limit that holds for all ways to them, and the limit; no class is in two."""
    ways = np.bincount(problem.arc_slot, minlength=len(problem.room))
    pools: dict[tuple[int, ...], int] = {}
    grouped = np.zeros(len(problem.room), dtype=bool)
    for limit in problem.limits:
        limited = np.bincount(problem.arc_slot[limit.arcs], minlength=len(problem.room))
        members = np.nonzero(limited)[0]
        key = tuple(members.tolist())
        if (limited[members] == ways[members]).all() and (key in pools or not grouped[members].any()):
            pools[key] = min(limit.most, pools.get(key, limit.most))
            grouped[members] = True
    return [(np.array(key, dtype=np.int64), most) for key, most in pools.items()]
