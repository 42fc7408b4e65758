"""The quota tree: limits, distances, cycles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.quota.ledger import QuotaLedger
from broker.quota.model import UNLIMITED, Preemption, QuotaCohort, amount
from broker.quota.tree import Tree
from tests.unit.quota.builders import GPU, cohort, ledger, queue, quota, workload


def test_queue_uses_its_own_quota_and_borrows_within_its_limit() -> None:
    tree = ledger(queue("a", quota(64, borrow=32), "c"), queue("b", 100, "c"), queue("free", 10, "c")).tree
    assert tree.queues["a"].available(GPU) == 96
    assert tree.queues["free"].available(GPU) == 174


def test_a_borrowing_limit_of_zero_keeps_a_queue_to_its_own_but_lends_it() -> None:
    tree = ledger(queue("a", quota(8, borrow=0), "c"), queue("b", 4, "c")).tree
    assert tree.queues["a"].available(GPU) == 8
    assert tree.queues["b"].available(GPU) == 12


def test_a_lending_limit_keeps_the_rest_for_the_queue() -> None:
    world = ledger(queue("a", quota(8, lend=3), "c"), queue("b", 4, "c"), workload("w", "b", 7))
    assert world.tree.queues["b"].available(GPU) == 0
    assert world.tree.queues["a"].available(GPU) == 5


def test_lending_and_borrowing_limits_bound_separate_parts() -> None:
    """Six are the queue's own; it may reclaim all of its lent quota, and three more."""
    world = ledger(queue("a", quota(10, borrow=3, lend=4), "c"), queue("b", 20, "c"))
    node = world.node("a")
    assert (node.available(GPU), node.potential(GPU)) == (13, 13)
    world.admit(workload("w", "a", 8))
    assert node.available(GPU) == 5


def test_unlent_quota_is_not_reclaimed_through_the_cohort() -> None:
    world = ledger(
        queue("a", quota(4, lend=0), "c"),
        queue("b", 9, "c"),
        workload("few", "a", 1),
        workload("many", "a", 5),
    )
    assert world.tree.cohorts["c"].uses(GPU) == 2
    world.release("many")
    assert world.tree.cohorts["c"].uses(GPU) == 0


def test_overuse_elsewhere_reaches_a_queue_that_neither_borrows_nor_lends() -> None:
    """Kueue's resource_test.go, "cq oversubscription spills into cohort": for a hard guarantee, use no
    cohort."""
    world = ledger(
        queue("cq1", 10, "c"), queue("cq2", quota(10, borrow=0, lend=0), "c"), queue("cq3", 10, "c")
    )
    world.admit(workload("w", "cq1", 31))
    assert world.tree.queues["cq2"].available(GPU) == -1


def test_a_cohort_s_own_quota_is_a_pool_beside_its_members() -> None:
    tree = ledger(cohort("c", 10), queue("a", 4, "c"), queue("b", 4, "c")).tree
    assert tree.queues["a"].available(GPU) == 18


def test_borrowing_distance_is_the_height_of_the_lending_subtree() -> None:
    tree = ledger(
        cohort("root", 100),
        cohort("middle", 2, "root"),
        cohort("leaf", 0, "middle"),
        queue("a", 1, "leaf"),
        queue("b", 3, "leaf"),
    ).tree
    distances = [tree.queues["a"].level(GPU, value) for value in (1, 4, 5, 7, 106, 107)]
    assert distances == [(0, True), (1, True), (2, True), (3, False), (3, False), (3, False)]


def test_queues_under_a_cycle_are_inactive_and_report_it() -> None:
    tree = Tree(
        [queue("a", 1, "x"), queue("b", 1, "below"), queue("c", 1, "sound")],
        [cohort("x", 0, "y"), cohort("y", 0, "x"), cohort("below", 0, "y"), cohort("sound")],
    )
    assert tree.inactive == {
        "a": "cohorts form a cycle: x → y → x; change a parent",
        "b": "cohorts form a cycle: y → x → y; change a parent",
    }
    assert list(tree.queues) == ["c"]
    with pytest.raises(LookupError, match="queue a: cohorts form a cycle: x → y → x"):
        QuotaLedger(tree).node("a")


def test_unknown_queue_is_named_in_the_error() -> None:
    with pytest.raises(LookupError, match="queue absent: there is no such queue"):
        ledger(queue("a", 1)).node("absent")


def test_a_workload_holds_quota_once() -> None:
    world = ledger(queue("a", 9), workload("w", "a", 2))
    with pytest.raises(ValueError, match="workload w holds quota already"):
        world.admit(workload("w", "a", 2))
    assert world.tree.queues["a"].uses(GPU) == 2


def test_an_evicted_workload_holds_quota_until_it_is_released() -> None:
    world = ledger(queue("a", 9), workload("w", "a", 2))
    world.admit(replace(world.release("w"), evicted=True))
    assert world.tree.queues["a"].uses(GPU) == 2
    world.release("w")
    assert (world.tree.queues["a"].uses(GPU), world.evicted) == (0, 0)


def test_amounts_beyond_64_bits_are_unlimited() -> None:
    tree = ledger(queue("a", quota(amount(2**63 - 1)), "c"), queue("b", 1, "c")).tree
    assert tree.queues["b"].available(GPU) >= UNLIMITED
    assert amount(2**63 - 2) == 2**63 - 2


def test_cohort_has_no_preemption_rules() -> None:
    assert ledger(cohort("c", 1), queue("a", 1, "c")).tree.cohorts["c"].preemption == Preemption()


def test_unlent_quota_is_not_borrowed() -> None:
    """Three of six are the queue's own: the cohort must cover the rest."""
    world = ledger(cohort("root", 5), cohort("c", 2, "root"), queue("q", quota(4, lend=1), "c"))
    node = world.node("q")
    assert [node.level(GPU, value) for value in (4, 6, 7)] == [(0, True), (1, True), (2, False)]


def test_quota_kept_in_a_cohort_is_not_borrowed_from_outside() -> None:
    kept = QuotaCohort(name="c", parent="mid", quotas={GPU: quota(4, lend=1)})
    world = ledger(cohort("root", 9), cohort("mid", 2, "root"), kept, queue("q", 0, "c"))
    node = world.node("q")
    assert [node.level(GPU, value) for value in (4, 6, 7)] == [(1, True), (2, True), (3, False)]


def test_lending_limit_of_a_cohort_applies_to_its_subtree() -> None:
    """A lending limit applies to the subtree's quota, not to the cohort's own alone."""
    kept = QuotaCohort(name="c", parent="root", quotas={GPU: quota(1, lend=2)})
    world = ledger(cohort("root"), kept, queue("inside", 4, "c"), queue("outside", 0, "root"))
    assert world.node("outside").available(GPU) == 2
    assert world.node("inside").available(GPU) == 5
