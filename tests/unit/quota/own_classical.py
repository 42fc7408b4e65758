"""Cases of preemption that Kueue's tables leave open, in the form of its rows.

Each expectation follows from Kueue's rules (pkg/scheduler/preemption/classical), as its line explains; one
flavor, in whole units.
"""

from __future__ import annotations

from typing import Any, Final

from tests.unit.quota.rows import (
    QUEUE,
    RECLAIM,
    WHILE_BORROWING,
    Row,
    held,
    incoming,
    member,
    preempts,
    shared,
)

ANY: Final[dict[str, Any]] = {"within": "LowerPriority", "reclaim": "Any"}
LOWER: Final[dict[str, Any]] = {"within": "LowerPriority", "reclaim": "LowerPriority"}
BORROWS: Final[dict[str, Any]] = ANY | {"borrow": "LowerPriority", "threshold": -1}

ROWS: Final[list[Row]] = [
    # ---- the queue itself
    preempts(
        "the lowest priority is preempted",
        {"q": member(**LOWER, cpu=6)},
        {"low": held("q", -1, cpu=2), "mid": held("q", cpu=2), "high": held("q", 1, cpu=2)},
        incoming("q", 1, cpu=2),
        {"low": QUEUE},
    ),
    preempts(
        "free quota counts",
        {"q": member(**LOWER, cpu=6)},
        {"low": held("q", -1, cpu=1), "mid": held("q", cpu=1), "high": held("q", 1, cpu=3)},
        incoming("q", 1, cpu=2),
        {"low": QUEUE},
    ),
    preempts(
        "of equals the one admitted last, then the first by name",
        {"q": member(**LOWER, cpu=4)},
        {
            "b": held("q", since=5, cpu=1),
            "a": held("q", since=5, cpu=1),
            "old": held("q", since=1, cpu=1),
            "oldest": held("q", cpu=1),
        },
        incoming("q", 1, cpu=1),
        {"a": QUEUE},
    ),
    preempts(
        "of equal priority only a workload that queued later",
        {"q": member(within="LowerOrNewerEqualPriority", cpu=4)},
        {
            "before": held("q", queued=1, cpu=1),
            "with": held("q", queued=2, cpu=1),
            "after": held("q", queued=3, cpu=1),
            "higher": held("q", 1, queued=9, cpu=1),
        },
        incoming("q", queued=2, cpu=1),
        {"after": QUEUE},
    ),
    preempts(
        "a workload that queued at the same moment is not newer",
        {"q": member(within="LowerOrNewerEqualPriority", cpu=2)},
        {"with": held("q", queued=2, cpu=1), "before": held("q", queued=1, cpu=1)},
        incoming("q", queued=2, cpu=1),
        {},
    ),
    preempts(
        "an equal that was admitted later and queued before does not hide the newer one behind it",
        {"q": member(within="LowerOrNewerEqualPriority", cpu=2)},
        {"before": held("q", queued=1, since=9, cpu=1), "after": held("q", queued=3, since=1, cpu=1)},
        incoming("q", queued=2, cpu=1),
        {"after": QUEUE},
    ),
    preempts(
        "no request for a resource that is admitted beyond all quota",
        {"q": member(**LOWER, cpu=2, gpu=1)},
        {"low": held("q", -1, cpu=2), "much": held("q", 9, gpu=3)},
        incoming("q", cpu=2, gpu=0),
        {"low": QUEUE},
    ),
    # ---- other queues of one cohort
    preempts(
        "equals are not reclaimed if only lower ones may be",
        {"a": member("c", **LOWER, cpu=(6, 6)), "b": member("c", reclaim="Any", cpu=(6, 6))},
        {"a1": held("a", cpu=2), "b1": held("b", cpu=4), "b2": held("b", cpu=4)},
        incoming("a", cpu=4),
        {},
    ),
    preempts(
        "a lender reclaims its lent quota",
        {"a": member("c", **LOWER, cpu=(6, None, 4)), "b": member("c", **LOWER, cpu=(6, None, 2))},
        {"a-low": held("a", -1, cpu=3), "b-mid": held("b", cpu=3), "b-high": held("b", 1, cpu=4)},
        incoming("a", 1, cpu=3),
        {"b-mid": RECLAIM},
    ),
    preempts(
        "a lender preempts its own too if its lent quota is not enough",
        {"a": member("c", **LOWER, cpu=(6, None, 4)), "b": member("c", **LOWER, cpu=(6, None, 2))},
        {
            "a-low": held("a", -1, cpu=3),
            "a-mid": held("a", cpu=2),
            "b-low": held("b", -1, cpu=3),
            "b-mid": held("b", cpu=4),
        },
        incoming("a", cpu=4),
        {"a-low": QUEUE, "b-low": RECLAIM},
    ),
    preempts(
        "a queue at its nominal quota preempts only its own",
        {"a": member("c", **ANY, cpu=2), "b": member("c", cpu=2), "d": member("c", cpu=2)},
        {
            "a1": held("a", -2, cpu=1),
            "a2": held("a", -1, cpu=1),
            **{f"b{number}": held("b", cpu=1) for number in (1, 2, 3)},
            "d1": held("d", cpu=1),
        },
        incoming("a", cpu=2),
        {"a1": QUEUE, "a2": QUEUE},
    ),
    preempts(
        "a queue below its nominal quota preempts others before its own",
        {"a": member("c", **ANY, cpu=2), "b": member("c", cpu=2), "d": member("c", cpu=2)},
        {
            "a1": held("a", -1, cpu=1),
            **{f"b{number}": held("b", cpu=1) for number in (1, 2, 3)},
            "d1": held("d", cpu=1),
            "d2": held("d", cpu=1),
        },
        incoming("a", cpu=2),
        {"a1": QUEUE, "b1": RECLAIM},
    ),
    preempts(
        "borrowers of each of two resources that lack",
        {
            "a": member("c", **ANY, cpu=2, gpu=2),
            "b": member("c", cpu=0, gpu=0),
            "d": member("c", cpu=0, gpu=0),
        },
        {"b1": held("b", cpu=2), "d1": held("d", gpu=2)},
        incoming("a", lacks="cpu gpu", cpu=2, gpu=2),
        {"b1": RECLAIM, "d1": RECLAIM},
    ),
    preempts(
        "within its own quota it reclaims, for any rule while borrowing",
        {"a": member("c", **BORROWS, cpu=2), "b": member("c", cpu=0)},
        {"b1": held("b", -1, cpu=2)},
        incoming("a", cpu=2),
        {"b1": RECLAIM},
    ),
    preempts(
        "a victim up to the threshold while borrowing, one above it not",
        {"a": member("c", **BORROWS, cpu=0), "b": member("c", cpu=0), "p": member("c", cpu=4)},
        {"b1": held("b", -1, cpu=2), "b2": held("b", 0, cpu=2)},
        incoming("a", 1, cpu=3),
        {},
    ),
    preempts(
        "any lower priority while borrowing, without a threshold",
        {
            "a": member("c", **ANY, borrow="LowerPriority", cpu=0),
            "b": member("c", cpu=0),
            "p": member("c", cpu=4),
        },
        {"b1": held("b", 3, cpu=2), "b2": held("b", 4, cpu=2)},
        incoming("a", 4, cpu=2),
        {"b1": WHILE_BORROWING},
    ),
    preempts(
        "an equal priority is not lower, for any threshold",
        {
            "a": member("c", **ANY, borrow="LowerPriority", threshold=9, cpu=0),
            "b": member("c", cpu=0),
            "p": member("c", cpu=2),
        },
        {"b1": held("b", 4, cpu=2)},
        incoming("a", 4, cpu=2),
        {},
    ),
    # ---- the order of the tries: with borrowing or without
    preempts(
        "without borrowing first if others may be reclaimed from, but not while borrowing",
        {
            "a": member("c", **ANY, cpu=4),
            "b": member("c", cpu=1),
            "p": member("c", cpu=1),
        },
        {"a1": held("a", -2, cpu=1), "a2": held("a", -1, cpu=2), "b1": held("b", cpu=3)},
        incoming("a", cpu=2),
        {"a1": QUEUE, "b1": RECLAIM},
    ),
    preempts(
        "without borrowing first, even if borrowing would need no such victim",
        {"a": member("c", **ANY, cpu=4), "b": member("c", cpu=0), "p": member("c", cpu=3)},
        {"a1": held("a", -2, cpu=2), "a2": held("a", -1, cpu=1), "b1": held("b", cpu=1)},
        incoming("a", cpu=4),
        {"a1": QUEUE, "a2": QUEUE},
    ),
    preempts(
        "with borrowing if that fails",
        {"a": member("c", **ANY, cpu=2), "b": member("c", cpu=0), "p": member("c", cpu=4)},
        {"a1": held("a", -1, cpu=1), "b1": held("b", cpu=1)},
        incoming("a", cpu=5),
        {"a1": QUEUE},
    ),
    preempts(
        "with borrowing alone if no other queue may be preempted",
        {"a": member("c", **ANY, cpu=4), "b": member("c", cpu=2)},
        {"a1": held("a", -2, cpu=1), "a2": held("a", -1, cpu=2)},
        incoming("a", cpu=4),
        {"a1": QUEUE},
    ),
    preempts(
        "with borrowing first if the queue may preempt while borrowing",
        {"a": member("c", **BORROWS, cpu=4), "b": member("c", cpu=2)},
        {"a1": held("a", -1, cpu=2), "b1": held("b", -1, cpu=4)},
        incoming("a", cpu=3),
        {"b1": WHILE_BORROWING},
    ),
    preempts(
        "without borrowing if that fails",
        {"a": member("c", **BORROWS, cpu=4), "b": member("c", cpu=2)},
        {"a1": held("a", -1, cpu=2), "b1": held("b", 0, cpu=4)},
        incoming("a", cpu=3),
        {"a1": QUEUE, "b1": RECLAIM},
    ),
    preempts(
        "at its nominal quota with borrowing alone",
        {"a": member("c", **ANY, cpu=4), "b": member("c", cpu=1), "p": member("c", cpu=1)},
        {"a1": held("a", -2, cpu=1), "a2": held("a", -1, cpu=3), "b1": held("b", cpu=3)},
        incoming("a", cpu=1),
        {"a2": QUEUE},
    ),
    preempts(
        "at its nominal quota of one of two resources with borrowing alone",
        {
            "a": member("c", **ANY, cpu=4, gpu=4),
            "b": member("c", cpu=1, gpu=0),
            "p": member("c", cpu=1, gpu=0),
        },
        {"a1": held("a", -2, cpu=1), "a2": held("a", -1, cpu=3), "b1": held("b", cpu=3)},
        incoming("a", lacks="cpu gpu", cpu=1, gpu=1),
        {"a2": QUEUE},
    ),
    preempts(
        "no victim if that fails, although it would succeed without borrowing",
        {"a": member("c", **ANY, cpu=4), "b": member("c", cpu=1), "p": member("c", cpu=1)},
        {"a1": held("a", -1, cpu=1), "a2": held("a", 9, cpu=3), "b1": held("b", cpu=3)},
        incoming("a", cpu=1),
        {},
    ),
    # ---- cohorts in cohorts
    preempts(
        "the advantage of a near cohort holds all the way up",
        {
            "q": member("c", **ANY),
            "s": member("m", cpu=0),
            "x": member("r", cpu=0),
        },
        {"s1": held("s", 9, cpu=2), "x1": held("x", 9, cpu=2)},
        incoming("q", cpu=4),
        {"s1": RECLAIM, "x1": RECLAIM},
        cohorts={"r": shared(), "m": shared("r"), "c": shared("m", cpu=4)},
    ),
    preempts(
        "unlent quota of the queue is not requested from the cohort",
        {"q": member("c", **ANY, cpu=(4, None, 1)), "x": member("r", cpu=0)},
        {"x1": held("x", 9, cpu=2)},
        incoming("q", cpu=5),
        {"x1": RECLAIM},
        cohorts={"r": shared(), "c": shared("r", cpu=1)},
    ),
    preempts(
        "with the advantage borrowing comes first, and its own are not preempted",
        {"q": member("c", **ANY, cpu=4), "x": member("r", cpu=0)},
        {"q1": held("q", -1, cpu=2), "x1": held("x", cpu=4)},
        incoming("q", cpu=3),
        {"x1": RECLAIM},
        cohorts={"r": shared(), "c": shared("r", cpu=2)},
    ),
    preempts(
        "if that is not enough, its own and its neighbours', without borrowing",
        {"q": member("c", **LOWER, cpu=4), "s": member("c", cpu=0), "x": member("r", cpu=0)},
        {
            "q1": held("q", -1, cpu=2),
            "s1": held("s", -1, cpu=2),
            "x1": held("x", -1, cpu=1),
            "x2": held("x", 9, cpu=3),
        },
        incoming("q", cpu=4),
        {"q1": QUEUE, "s1": RECLAIM},
        cohorts={"r": shared(), "c": shared("r", cpu=4)},
    ),
    preempts(
        "those with the advantage before those of lower priority without it",
        {
            "q": member("c", **BORROWS, cpu=0),
            "s": member("c", cpu=0),
            "x": member("r", cpu=0),
        },
        {"s1": held("s", -5, cpu=1), "x1": held("x", 5, cpu=1)},
        incoming("q", cpu=1),
        {"x1": RECLAIM},
        cohorts={"r": shared(), "c": shared("r", cpu=2)},
    ),
    preempts(
        "an evicted one without the advantage before one with it",
        {
            "q": member("c", **BORROWS, cpu=0),
            "s": member("c", cpu=0),
            "x": member("r", cpu=0),
        },
        {"s1": held("s", -5, evicted=True, cpu=1), "x1": held("x", 5, cpu=1)},
        incoming("q", cpu=1),
        {},
        cohorts={"r": shared(), "c": shared("r", cpu=2)},
    )
    | {"wantCount": 1},
    preempts(
        "a queue of the own cohort is searched once",
        {"q": member("c", **ANY, cpu=2), "s": member("c", cpu=0)},
        {"s1": held("s", -2, cpu=1), "s2": held("s", -1, cpu=4)},
        incoming("q", cpu=2),
        {"s2": RECLAIM},
        cohorts={"r": shared(cpu=3), "c": shared("r")},
    ),
    preempts(
        "a cohort that is back within its quota is left alone, although its queues borrow of it",
        {
            "q": member("r", **LOWER, cpu=5),
            "y1": member("o", cpu=0),
            "y2": member("o", cpu=0),
            "k": member("r", cpu=0),
        },
        {"a": held("y1", -2, cpu=2), "b": held("y2", -1, cpu=2), "kept": held("k", 9, cpu=1)},
        incoming("q", cpu=5),
        {},
        cohorts={"r": shared(), "o": shared("r", cpu=2)},
    ),
    preempts(
        "a queue that is back within its quota is left alone",
        {"q": member("r", **LOWER, cpu=5), "y": member("r", cpu=2), "k": member("r", cpu=0)},
        {"a": held("y", -2, cpu=2), "b": held("y", -1, cpu=2), "kept": held("k", 9, cpu=1)},
        incoming("q", cpu=5),
        {},
    ),
    preempts(
        "a cohort within its quota does not matter if both queues meet below it",
        {"q": member("c", **ANY, cpu=2), "s": member("c", cpu=0)},
        {"s1": held("s", cpu=2)},
        incoming("q", cpu=2),
        {"s1": RECLAIM},
        cohorts={"r": shared(cpu=0), "c": shared("r")},
    ),
]
