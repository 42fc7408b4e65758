"""The same results as Kueue, row by row of its tables, and of this project's if these leave a rule open."""

from __future__ import annotations

import copy

import pytest

from broker.quota.assign import Simulation, assign
from broker.quota.classical import preempt
from broker.quota.flavors import FlavorRequest
from broker.quota.model import BorrowPolicy, FlavorResource, Mode, Possibility, Preemption
from tests.unit.quota import builders, cases, own, own_classical
from tests.unit.quota.cases import Row

_ASSIGN = [
    row for row in [*cases.CASES, *own.ROWS] if row["suite"] == "TestAssignFlavors" and cases.expressible(row)
]
_PREEMPT = [row for row in cases.CASES if row["suite"] != "TestAssignFlavors"] + own_classical.ROWS


@pytest.mark.parametrize("row", _PREEMPT, ids=cases.row_id)
def test_victims_equal_kueues(row: Row) -> None:
    ledger = cases.ledger(cases.checked(row))
    before = {name: dict(node.usage) for name, node in ledger.tree.queues.items()}
    request, needed = cases.incoming_request(row)

    victims = preempt(ledger, request, needed)

    # The tables list only targets that get the Preempted condition; a workload that was evicted before does
    # not get it again.
    listed = [victim for victim in victims if not victim.workload.evicted]
    named = sorted((victim.workload.name, str(victim.reason)) for victim in listed)
    assert named == sorted((expected["name"], expected["reason"]) for expected in row["want"])
    assert len(victims) == (row["wantCount"] or len(row["want"]))
    after = {name: node.usage for name, node in ledger.tree.queues.items()}
    assert {
        name: {key: value for key, value in usage.items() if value or key in before[name]}
        for name, usage in after.items()
    } == before


@pytest.mark.parametrize("row", _ASSIGN, ids=cases.row_id)
def test_assigned_flavors_equal_kueues(row: Row) -> None:
    tree = cases.tree(cases.checked(row))
    for usage in row["usage"]:
        tree.queues[usage["cq"]].add(cases.amounts(usage["usage"]))
    node = tree.queues[row["clusterQueues"][0]["name"]]
    (pod_set,) = row["podSets"]

    assignment = assign(node, cases.request(pod_set), cases.FLAVORS, cases.oracle(row))

    chosen = {
        resource: {"flavor": choice.flavor, "mode": str(choice.mode)}
        for resource, choice in assignment.choices.items()
    }
    assert str(assignment.mode) == row["want"]["mode"]
    assert [chosen] == row["want"]["podSetFlavors"]
    assert assignment.level == row["want"]["borrowingLevel"]


@pytest.mark.parametrize(
    ("within", "borrowed", "taken"),
    [("one", "two", "two"), ("two", "one", "one")],
    ids=["the second can be reclaimed", "the first can be reclaimed"],
)
def test_simulated_preemption_decides_the_flavor(within: str, borrowed: str, taken: str) -> None:
    """In one flavor the victim is in the queue itself, in the other it is a borrower."""
    rule = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any", "borrowWithinCohort": None}
    quotas = {f"{flavor}|cpu": {"nominal": 2} for flavor in ("one", "two")}
    queues: list[Row] = [
        {"name": "a", "cohort": "c", "quotas": quotas, "flavorOrder": [["one", "two"]], "preemption": rule},
        {"name": "b", "cohort": "c", "quotas": {f"{borrowed}|cpu": {"nominal": 0}}},
    ]
    holder = {"priority": -1, "reservedAt": 0, "queueTs": 0, "evicted": False}
    admitted = [
        {"name": "mine", "cq": "a", "usage": {f"{within}|cpu": 2}, **holder},
        {"name": "theirs", "cq": "b", "usage": {f"{borrowed}|cpu": 2}, **holder},
    ]
    world = cases.ledger({"clusterQueues": queues, "admitted": admitted})
    assignment = assign(
        world.node("a"),
        FlavorRequest(requests={"cpu": 2}),
        cases.FLAVORS,
        Simulation(world, "a", 0, 0.0),
    )
    assert (assignment.choices["cpu"].flavor, assignment.mode) == (taken, Mode.PREEMPT)


@pytest.mark.parametrize(
    ("priority", "borrow", "own", "expected"),
    [
        (0, "Never", 2, (Possibility.PREEMPT, 0)),
        (-5, "Never", 2, (Possibility.NO_CANDIDATES, 1)),
        (0, "LowerPriority", 0, (Possibility.RECLAIM, 1)),
    ],
    ids=["of its own too", "no victim", "of others alone, to borrow"],
)
def test_simulation_returns_victims_and_borrowing_distance(
    priority: int, borrow: BorrowPolicy, own: int, expected: tuple[Possibility, int]
) -> None:
    rule = Preemption(within="LowerPriority", reclaim="LowerPriority", borrow=borrow)
    world = builders.ledger(
        builders.queue("a", own, "c", preemption=rule),
        builders.queue("b", 0, "c"),
        builders.queue("d", 2, "c"),
        *(builders.workload(f"a{number}", "a", 1, priority=-2) for number in range(own // 2)),
        *(builders.workload(f"b{number}", "b", 1, priority=-2) for number in range(2)),
        builders.workload("firm", "d", own // 2, priority=9),
    )
    simulation = Simulation(world, "a", priority, 0.0)
    assert simulation(builders.GPU, 2) == expected


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ((), {"gates": ["PriorityBoost"]}),
        ((), {"suite": "TestAvailable"}),
        (("clusterQueues", 0), {"flavorOrder": [["one", "four"]]}),
        (("clusterQueues", 0), {"fairSharing": 1}),
        (("clusterQueues", 0, "preemption"), {"reclaimWithinCohort": "Sometimes"}),
        (("clusterQueues", 0, "preemption"), {"within": "Any"}),
        (("clusterQueues", 0, "flavorFungibility"), {"Preference": "Cheapest"}),
        (("podSets", 0), {"affinities": []}),
        (("podSets", 0, "tolerations", 0), {"TolerationSeconds": 1}),
        (("podSets", 0, "tolerations", 0), {"Operator": "corev1.TolerationOpNear"}),
        (("want",), {"usage": {}}),
    ],
)
def test_row_with_unread_fields_is_rejected(path: tuple[str | int, ...], more: Row) -> None:
    row = copy.deepcopy(next(case for case in _ASSIGN if case["podSets"][0]["tolerations"]))
    part = row
    for step in path:
        part = part[step]  # type: ignore[index]
    part.update(more)
    with pytest.raises(ValueError, match=r"unknown flavor|unknown fields|not one of"):
        cases.checked(row)


@pytest.mark.parametrize(
    ("used", "available", "potential"),
    [((20, 10, 6), (4, 2, 4), (35, 12, 40)), ((0, 0, 0), (35, 12, 40), (35, 12, 40))],
)
def test_available_with_lending_and_borrowing_limits(
    used: tuple[int, ...], available: tuple[int, ...], potential: tuple[int, ...]
) -> None:
    """Kueue's resource_test.go, "lending and borrowing limits respected"."""
    flavor_key = "f|cpu"
    row = {
        "cohorts": [{"name": "c", "quotas": {flavor_key: {"nominal": 10}}}],
        "clusterQueues": [
            {"name": "cq1", "cohort": "c", "quotas": {flavor_key: {"nominal": 10}}},
            {"name": "cq2", "cohort": "c", "quotas": {flavor_key: {"nominal": 10, "borrowingLimit": 2}}},
            {"name": "cq3", "cohort": "c", "quotas": {flavor_key: {"nominal": 10, "lendingLimit": 5}}},
        ],
    }
    tree = cases.tree(row)
    nodes = [tree.queues[name] for name in ("cq1", "cq2", "cq3")]
    for node, value in zip(nodes, used, strict=True):
        node.add({FlavorResource("f", "cpu"): value})
    assert tuple(node.available(FlavorResource("f", "cpu")) for node in nodes) == available
    assert tuple(node.potential(FlavorResource("f", "cpu")) for node in nodes) == potential
