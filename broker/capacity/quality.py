"""Bounds how far an unproven result may be from the best one, level by level of the objective.

Invariant: on no level does another plan beat the result by more than the reported gap. Each level is bounded
by itself, without the levels before it, so the gaps are not reached all at once. Sizes and ends are compared
with those of plans that use as many slots.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from broker.capacity.problem import Ints, SlotFlow, SlotProblem

Gaps = tuple[tuple[str, float], ...]


def gaps(
    problem: SlotProblem, taken: SlotFlow, incomplete_gangs: frozenset[str], relaxed: SlotFlow | None = None
) -> Gaps:
    """The gap of each level: claims by priority, claims that wait, dollars an hour, sizes and ends in ranks.

    `relaxed`: the network's optimum without the rule about gangs, if it was found.
    """
    slots = int(problem.room.sum())
    falls_back = np.array([bundle.rank.falls_back for bundle in problem.bundles])
    costs = np.array([-bundle.rank.cost for bundle in problem.bundles])
    absents = np.array([bool(bundle.gang) and bundle.gang in incomplete_gangs for bundle in problem.bundles])
    unserved = problem.counts - taken.served
    waiting = int(unserved[~falls_back | absents].sum())
    least_waiting = max(0, int(problem.counts[~falls_back].sum()) - slots)
    paid = float((unserved * costs)[falls_back & ~absents].sum())
    return (
        *by_priority(problem, taken, relaxed),
        ("claims that wait", float(max(0, waiting - least_waiting))),
        (
            "on-demand dollars an hour",
            round(max(0.0, paid - _least_paid(problem, falls_back, costs, slots)), 4),
        ),
        ("instance sizes", _ranks_above(_ranks(problem.sizes), problem, taken)),
        ("reservation ends", _ranks_above(_ranks(problem.ends), problem, taken)),
    )


def by_priority(
    problem: SlotProblem, taken: SlotFlow, relaxed: SlotFlow | None = None
) -> list[tuple[str, float]]:
    """Claims in reservations at each priority and above that another plan could have beyond this one."""
    slots = int(problem.room.sum())
    priorities = sorted({bundle.rank.priority for bundle in problem.bundles})
    places = [
        [number for number, bundle in enumerate(problem.bundles) if bundle.rank.priority == priority]
        for priority in priorities
    ]
    reached = [*accumulate(int(taken.served[level].sum()) for level in places)]
    demanded = [*accumulate(int(problem.counts[level].sum()) for level in places)]
    limits = [
        min(count, slots) if problem.limited else min(count, slots, (1 + problem.largest_gang) * served)
        for count, served in zip(demanded, reached, strict=True)
    ]
    if relaxed is not None:
        bounds = accumulate(int(relaxed.served[level].sum()) for level in places)
        limits = [min(limit, bound) for limit, bound in zip(limits, bounds, strict=True)]
    return [
        (f"claims at priority {-priority} and above", float(max(0, bound - served)))
        for priority, bound, served in zip(priorities, limits, reached, strict=True)
    ]


def _least_paid(
    problem: SlotProblem, falls_back: NDArray[np.bool_], costs: NDArray[np.float64], slots: int
) -> float:
    """The least on-demand cost: the dearest claims have the slots, and gangs that bind pay nothing."""
    single = falls_back & np.array([not bundle.gang for bundle in problem.bundles])
    claim_costs = np.sort(np.repeat(costs[single], problem.counts[single]))
    return float(claim_costs[: max(0, len(claim_costs) - slots)].sum())


def _ranks(measures: tuple[Ints, ...]) -> Ints:
    """The position of each slot class among the distinct ones, by the first measure in front."""
    return np.asarray(np.unique(np.array(measures), axis=1, return_inverse=True)[1], dtype=np.int64).reshape(
        -1
    )


def _ranks_above(ranks: Ints, problem: SlotProblem, taken: SlotFlow) -> float:
    """The sum of the ranks of the taken slots, above that of as many of the best slots."""
    used = int((taken.flow * ranks[problem.arc_slot]).sum())
    best = np.sort(np.repeat(ranks, problem.room))[: taken.reserved]
    return float(max(0, used - int(best.sum())))
