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
    problem: SlotProblem, taken: SlotFlow, absent: frozenset[str], relaxed: SlotFlow | None = None
) -> Gaps:
    """The gap of each level: claims by priority, claims that wait, dollars an hour, sizes and ends in ranks.

    `relaxed`: the network's optimum without the rule about gangs, if it was found.
    """
    if not problem.bundles:
        return ()
    slots = int(problem.room.sum())
    falls_back = np.array([each.rank.falls_back for each in problem.bundles])
    costs = np.array([-each.rank.cost for each in problem.bundles])
    absents = np.array([bool(each.gang) and each.gang in absent for each in problem.bundles])
    left = problem.counts - taken.served
    waiting = int(left[~falls_back | absents].sum())
    least_waiting = max(0, int(problem.counts[~falls_back].sum()) - slots)
    paid = float((left * costs)[falls_back & ~absents].sum())
    return (
        *_by_priority(problem, taken, relaxed, slots),
        ("claims that wait", float(max(0, waiting - least_waiting))),
        (
            "on-demand dollars an hour",
            round(max(0.0, paid - _least_paid(problem, falls_back, costs, slots)), 4),
        ),
        ("instance sizes", _ranks_above(problem.sizes, problem, taken)),
        ("reservation ends", _ranks_above(problem.ends, problem, taken)),
    )


def _by_priority(
    problem: SlotProblem, taken: SlotFlow, relaxed: SlotFlow | None, slots: int
) -> list[tuple[str, float]]:
    """Claims in reservations at each priority and above that another plan could have beyond this one."""
    largest = max(
        (sum(problem.bundles[each].count for each in gang) for gang in problem.gangs.values()), default=1
    )
    priorities = sorted({each.rank.priority for each in problem.bundles})
    places = [
        [number for number, each in enumerate(problem.bundles) if each.rank.priority == priority]
        for priority in priorities
    ]
    reached = [*accumulate(int(taken.served[some].sum()) for some in places)]
    wanted = [*accumulate(int(problem.counts[some].sum()) for some in places)]
    most = [
        min(count, slots, (1 + largest) * got) if got else min(count, slots)
        for count, got in zip(wanted, reached, strict=True)
    ]
    if relaxed is not None:
        bounds = accumulate(int(relaxed.served[some].sum()) for some in places)
        most = [min(one, other) for one, other in zip(most, bounds, strict=True)]
    return [
        (f"claims at priority {-priority} and above", float(max(0, bound - got)))
        for priority, bound, got in zip(priorities, most, reached, strict=True)
    ]


def _least_paid(
    problem: SlotProblem, falls_back: NDArray[np.bool_], costs: NDArray[np.float64], slots: int
) -> float:
    """The least on-demand cost: the dearest claims have the slots, and gangs that bind pay nothing."""
    alone = falls_back & np.array([not each.gang for each in problem.bundles])
    each = np.sort(np.repeat(costs[alone], problem.counts[alone]))
    return float(each[: max(0, len(each) - slots)].sum())


def _ranks_above(ranks: Ints, problem: SlotProblem, taken: SlotFlow) -> float:
    """The sum of the ranks of the taken slots, above that of as many of the best slots."""
    used = int((taken.flow * ranks[problem.arc_slot]).sum())
    best = np.sort(np.repeat(ranks, problem.room))[: taken.reserved]
    return float(max(0, used - int(best.sum())))
