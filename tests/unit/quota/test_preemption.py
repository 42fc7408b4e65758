"""Preemption by example: cases that Kueue's tables leave open, and the promises of the reservation
statements.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

from broker.quota.classical import preempt
from broker.quota.ledger import QuotaLedger
from broker.quota.model import Preemption, PreemptionTarget, Queue, QuotaRequest, Reason
from broker.settings import Settings
from tests.unit.quota.builders import GPU, ledger, queue, quota, workload

ANY = Preemption(reclaim="Any", within="LowerPriority")


def victim_reasons(targets: tuple[PreemptionTarget, ...]) -> list[tuple[str, str]]:
    return sorted((target.workload.name, str(target.reason)) for target in targets)


def taken(world: QuotaLedger, name: str, gpus: int, priority: int = 0) -> list[tuple[str, str]]:
    request = QuotaRequest(queue=name, amounts={GPU: gpus}, priority=priority)
    return victim_reasons(preempt(world, request, frozenset((GPU,))))


@pytest.mark.covers("OME-053")
def test_last_admitted_among_equals_is_preempted_first() -> None:
    world = ledger(
        queue("a", 3, preemption=ANY),
        workload("first", "a", 1, reserved=1),
        workload("last", "a", 1, reserved=3),
        workload("middle", "a", 1, reserved=2),
    )
    assert taken(world, "a", 1, priority=1) == [("last", "InClusterQueue")]
    assert [name for name, _ in taken(world, "a", 2, priority=1)] == ["last", "middle"]


@pytest.mark.parametrize("priority", [-5, 0, 1000])
def test_reclaim_any_reclaims_nominal_quota_from_a_borrower_of_any_priority(priority: int) -> None:
    world = ledger(
        queue("owner", 4, "c", preemption=ANY),
        queue("borrower", 4, "c"),
        workload("b", "borrower", 8, priority=priority),
    )
    assert taken(world, "owner", 4) == [("b", "InCohortReclamation")]


def test_reclaim_lower_priority_keeps_equal_and_higher_priorities() -> None:
    rule = Preemption(reclaim="LowerPriority")
    world = ledger(
        queue("owner", 4, "c", preemption=rule),
        queue("borrower", 4, "c"),
        workload("low", "borrower", 4, priority=0),
        workload("equal", "borrower", 4, priority=1),
    )
    assert taken(world, "owner", 4, priority=1) == [("low", "InCohortReclamation")]
    assert taken(world, "owner", 4, priority=0) == []


@pytest.mark.parametrize(("priority", "goes"), [(99, True), (100, True), (101, False)])
def test_while_borrowing_only_victims_up_to_the_threshold_are_taken(priority: int, goes: bool) -> None:
    rule = Preemption(reclaim="LowerPriority", borrow="LowerPriority", threshold=100)
    world = ledger(
        queue("a", 0, "c", preemption=rule),
        queue("b", 0, "c"),
        queue("pool", 4, "c"),
        workload("v", "b", 4, priority=priority),
    )
    expected = [("v", "InCohortReclaimWhileBorrowing")] if goes else []
    assert taken(world, "a", 4, priority=200) == expected


def test_within_the_queue_only_lower_priority_is_preempted() -> None:
    world = ledger(
        queue("a", 2, preemption=ANY),
        workload("low", "a", 1, priority=1),
        workload("equal", "a", 1, priority=2),
    )
    assert taken(world, "a", 1, priority=2) == [("low", "InClusterQueue")]
    assert taken(world, "a", 2, priority=2) == []


@pytest.mark.covers("OME-054")
def test_a_queue_within_its_nominal_quota_loses_nothing_to_others() -> None:
    world = ledger(
        queue("a", 2, "c", preemption=ANY),
        queue("modest", 4, "c"),
        queue("greedy", 2, "c"),
        workload("m", "modest", 4, priority=-10),
        workload("g", "greedy", 4, priority=1000),
    )
    assert taken(world, "a", 2) == [("g", "InCohortReclamation")]


def test_advantage_of_a_nearer_quota_counts_even_if_borrowing_is_allowed() -> None:
    """The queue's own quota covers the request: the victim's quota is reclaimed, whatever its priority."""
    rule = Preemption(reclaim="Any", borrow="LowerPriority", threshold=0)
    world = ledger(
        queue("a", 4, "c", preemption=rule), queue("b", 0, "c"), workload("v", "b", 4, priority=50)
    )
    assert taken(world, "a", 4, priority=1) == [("v", "InCohortReclamation")]


@pytest.mark.covers("SAF-36", "FLT-44")
def test_fair_sharing_is_no_setting_and_no_reason() -> None:
    """A CapacityReservation has no weight, so nothing can ask for it: Kueue has it for its own workloads."""
    assert [field.name for field in fields(Settings) if "fair" in field.name] == []
    assert {*map(str, Reason)} == {
        "InClusterQueue",
        "InCohortReclamation",
        "InCohortReclaimWhileBorrowing",
    }
    assert not {"weight", "fair_sharing"} & {field.name for field in fields(Queue)}


def test_lending_limits_bound_reclaimable_quota() -> None:
    world = ledger(
        queue("a", quota(6, lend=4), "c", preemption=ANY),
        queue("b", quota(6, lend=2), "c"),
        workload("v", "b", 10, priority=-1),
    )
    assert taken(world, "a", 9) == []
    assert taken(world, "a", 6) == [("v", "InCohortReclamation")]
