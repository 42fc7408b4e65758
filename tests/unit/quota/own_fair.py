"""Cases of fair sharing that Kueue's tables leave open, written as its rows are.

Each expectation is worked out from Kueue's rules (pkg/scheduler/preemption/fairsharing), as its line
says; one flavor, in whole units.
"""

from __future__ import annotations

from typing import Any, Final

from tests.unit.quota.rows import FAIR, QUEUE, RECLAIM, Row, asks, held, member, preempts, shared

ANY: Final[dict[str, Any]] = {"within": "LowerPriority", "reclaim": "Any"}
LOWER: Final[dict[str, Any]] = {"within": "LowerPriority", "reclaim": "LowerPriority"}
FIRST, SECOND = "LessThanOrEqualToFinalShare", "LessThanInitialShare"

ROWS: Final[list[Row]] = [
    preempts(
        "two victims that keep the largest share lowest",
        {
            **{each: member("all", **ANY, cpu=3000) for each in "abc"},
            "preemptible": member("all", cpu=0),
        },
        {
            "b1": held("b", cpu=2000),
            "b2": held("b", cpu=2500),
            "c1": held("c", cpu=2000),
            "c2": held("c", cpu=2500),
        },
        asks("a", cpu=3500),
        {"b1": FAIR, "c1": FAIR},
        fair=True,
    ),
    preempts(
        "and it does not go back and forth",
        {
            **{each: member("all", **ANY, cpu=3000) for each in "abc"},
            "preemptible": member("all", cpu=0),
        },
        {"a1": held("a", cpu=3500), "b2": held("b", cpu=2500), "c2": held("c", cpu=2500)},
        asks("b", cpu=2000),
        {},
        fair=True,
    ),
    preempts(
        "an equal share afterwards is fair",
        {"a": member("all", **ANY, cpu=0), "b": member("all", cpu=0)},
        {"a1": held("a", cpu=1), **{f"b{each}": held("b", cpu=1) for each in (1, 2, 3)}},
        asks("a", cpu=1),
        {"b1": FAIR},
        cohorts={"all": shared(cpu=4)},
        fair=True,
    ),
    preempts(
        "an equal share before is not",
        {"a": member("all", **ANY, cpu=0), "b": member("all", cpu=0)},
        {"a1": held("a", cpu=2), "b1": held("b", cpu=3)},
        asks("a", cpu=1),
        {},
        cohorts={"all": shared(cpu=5)},
        fair=True,
    ),
    preempts(
        "nor where that is the only strategy",
        {"a": member("all", **ANY, cpu=0), "b": member("all", cpu=0)},
        {"a1": held("a", cpu=2), "b1": held("b", cpu=3)},
        asks("a", cpu=1),
        {},
        cohorts={"all": shared(cpu=5)},
        fair=True,
        strategies=[SECOND],
    ),
    preempts(
        "a smaller share before is, by the second strategy",
        {"a": member("all", **ANY, cpu=0), "b": member("all", cpu=0)},
        {"a1": held("a", cpu=2), "b1": held("b", cpu=4)},
        asks("a", cpu=1),
        {"b1": FAIR},
        cohorts={"all": shared(cpu=6)},
        fair=True,
    ),
    preempts(
        "not without it",
        {"a": member("all", **ANY, cpu=0), "b": member("all", cpu=0)},
        {"a1": held("a", cpu=2), "b1": held("b", cpu=4)},
        asks("a", cpu=1),
        {},
        cohorts={"all": shared(cpu=6)},
        fair=True,
        strategies=[FIRST],
    ),
    preempts(
        "exactly its nominal quota is its own, whatever the shares",
        {"a": member("all", **ANY, cpu=2), "b": member("all", weight=100, cpu=0)},
        {"a1": held("a", cpu=1), "b1": held("b", 9, cpu=1)},
        asks("a", cpu=1),
        {"b1": RECLAIM},
        fair=True,
    ),
    preempts(
        "of equal shares a cohort's before a queue's",
        {"a": member("all", **ANY, cpu=0), "b": member("all", cpu=0), "x": member("X", cpu=0)},
        {
            **{f"b{each}": held("b", cpu=1) for each in (1, 2)},
            **{f"x{each}": held("x", cpu=1) for each in (1, 2)},
        },
        asks("a", cpu=1),
        {"x1": FAIR},
        cohorts={"all": shared(cpu=4), "X": shared("all")},
        fair=True,
    ),
    preempts(
        "of equal shares another queue's before its own",
        {"a": member("all", **ANY, cpu=0, gpu=0), "b": member("all", cpu=0, gpu=0)},
        {"a1": held("a", -1, gpu=1), "b0": held("b", cpu=4), "b1": held("b", gpu=1)},
        asks("a", lacks="gpu", gpu=1),
        {"b1": FAIR},
        cohorts={"all": shared(cpu=4, gpu=2)},
        fair=True,
    ),
    preempts(
        "of equal shares one that is evicted already, whatever its priority",
        {"a": member("all", **ANY, cpu=0), "b": member("all", cpu=0), "c": member("all", cpu=0)},
        {
            "b1": held("b", -1, cpu=1),
            "b2": held("b", -1, cpu=1),
            "c1": held("c", 5, evicted=True, cpu=1),
            "c2": held("c", 5, cpu=1),
        },
        asks("a", cpu=1),
        {"c1": FAIR},
        cohorts={"all": shared(cpu=4)},
        fair=True,
    ),
    preempts(
        "only lower priorities of others where the queue reclaims no more",
        {"a": member("all", **LOWER, cpu=0), "b": member("all", cpu=0)},
        {"b1": held("b", cpu=2), "b2": held("b", -1, cpu=2)},
        asks("a", cpu=1),
        {"b2": FAIR},
        cohorts={"all": shared(cpu=4)},
        fair=True,
    ),
    preempts(
        "nobody of others where the queue does not reclaim",
        {"a": member("all", within="LowerPriority", cpu=0), "b": member("all", cpu=0)},
        {"b1": held("b", -1, cpu=4)},
        asks("a", cpu=1),
        {},
        cohorts={"all": shared(cpu=4)},
        fair=True,
    ),
    preempts(
        "its own, in a queue without a cohort",
        {"a": member(**ANY, cpu=4)},
        {"a1": held("a", -2, cpu=1), "a2": held("a", -1, cpu=3)},
        asks("a", cpu=2),
        {"a2": QUEUE},
        fair=True,
    ),
    preempts(
        "a borrower below a cohort that does not borrow keeps what it has",
        {"a": member("all", **ANY, cpu=0), "y": member("Y", cpu=0), "z": member("all", cpu=0)},
        {"y1": held("y", cpu=2), "z1": held("z", cpu=2), "z2": held("z", cpu=1)},
        asks("a", cpu=1),
        {"z1": FAIR},
        cohorts={"all": shared(cpu=3), "Y": shared("all", cpu=2)},
        fair=True,
    ),
    preempts(
        "of its own, where it borrows nothing and others may not be taken from",
        {"a": member("all", **LOWER, cpu=2), "b": member("all", cpu=0)},
        {"a1": held("a", -1, cpu=1), "b1": held("b", 9, cpu=1)},
        asks("a", cpu=1),
        {"a1": QUEUE},
        fair=True,
    ),
    preempts(
        "nor is it reclaimed from by who stays within its own quota",
        {"a": member("all", **LOWER, cpu=2), "y": member("Y", cpu=0), "z": member("all", cpu=0)},
        {"y1": held("y", -1, cpu=2), "z1": held("z", 9, cpu=1)},
        asks("a", cpu=2),
        {},
        cohorts={"all": shared(), "Y": shared("all", cpu=2)},
        fair=True,
    ),
    preempts(
        "a member takes from another of its own cohort, although that borrows nothing",
        {"a": member("Y", **LOWER, cpu=0), "b": member("Y", cpu=0), "z": member("all", cpu=0)},
        {**{f"b{each}": held("b", -1, cpu=1) for each in (1, 2)}, "z1": held("z", 9, cpu=1)},
        asks("a", cpu=1),
        {"b1": FAIR},
        cohorts={"all": shared(), "Y": shared("all", cpu=3)},
        fair=True,
    ),
    preempts(
        "from each in turn, as long as it has most",
        {"a": member("all", **ANY, cpu=0), "b": member("all", cpu=0), "c": member("all", cpu=0)},
        {f"{queue}{each}": held(queue, cpu=1) for queue in "bc" for each in (1, 2, 3, 4)},
        asks("a", cpu=2),
        {"b1": FAIR, "c1": FAIR},
        cohorts={"all": shared(cpu=8)},
        fair=True,
    ),
    preempts(
        "without weight beside others that borrow: the first to give",
        {"a": member("all", **ANY, cpu=0), "b": member("all", weight=0, cpu=0), "c": member("all", cpu=0)},
        {"b1": held("b", cpu=1), **{f"c{each}": held("c", cpu=1) for each in (1, 2, 3)}},
        asks("a", cpu=1),
        {"b1": FAIR},
        cohorts={"all": shared(cpu=4)},
        fair=True,
        strategies=[SECOND],
    ),
    preempts(
        "half a weight is twice the share",
        {"a": member("all", **ANY, cpu=0), "b": member("all", weight=0.5, cpu=0), "c": member("all", cpu=0)},
        {
            **{f"b{each}": held("b", cpu=1) for each in (1, 2)},
            **{f"c{each}": held("c", cpu=1) for each in (1, 2, 3)},
        },
        asks("a", cpu=1),
        {"b1": FAIR},
        cohorts={"all": shared(cpu=5)},
        fair=True,
    ),
    preempts(
        "the dominant resource counts, not the sum of all",
        {
            "a": member("all", **ANY, cpu=0, gpu=0),
            "b": member("all", cpu=0, gpu=0),
            "c": member("all", cpu=0, gpu=0),
        },
        {
            **{f"b{each}": held("b", cpu=2, gpu=2) for each in (1, 2)},
            **{f"c{each}": held("c", cpu=1) for each in (1, 2, 3, 4, 5)},
        },
        asks("a", cpu=1),
        {"c1": FAIR},
        cohorts={"all": shared(cpu=9, gpu=9)},
        fair=True,
    ),
]
