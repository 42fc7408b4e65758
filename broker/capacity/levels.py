"""The objective of a plan, level by level: the values that solvers maximize one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from broker.capacity.problem import Bundle, Ints, SlotProblem

_MICRODOLLAR: Final = 1_000_000


class Level(NamedTuple):
    """The value of a served claim and of a claim of a gang that launches, by bundle; of a claim on an arc."""

    served: Ints
    launched: Ints
    used: Ints


def levels(problem: SlotProblem) -> list[Level]:
    """The objective of a plan but for age (see `plan`); larger values are better."""
    bundles = problem.bundles
    none, unused = np.zeros(len(bundles), dtype=np.int64), np.zeros(len(problem.arc_slot), dtype=np.int64)

    def each(value: Callable[[Bundle], int]) -> Ints:
        return np.array([value(bundle) for bundle in bundles], dtype=np.int64)

    def reserved(counts: Callable[[Bundle], bool]) -> Level:
        return Level(each(lambda bundle: int(counts(bundle))), none, unused)

    def slots(value: Ints) -> Level:
        return Level(none, none, -value)

    by_priority = [
        reserved(lambda bundle, priority=priority: bundle.rank.priority == priority)  # type: ignore[misc]
        for priority in sorted({bundle.rank.priority for bundle in bundles})
    ]
    held = reserved(lambda bundle: not bundle.rank.unheld)
    launched = Level(
        each(lambda bundle: int(not bundle.rank.falls_back)),
        each(lambda bundle: bundle.count if bundle.gang and not bundle.must else 0),
        unused,
    )
    saved = Level(
        each(_cost), each(lambda bundle: -_cost(bundle) * bundle.count if bundle.gang else 0), unused
    )
    measures = [measure[problem.arc_slot] for measure in (*problem.sizes, *problem.ends)]
    return [*by_priority, held, launched, saved, slots(problem.lent.astype(np.int64)), *map(slots, measures)]


def _cost(bundle: Bundle) -> int:
    return round(-bundle.rank.cost * _MICRODOLLAR) if bundle.rank.falls_back else 0
