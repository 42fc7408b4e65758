"""Cases of flavor assignment that Kueue's tables leave open, written as its rows are.

Each expectation is worked out from Kueue's rules (pkg/scheduler/flavorassigner, fitsResourceQuota,
findFlavorForPodSets and isPreferred), as its line says; cpu in milli.
"""

from __future__ import annotations

from typing import Final

from tests.unit.quota.rows import Group, Row, pods, row

TRY_BOTH: Final = {"WhenCanBorrow": "TryNextFlavor", "WhenCanPreempt": "TryNextFlavor"}
STAY: Final = {"WhenCanBorrow": "MayStopSearch", "WhenCanPreempt": "MayStopSearch"}
SPOT: Final = {"Key": "instance", "Operator": "corev1.TolerationOpExists"}
ONE_TWO: Final[Group] = {"one": {"cpu": 3000}, "two": {"cpu": 3000}}
FIT_ONE, FIT_TWO = {"cpu": "one Fit"}, {"cpu": "two Fit"}
PREEMPT_ONE, PREEMPT_TWO = {"cpu": "one Preempt"}, {"cpu": "two Preempt"}
FULL: Final = {"one|cpu": 3000, "two|cpu": 3000}

ROWS: Final[list[Row]] = [
    # ---- pod sets one after the other
    row(
        "the second pod set finds what the first took used up, and goes on",
        [ONE_TWO],
        [pods(name="a", cpu=2000), pods(name="b", cpu=2000)],
        ("Fit", [FIT_ONE, FIT_TWO], 0),
    ),
    row(
        "what the first took is more than the queue can ever have for both",
        [{"one": {"cpu": 3000}}],
        [pods(name="a", cpu=2000), pods(name="b", cpu=2000)],
        ("NoFit", [FIT_ONE, {}], 0),
    ),
    row(
        "both together borrow, although each alone does not",
        [{"one": {"cpu": 3000}}],
        [pods(name="a", cpu=2000), pods(name="b", cpu=2000)],
        ("Fit", [FIT_ONE, FIT_ONE], 1),
        peer={"one": {"cpu": 3000}},
    ),
    row(
        "the first must preempt, the second fits elsewhere: as good as the worst",
        [ONE_TWO],
        [pods(name="a", on="one", cpu=2000), pods(name="b", on="two", cpu=2000)],
        ("Preempt", [PREEMPT_ONE, FIT_TWO], 0),
        used={"one|cpu": 3000},
    ),
    row(
        "a pod set's requests are of each of its pods",
        [{"one": {"cpu": 3000}}],
        pods(4, cpu=1000),
        ("NoFit", [{}], 0),
    ),
    row(
        "pod sets of one group take the flavor that holds both",
        [{"one": {"cpu": 3000}, "two": {"cpu": 4000}}],
        [pods(name="a", group="g", cpu=2000), pods(name="b", group="g", cpu=2000)],
        ("Fit", [FIT_TWO, FIT_TWO], 0),
    ),
    # ---- which flavors may be
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
        "the node selector speaks of the second",
        [ONE_TWO],
        pods(cpu=1000, on="two"),
        ("Fit", [FIT_TWO], 0),
    ),
    row(
        "the node selector speaks of none of the flavor's keys",
        [{"b_one": {"cpu": 3000}}],
        pods(cpu=1000, on="two"),
        ("Fit", [{"cpu": "b_one Fit"}], 0),
    ),
    row(
        "a flavor that is not there is passed over",
        [{"missing": {"cpu": 3000}, "two": {"cpu": 3000}}],
        pods(cpu=1000),
        ("Fit", [FIT_TWO], 0),
    ),
    row("no flavor is there", [{"missing": {"cpu": 3000}}], pods(cpu=1000), ("NoFit", [{}], 0)),
    # ---- resources and groups
    row(
        "pods are counted where the queue covers them",
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
        "and is taken as it is where the search may stop at preemption",
        [{"one": {"cpu": 3000, "memory": 10}, "two": {"cpu": 3000, "memory": 10}}],
        pods(cpu=1000, memory=5),
        ("Preempt", [{"cpu": "one Fit", "memory": "one Preempt"}], 0),
        used={"one|memory": 10},
        fungibility=STAY,
    ),
    row(
        "nothing asked of what is used up fits",
        [{"one": {"cpu": 3000, "memory": 10}}],
        pods(cpu=0, memory=5),
        ("Fit", [{"cpu": "one Fit", "memory": "one Fit"}], 0),
        used={"one|cpu": 3000},
    ),
    row(
        "nothing asked of what the queue borrows already is borrowing still",
        [{"one": {"cpu": 3000, "memory": 10}}],
        pods(cpu=0, memory=5),
        ("Fit", [{"cpu": "one Fit", "memory": "one Fit"}], 1),
        used={"one|cpu": 4000},
        peer={"one": {"cpu": 3000, "memory": 10}},
    ),
    # ---- how far the quota reaches
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
        "what a queue does not lend is its own still",
        [{"one": {"cpu": (5000, None, 2000)}}],
        pods(cpu=3000),
        ("Fit", [FIT_ONE], 0),
        peer={"one": {"cpu": 2000}},
        peer_used={"one|cpu": 4000},
    ),
    row(
        "what it lends and others have must be preempted for",
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
        "a nearer flavor is better than a farther one",
        [{"one": {"cpu": 1000}, "two": {"cpu": 1000}}],
        pods(cpu=3000),
        ("Fit", [FIT_TWO], 1),
        cohort="near",
        peer={"one": {"cpu": 5000}},
        peer_cohort="far",
        cohorts=[
            {"name": "near", "parent": "root", "quotas": {"two|cpu": {"nominal": 5000}}},
            {"name": "far", "parent": "root", "quotas": {}},
            {"name": "root", "parent": None, "quotas": {}},
        ],
        fungibility=TRY_BOTH,
    ),
    row(
        "lent out beyond reach, and nobody may be preempted while borrowing: it waits",
        [{"one": {"cpu": 1000}}],
        pods(cpu=2000),
        ("NoFit", [{}], 0),
        peer={"one": {"cpu": 3000}},
        peer_used={"one|cpu": 3000},
        reclaim="Any",
    ),
    row(
        "the same where it may preempt while borrowing",
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
        "the same with fair sharing and reclaim",
        [{"one": {"cpu": 1000}}],
        pods(cpu=2000),
        ("Preempt", [PREEMPT_ONE], 1),
        peer={"one": {"cpu": 3000}},
        peer_used={"one|cpu": 3000},
        reclaim="LowerPriority",
        fair=True,
        oracle={"one|cpu": ("Preempt", 1)},
    ),
    row(
        "the same with fair sharing and no reclaim",
        [{"one": {"cpu": 1000}}],
        pods(cpu=2000),
        ("NoFit", [{}], 0),
        peer={"one": {"cpu": 3000}},
        peer_used={"one|cpu": 3000},
        fair=True,
    ),
    row(
        "the own cohort's quota, which somebody farther away has: it may be reclaimed",
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
    # ---- which is better
    row(
        "reclaiming is better than preempting in the queue",
        [ONE_TWO],
        pods(cpu=2000),
        ("Preempt", [PREEMPT_TWO], 0),
        used=FULL,
        oracle={"one|cpu": ("Preempt", 0), "two|cpu": ("Reclaim", 0)},
    ),
    row(
        "where nobody may be preempted is worse than where somebody may, and never where the search stops",
        [ONE_TWO],
        pods(cpu=2000),
        ("Preempt", [PREEMPT_TWO], 0),
        used=FULL,
        oracle={"one|cpu": ("NoCandidates", 0), "two|cpu": ("Preempt", 0)},
        fungibility=STAY,
    ),
    row(
        "nobody may be preempted anywhere: the first",
        [ONE_TWO],
        pods(cpu=2000),
        ("Preempt", [PREEMPT_ONE], 0),
        used=FULL,
        oracle={"one|cpu": ("NoCandidates", 0), "two|cpu": ("NoCandidates", 0)},
    ),
    row(
        "nobody may be preempted anywhere: the one that borrows less far",
        [ONE_TWO],
        pods(cpu=2000),
        ("Preempt", [PREEMPT_TWO], 0),
        used=FULL,
        oracle={"one|cpu": ("NoCandidates", 1), "two|cpu": ("NoCandidates", 0)},
    ),
    row(
        "a flavor that can be had is better than one where nobody may be preempted, borrowed or not",
        [{"one": {"cpu": 3000}, "two": {"cpu": 1000}}],
        pods(cpu=2000),
        ("Fit", [FIT_TWO], 1),
        peer={"two": {"cpu": 9000}},
        used={"one|cpu": 3000},
        oracle={"one|cpu": ("NoCandidates", 0)},
        fungibility=TRY_BOTH | {"Preference": "PreemptionOverBorrowing"},
    ),
    row(
        "borrowing before preempting by default",
        [{"one": {"cpu": 1000}, "two": {"cpu": 3000}}],
        pods(cpu=2000),
        ("Fit", [FIT_ONE], 1),
        peer={"one": {"cpu": 9000}},
        used={"two|cpu": 3000},
        fungibility=TRY_BOTH,
    ),
    row(
        "preempting before borrowing where the queue prefers it",
        [{"one": {"cpu": 1000}, "two": {"cpu": 3000}}],
        pods(cpu=2000),
        ("Preempt", [PREEMPT_TWO], 0),
        peer={"one": {"cpu": 9000}},
        used={"two|cpu": 3000},
        fungibility=TRY_BOTH | {"Preference": "PreemptionOverBorrowing"},
    ),
    row(
        "the first that fits ends the search, the first that borrows as well",
        [{"one": {"cpu": 1000}, "two": {"cpu": 3000}}],
        pods(cpu=2000),
        ("Fit", [FIT_ONE], 1),
        peer={"one": {"cpu": 9000}},
    ),
]
