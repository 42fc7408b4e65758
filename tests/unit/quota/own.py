"""Cases of flavor assignment that Kueue's tables leave open, in the form of its rows.

Each expectation follows from Kueue's rules (pkg/scheduler/flavorassigner, fitsResourceQuota,
findFlavorForPodSets and isPreferred), as its line explains; cpu in milli.
"""

from __future__ import annotations

from typing import Final

from tests.unit.quota.rows import Group, Row, pods, row

SPOT: Final = {"Key": "instance", "Operator": "corev1.TolerationOpExists"}
ONE_TWO: Final[Group] = {"one": {"cpu": 3000}, "two": {"cpu": 3000}}
FIT_ONE, FIT_TWO = {"cpu": "one Fit"}, {"cpu": "two Fit"}
PREEMPT_ONE, PREEMPT_TWO = {"cpu": "one Preempt"}, {"cpu": "two Preempt"}
FULL: Final = {"one|cpu": 3000, "two|cpu": 3000}

ROWS: Final[list[Row]] = [
    row(
        "a request of zero for an unknown resource needs no flavor",
        [ONE_TWO],
        pods(gpu=0),
        ("Fit", [{}], 0),
    ),
    # ---- permitted flavors
    row(
        "every flavor has a taint that is not tolerated",
        [{"tainted": {"cpu": 3000}}],
        pods(cpu=1000),
        ("NoFit", [{}], 0),
    ),
    row(
        "a toleration of any value",
        [{"tainted": {"cpu": 3000}}],
        pods(cpu=1000, tolerations=[SPOT]),
        ("Fit", [{"cpu": "tainted Fit"}], 0),
    ),
    row(
        "the flavor's own toleration",
        [{"taint_and_toleration": {"cpu": 3000}}],
        pods(cpu=1000),
        ("Fit", [{"cpu": "taint_and_toleration Fit"}], 0),
    ),
    row(
        "the node selector names the second",
        [ONE_TWO],
        pods(cpu=1000, on="two"),
        ("Fit", [FIT_TWO], 0),
    ),
    row(
        "the node selector names none of the flavor's keys",
        [{"b_one": {"cpu": 3000}}],
        pods(cpu=1000, on="two"),
        ("Fit", [{"cpu": "b_one Fit"}], 0),
    ),
    row(
        "a missing flavor is skipped",
        [{"missing": {"cpu": 3000}, "two": {"cpu": 3000}}],
        pods(cpu=1000),
        ("Fit", [FIT_TWO], 0),
    ),
    row("every flavor is missing", [{"missing": {"cpu": 3000}}], pods(cpu=1000), ("NoFit", [{}], 0)),
    # ---- resources and groups
    row(
        "pods are counted if the queue covers them",
        [{"one": {"cpu": 9000, "pods": 3}}],
        pods(4, cpu=1000),
        ("NoFit", [{}], 0),
    ),
    row(
        "pods that fit take the flavor too",
        [{"one": {"cpu": 9000, "pods": 3}}],
        pods(3, cpu=1000),
        ("Fit", [{"cpu": "one Fit", "pods": "one Fit"}], 0),
    ),
    row(
        "each group has a flavor of its own",
        [ONE_TWO, {"b_one": {"gpu": 1}, "b_two": {"gpu": 4}}],
        pods(cpu=2000, gpu=2),
        ("Fit", [{"cpu": "two Fit", "gpu": "b_two Fit"}], 0),
        used={"one|cpu": 3000},
    ),
    row(
        "the resources of a group go together: the flavor is as good as its worst",
        [{"one": {"cpu": 3000, "memory": 10}, "two": {"cpu": 3000, "memory": 10}}],
        pods(cpu=1000, memory=5),
        ("Fit", [{"cpu": "two Fit", "memory": "two Fit"}], 0),
        used={"one|memory": 10},
    ),
    row(
        "a request of zero for a used-up resource fits",
        [{"one": {"cpu": 3000, "memory": 10}}],
        pods(cpu=0, memory=5),
        ("Fit", [{"cpu": "one Fit", "memory": "one Fit"}], 0),
        used={"one|cpu": 3000},
    ),
    row(
        "a request of zero for a resource beyond its quota fits",
        [{"one": {"cpu": 3000, "memory": 10}}],
        pods(cpu=0, memory=5),
        ("Fit", [{"cpu": "one Fit", "memory": "one Fit"}], 0),
        used={"one|cpu": 4000},
    ),
    row(
        "a request of zero for a borrowed resource counts as borrowing",
        [{"one": {"cpu": 3000, "memory": 10}}],
        pods(cpu=0, memory=5),
        ("Fit", [{"cpu": "one Fit", "memory": "one Fit"}], 1),
        used={"one|cpu": 4000},
        peer={"one": {"cpu": 3000, "memory": 10}},
    ),
    # ---- the reach of the quota
    row(
        "up to the borrowing limit",
        [{"one": {"cpu": (2000, 1000)}}],
        pods(cpu=3000),
        ("Fit", [FIT_ONE], 1),
        peer={"one": {"cpu": 9000}},
    ),
    row(
        "not beyond the borrowing limit",
        [{"one": {"cpu": (2000, 1000)}}],
        pods(cpu=3001),
        ("NoFit", [{}], 0),
        peer={"one": {"cpu": 9000}},
    ),
    row(
        "a lending limit above the quota lends the quota",
        [{"one": {"cpu": 0}}],
        pods(cpu=2001),
        ("NoFit", [{}], 0),
        peer={"one": {"cpu": (2000, None, 9000)}},
    ),
    row(
        "unlent quota stays the queue's own",
        [{"one": {"cpu": (5000, None, 2000)}}],
        pods(cpu=3000),
        ("Fit", [FIT_ONE], 0),
        peer={"one": {"cpu": 2000}},
        peer_used={"one|cpu": 4000},
    ),
    row(
        "lent quota that others hold needs preemption",
        [{"one": {"cpu": (5000, None, 2000)}}],
        pods(cpu=3001),
        ("Preempt", [PREEMPT_ONE], 0),
        peer={"one": {"cpu": 2000}},
        peer_used={"one|cpu": 4000},
    ),
    row(
        "borrowed from the cohort's cohort",
        [{"one": {"cpu": 1000}}],
        pods(cpu=3000),
        ("Fit", [FIT_ONE], 2),
        cohort="near",
        peer={"one": {"cpu": 5000}},
        peer_cohort="far",
        cohorts=[
            {"name": "near", "parent": "root", "quotas": {}},
            {"name": "far", "parent": "root", "quotas": {}},
            {"name": "root", "parent": None, "quotas": {}},
        ],
    ),
    row(
        "quota is lent out, and no workload may be preempted while borrowing",
        [{"one": {"cpu": 1000}}],
        pods(cpu=2000),
        ("NoFit", [{}], 0),
        peer={"one": {"cpu": 3000}},
        peer_used={"one|cpu": 3000},
        reclaim="Any",
    ),
    row(
        "the same if it may preempt while borrowing",
        [{"one": {"cpu": 1000}}],
        pods(cpu=2000),
        ("Preempt", [PREEMPT_ONE], 1),
        peer={"one": {"cpu": 3000}},
        peer_used={"one|cpu": 3000},
        reclaim="Any",
        borrow="LowerPriority",
        oracle={"one|cpu": ("Preempt", 1)},
    ),
    row(
        "the own cohort's quota, held by a queue farther away: it may be reclaimed",
        [{"one": {"cpu": 0}}],
        pods(cpu=2000),
        ("Preempt", [PREEMPT_ONE], 1),
        cohort="near",
        peer={"one": {"cpu": 0}},
        peer_cohort="root",
        peer_used={"one|cpu": 2000},
        cohorts=[
            {"name": "near", "parent": "root", "quotas": {"one|cpu": {"nominal": 2000}}},
            {"name": "root", "parent": None, "quotas": {}},
        ],
        reclaim="Any",
        oracle={"one|cpu": ("Reclaim", 1)},
    ),
    # ---- the better flavor
    row(
        "reclaiming is better than preempting in the queue",
        [ONE_TWO],
        pods(cpu=2000),
        ("Preempt", [PREEMPT_TWO], 0),
        used=FULL,
        oracle={"one|cpu": ("Preempt", 0), "two|cpu": ("Reclaim", 0)},
    ),
    row(
        "the next flavor is tried rather than reclaim",
        [ONE_TWO],
        pods(cpu=2000),
        ("Fit", [FIT_TWO], 0),
        used={"one|cpu": 3000},
        oracle={"one|cpu": ("Reclaim", 0)},
    ),
    row(
        "no candidates in any flavor: the first flavor",
        [ONE_TWO],
        pods(cpu=2000),
        ("Preempt", [PREEMPT_ONE], 0),
        used=FULL,
        oracle={"one|cpu": ("NoCandidates", 0), "two|cpu": ("NoCandidates", 0)},
    ),
    row(
        "no candidates in any flavor: the flavor with the smaller borrowing distance",
        [ONE_TWO],
        pods(cpu=2000),
        ("Preempt", [PREEMPT_TWO], 0),
        used=FULL,
        oracle={"one|cpu": ("NoCandidates", 1), "two|cpu": ("NoCandidates", 0)},
    ),
    row(
        "borrowing before preempting by default",
        [{"one": {"cpu": 1000}, "two": {"cpu": 3000}}],
        pods(cpu=2000),
        ("Fit", [FIT_ONE], 1),
        peer={"one": {"cpu": 9000}},
        used={"two|cpu": 3000},
    ),
    row(
        "the first that fits ends the search, the first that borrows as well",
        [{"one": {"cpu": 1000}, "two": {"cpu": 3000}}],
        pods(cpu=2000),
        ("Fit", [FIT_ONE], 1),
        peer={"one": {"cpu": 9000}},
    ),
]
