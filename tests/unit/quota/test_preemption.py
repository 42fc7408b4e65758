"""Preemption by example: cases that Kueue's tables leave open, and the promises of the reservation
statements.
"""

from __future__ import annotations

import pytest

from broker.quota.classical import preempt
from broker.quota.fair import preempt_fairly
from broker.quota.ledger import QuotaLedger
from broker.quota.model import Preemption, PreemptionTarget, QuotaRequest
from tests.unit.quota.builders import GPU, cohort, ledger, queue, quota, workload

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


def test_every_reason_is_a_kueue_reason() -> None:
    world = ledger(
        cohort("c"),
        queue("a", 3, "c", preemption=ANY),
        queue("b", 3, "c", preemption=ANY),
        queue("d", 3, "c", preemption=ANY),
        *(workload(f"b{index}", "b", 1) for index in range(9)),
    )
    entitled = QuotaRequest(queue="a", amounts={GPU: 2})
    assert {reason for _, reason in victim_reasons(preempt_fairly(world, entitled, frozenset((GPU,))))} == {
        "InCohortReclamation"
    }
    beyond = QuotaRequest(queue="a", amounts={GPU: 4})
    assert {reason for _, reason in victim_reasons(preempt_fairly(world, beyond, frozenset((GPU,))))} == {
        "InCohortFairSharing"
    }


def test_fair_shares_are_compared_where_the_paths_part() -> None:
    """Team x as a whole borrows less than team y, so x1 may preempt y1. The shares of the two queues alone
    would not allow it."""
    world = ledger(
        cohort("root", 10),
        cohort("x", 0, "root"),
        cohort("y", 0, "root"),
        queue("x1", 0, "x", preemption=ANY),
        queue("y1", 0, "y"),
        queue("y2", 0, "y"),
        *(workload(f"x{index}", "x1", 1) for index in range(3)),
        *(workload(f"y1-{index}", "y1", 1) for index in range(4)),
        *(workload(f"y2-{index}", "y2", 1) for index in range(3)),
    )
    request = QuotaRequest(queue="x1", amounts={GPU: 1})
    assert victim_reasons(preempt_fairly(world, request, frozenset((GPU,)))) == [
        ("y1-0", "InCohortFairSharing")
    ]


def test_heavier_weight_is_entitled_to_more() -> None:
    def world(weight: float) -> QuotaLedger:
        return ledger(
            cohort("root", 8),
            queue("a", 0, "root", preemption=ANY, weight=weight),
            queue("b", 0, "root"),
            *(workload(f"a{index}", "a", 1) for index in range(4)),
            *(workload(f"b{index}", "b", 1) for index in range(4)),
        )

    request = QuotaRequest(queue="a", amounts={GPU: 1})
    assert preempt_fairly(world(1), request, frozenset((GPU,))) == ()
    assert victim_reasons(preempt_fairly(world(3), request, frozenset((GPU,)))) == [
        ("b0", "InCohortFairSharing")
    ]


def test_lending_limits_bound_reclaimable_quota() -> None:
    world = ledger(
        queue("a", quota(6, lend=4), "c", preemption=ANY),
        queue("b", quota(6, lend=2), "c"),
        workload("v", "b", 10, priority=-1),
    )
    assert taken(world, "a", 9) == []
    assert taken(world, "a", 6) == [("v", "InCohortReclamation")]
