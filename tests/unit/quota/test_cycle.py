"""Rounds of admission: the decisions if several heads wait at once."""

from __future__ import annotations

from typing import Any

import pytest

from broker.quota import classical
from broker.quota.cycle import Head, HeadOutcome, decide
from broker.quota.flavors import Flavor, FlavorRequest
from broker.quota.ledger import QuotaLedger
from broker.quota.model import (
    AdmittedWorkload,
    FlavorGroup,
    FlavorResource,
    Preemption,
    Queue,
    Quota,
    Reason,
)
from broker.quota.tree import QuotaNode, Tree
from tests.unit.quota.builders import FLAVORS, GPU, cohort, head, ledger, queue, quota, workload

ANY = Preemption(reclaim="Any", within="LowerPriority")


def outcomes(world: QuotaLedger, *heads: Head) -> list[tuple[str, str]]:
    return [(decision.head.name, str(decision.outcome)) for decision in decide(world, heads, FLAVORS)]


def test_heads_without_borrowing_come_first() -> None:
    world = ledger(queue("a", 2, "c"), queue("b", 2, "c"))
    borrows, own = head("borrows", "a", 4, priority=9), head("own", "b", 2)
    assert outcomes(world, borrows, own) == [("own", "Admit"), ("borrows", "Wait")]


def test_heads_are_ordered_by_priority_then_by_wait() -> None:
    world = ledger(cohort("c", 2), *(queue(name, 0, "c") for name in "abc"))
    results = outcomes(
        world,
        head("late", "a", 1, queued=2),
        head("early", "b", 1, queued=1),
        head("urgent", "c", 1, priority=1, queued=3),
    )
    assert results == [("urgent", "Admit"), ("early", "Admit"), ("late", "Wait")]


def test_a_round_leaves_the_ledger_as_it_was() -> None:
    world = ledger(
        queue("a", 4, "c", preemption=ANY), queue("b", 4, "c"), workload("v", "b", 8), queue("d", 1)
    )
    results = outcomes(world, head("x", "a", 4), head("y", "d", 1))
    assert results == [("x", "Preempt"), ("y", "Admit")]
    assert world.tree.queues["b"].uses(GPU) == 8
    assert world.tree.cohorts["c"].uses(GPU) == 8


def test_one_victim_makes_room_for_one() -> None:
    world = ledger(
        queue("a", 4, "c", preemption=ANY),
        queue("b", 4, "c", preemption=ANY),
        queue("v", 0, "c"),
        workload("victim", "v", 8),
    )
    first, second = decide(world, [head("x", "a", 4), head("y", "b", 4)], FLAVORS)
    assert (str(first.outcome), [target.workload.name for target in first.targets]) == ("Preempt", ["victim"])
    assert str(second.outcome) == "Wait"
    assert second.why == "workload victim makes room for another one; the next round decides"


def test_head_that_cannot_reclaim_its_own_quota_reserves_it() -> None:
    def world(reclaim: Preemption) -> QuotaLedger:
        return ledger(
            queue("a", quota(4, borrow=0), "c", preemption=reclaim),
            queue("b", 2, "c"),
            workload("w", "a", 2, priority=9),
        )

    waits, borrows = head("waits", "a", 4, priority=5), head("borrows", "b", 4)
    never, always = Preemption(), Preemption(reclaim="Any")
    assert outcomes(world(never), waits, borrows) == [("waits", "Wait"), ("borrows", "Wait")]
    assert outcomes(world(always), waits, borrows) == [("waits", "Wait"), ("borrows", "Admit")]


def test_head_that_waits_to_borrow_reserves_up_to_its_borrowing_limit() -> None:
    def outcomes_with(limit: int | None, gpus: int) -> list[str]:
        world = ledger(
            queue("a", quota(4, borrow=limit), "c"),
            queue("b", 0, "c"),
            queue("idle", 4, "c"),
            queue("x", 0, "c"),
            workload("mine", "a", 2, priority=9),
            workload("theirs", "x", 3, priority=9),
        )
        waits, borrows = head("waits", "a", 4, priority=5), head("borrows", "b", gpus)
        return [outcome for _, outcome in outcomes(world, waits, borrows)]

    # 3 are free: of these, 2 are up to the queue's limit, and all 4 without one.
    assert outcomes_with(0, 1) == ["Wait", "Admit"]
    assert outcomes_with(0, 2) == ["Wait", "Wait"]
    assert outcomes_with(None, 1) == ["Wait", "Wait"]


def test_victims_are_searched_only_for_missing_resources() -> None:
    """The queue uses all its cpu, but none of it is requested; it may reclaim the gpu that it lent."""
    cpu = FlavorResource("h100", "cpu")

    def member(name: str, cpus: int) -> Queue:
        both = FlavorGroup(frozenset(("cpu", "gpu")), ("h100",))
        quotas = {GPU: quota(2), cpu: quota(cpus)}
        return Queue(name=name, cohort="c", groups=(both,), quotas=quotas, preemption=ANY)

    world = ledger(
        member("a", 1),
        member("b", 0),
        member("idle", 0),
        AdmittedWorkload(name="firm", queue="a", usage={cpu: 1}, priority=9),
        workload("a1", "a", 1, priority=-1),
        *(workload(f"b{index}", "b", 1) for index in (1, 2, 3)),
        workload("used", "idle", 2),
    )
    pods = FlavorRequest(requests={"gpu": 2, "cpu": 0})
    (decision,) = decide(world, [Head(name="h", queue="a", request=pods)], FLAVORS)
    assert [target.workload.name for target in decision.targets] == ["b1", "a1"]


def test_victim_that_was_not_enough_is_available_to_the_next_head() -> None:
    may_borrow = Preemption(within="LowerPriority", reclaim="Any", borrow="LowerPriority")
    world = ledger(
        queue("x", 2, "c"),
        queue("y", 0, "c", preemption=may_borrow),
        queue("v", quota(0, borrow=2), "c", preemption=may_borrow),
        queue("idle", 2, "c"),
        workload("victim", "v", 2, priority=-1),
    )
    decisions = decide(
        world,
        [head("first", "x", 2), head("more", "y", 3, priority=5), head("less", "v", 2, priority=1)],
        FLAVORS,
    )
    assert [(decision.head.name, str(decision.outcome)) for decision in decisions] == [
        ("first", "Admit"),
        ("more", "Wait"),
        ("less", "Preempt"),
    ]
    assert decisions[1].why == "a workload before it in this round took the quota"
    assert [target.workload.name for target in decisions[2].targets] == ["victim"]


def test_idle_quota_of_a_cohort_is_lent() -> None:
    world = ledger(queue("a", quota(2, borrow=2), "c"), queue("b", 4, "c"))
    (decision,) = decide(world, [head("x", "a", 4)], FLAVORS)
    assert (str(decision.outcome), decision.assignment.level) == ("Admit", 1)
    (decision,) = decide(world, [head("x", "a", 5)], FLAVORS)
    assert (str(decision.outcome), decision.why) == (
        "Wait",
        "5 h100/gpu is more than the 4 the queue can ever have",
    )


def test_queue_in_a_cycle_waits_and_reports_the_cycle() -> None:
    world = QuotaLedger(Tree([queue("a", 1, "x")], [cohort("x", 0, "x")]))
    (decision,) = decide(world, [head("h", "a", 1)], FLAVORS)
    assert (str(decision.outcome), decision.why) == (
        "Wait",
        "queue a: cohorts form a cycle: x → x; change a parent",
    )


def test_two_heads_of_one_queue_are_refused() -> None:
    with pytest.raises(ValueError, match="queue a has two heads, x and y; give one a round"):
        decide(ledger(queue("a", 9)), [head("x", "a", 1), head("y", "a", 1)], FLAVORS)


def test_round_over_many_queues_of_one_cohort_reads_each_head_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice the queues take twice the work: comparisons and sums grow with them, not with their square."""
    counts: list[int] = []
    key = FlavorResource("default", "cpu")
    change = QuotaNode._set

    def counted(node: QuotaNode, key: FlavorResource, value: int) -> None:
        counts[-1] += 1
        change(node, key, value)

    monkeypatch.setattr(QuotaNode, "_set", counted)
    for many in (200, 400):
        counts.append(0)
        queues = [
            Queue(
                name=f"q{number:04}",
                cohort="all",
                groups=(FlavorGroup(frozenset({"cpu"}), ("default",)),),
                quotas={key: Quota(nominal=10)},
            )
            for number in range(many)
        ]
        heads = [
            Head(
                name=f"h{number}",
                queue=f"q{number:04}",
                request=FlavorRequest(requests={"cpu": 8 + number % 4}),
                priority=number % 5,
            )
            for number in range(many)
        ]
        rules = {"default": Flavor(name="default")}
        decisions = decide(QuotaLedger(Tree(queues)), heads, rules)
        assert len(decisions) == many
    assert counts[1] <= 2.2 * counts[0]


def test_round_over_a_full_cohort_reads_few_workloads_for_each_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues that borrow already may preempt for nothing more, so their victims are not read."""
    counts: list[int] = []
    reason = classical._reason

    def counted(*args: Any, **options: Any) -> Reason | None:
        counts[-1] += 1
        return reason(*args, **options)

    monkeypatch.setattr(classical, "_reason", counted)
    for many in (40, 80):
        counts.append(1)
        names = [f"q{number:02}" for number in range(many)]
        world = ledger(*(queue(name, 4, "c", preemption=ANY) for name in names))
        for number, name in enumerate(names):
            for index in range(6 if number % 2 else 2):
                world.admit(workload(f"{name}-{index}", name, 1, priority=5))
        decisions = decide(world, [head(f"h-{name}", name, 2) for name in names], FLAVORS)
        assert any(decision.outcome is HeadOutcome.PREEMPT for decision in decisions)
    assert counts[1] <= 2.2 * counts[0]
