"""Properties of every decision in random trees, compared with the same rules by the letter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import get_args

from hypothesis import assume, given
from hypothesis import strategies as st

from broker.quota.assign import Simulation, assign
from broker.quota.candidates import fits
from broker.quota.classical import preempt
from broker.quota.cycle import Head, HeadOutcome
from broker.quota.cycle import decide as decide_round
from broker.quota.flavors import Flavor, FlavorRequest
from broker.quota.ledger import QuotaLedger
from broker.quota.model import (
    AdmittedWorkload,
    BorrowPolicy,
    FlavorGroup,
    FlavorResource,
    Policy,
    Preemption,
    PreemptionTarget,
    Queue,
    Quota,
    QuotaCohort,
    QuotaRequest,
    Reason,
)
from broker.quota.tree import Tree
from tests.support.examples import examples
from tests.unit.quota import naive, naive_assign
from tests.unit.quota.builders import ledger_of

KEYS = (FlavorResource("a", "cpu"), FlavorResource("a", "gpu"), FlavorResource("b", "gpu"))
FLAVORS = {"a": Flavor(name="a"), "b": Flavor(name="b")}
# Strategies are made once: to make and check them anew in each example took longer than the properties.
_amount = st.integers(min_value=0, max_value=6)
_limit = st.none() | _amount
_keys = st.lists(st.sampled_from(KEYS), unique=True)
_policy = st.sampled_from(get_args(Policy))
_borrow_policy = st.sampled_from(get_args(BorrowPolicy))
_priority = st.integers(min_value=-1, max_value=3)
_threshold = st.none() | _priority
_usage = st.dictionaries(st.sampled_from(KEYS), _amount, min_size=1)
_time = st.integers(min_value=0, max_value=3).map(float)
_one_in_six = st.integers(min_value=0, max_value=5).map(lambda number: number == 0)
_cohort_count, _queue_count = st.integers(min_value=1, max_value=4), st.integers(min_value=1, max_value=5)
_workload_count = st.integers(min_value=0, max_value=12)


@dataclass(frozen=True)
class Case:
    cohorts: Sequence[QuotaCohort]
    queues: Sequence[Queue]
    workloads: Sequence[AdmittedWorkload]
    request: QuotaRequest
    needed: frozenset[FlavorResource]

    def ledger(self) -> QuotaLedger:
        return ledger_of(Tree(self.queues, self.cohorts), self.workloads)

    def world(self) -> naive.World:
        cohorts = {cohort.name: cohort for cohort in self.cohorts}
        return naive.World({queue.name: queue for queue in self.queues}, cohorts, list(self.workloads))


@st.composite
def quotas(draw: st.DrawFn, *, limits: bool) -> dict[FlavorResource, Quota]:
    by_key = {}
    for key in draw(_keys):
        nominal = draw(_amount)
        by_key[key] = Quota(
            nominal=nominal,
            borrowing_limit=draw(_limit) if limits else None,
            lending_limit=draw(_limit) if limits else None,
        )
    return by_key


_limited, _unlimited = quotas(limits=True), quotas(limits=False)


def _chosen(draw: st.DrawFn, names: Sequence[str]) -> str:
    return names[draw(st.integers(min_value=0, max_value=len(names) - 1))]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    cohorts: list[QuotaCohort] = []
    for index in range(draw(_cohort_count)):
        parent = _chosen(draw, ["", *(other.name for other in cohorts)])
        cohorts.append(
            QuotaCohort(
                name=f"c{index}",
                parent=parent,
                quotas=draw(_limited if parent else _unlimited),
            )
        )
    queues = []
    for index in range(draw(_queue_count)):
        cohort = _chosen(draw, ["", *(other.name for other in cohorts for _ in range(3))])
        queues.append(
            Queue(
                name=f"q{index}",
                cohort=cohort,
                quotas=draw(_limited if cohort else _unlimited),
                preemption=Preemption(
                    within=draw(_policy),
                    reclaim=draw(_policy),
                    borrow=draw(_borrow_policy),
                    threshold=draw(_threshold),
                ),
            )
        )
    names = [queue.name for queue in queues]
    workloads = [
        AdmittedWorkload(
            name=f"w{index}",
            queue=_chosen(draw, names),
            usage=draw(_usage),
            priority=draw(_priority),
            queued=draw(_time),
            reserved=draw(_time),
            evicted=draw(_one_in_six),
        )
        for index in range(draw(_workload_count))
    ]
    amounts = draw(_usage)
    return Case(
        cohorts,
        queues,
        workloads,
        QuotaRequest(
            queue=_chosen(draw, names), amounts=amounts, priority=draw(_priority), queued=draw(_time)
        ),
        frozenset(draw(st.sets(st.sampled_from(sorted(amounts)), min_size=1))),
    )


def used(tree: Tree) -> dict[str, dict[FlavorResource, int]]:
    return {
        node.name: {key: value for key, value in node.usage.items() if value}
        for node in (*tree.queues.values(), *tree.cohorts.values())
    }


def decide(case: Case, ledger: QuotaLedger) -> tuple[PreemptionTarget, ...]:
    return preempt(ledger, case.request, case.needed)


@examples(30)
@given(case=cases())
def test_victims_equal_those_of_the_naive_rules(case: Case) -> None:
    decided = {(target.workload.name, target.reason) for target in decide(case, case.ledger())}
    assert decided == naive.preempt(case.world(), case.request, case.needed)


@examples(30)
@given(case=cases(), others=st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 3)), max_size=4))
def test_values_kept_for_a_round_change_no_decision(case: Case, others: list[tuple[int, int]]) -> None:
    """Decisions about many requests, while the ledger does not change, equal those about each alone."""
    cases_ = [
        replace(
            case, request=replace(case.request, queue=queue.name, priority=priority, queued=float(queued))
        )
        for priority, queued in others
        for queue in case.queues
    ]
    ledger = case.ledger()
    before = used(ledger.tree)
    with ledger.stable():
        decisions = [decide(variant, ledger) for variant in cases_]
    assert decisions == [decide(variant, case.ledger()) for variant in cases_]
    assert used(ledger.tree) == before


GROUPS = st.sampled_from(
    (
        (FlavorGroup(frozenset(("cpu", "gpu")), ("a", "gone", "b")),),
        (FlavorGroup(frozenset(("cpu",)), ("a",)), FlavorGroup(frozenset(("gpu",)), ("b", "a"))),
    )
)
REQUESTS = st.builds(
    FlavorRequest,
    requests=st.fixed_dictionaries({"gpu": _amount}, optional={"cpu": _amount, "none": st.just(0)}),
)


@examples(30)
@given(case=cases(), groups=GROUPS, wanted=REQUESTS)
def test_flavors_equal_those_of_the_naive_rules(
    case: Case, groups: tuple[FlavorGroup, ...], wanted: FlavorRequest
) -> None:
    case = replace(case, queues=[replace(queue, groups=groups) for queue in case.queues])
    ledger, request = case.ledger(), case.request

    simulation = Simulation(ledger, request.queue, request.priority, request.queued)
    assignment = assign(ledger.node(request.queue), wanted, FLAVORS, simulation)

    choices, mode, level = naive_assign.assign(case.world(), request, wanted, FLAVORS)
    assert {name: (choice.flavor, choice.mode) for name, choice in assignment.choices.items()} == choices
    assert (assignment.mode, assignment.level) == (mode, level)


@given(case=cases())
def test_victims_are_minimal_and_the_tree_is_unchanged(case: Case) -> None:
    ledger = case.ledger()
    before = used(ledger.tree)
    assume(not fits(ledger.node(case.request.queue), case.request.amounts, borrow=True))
    victims = decide(case, ledger)
    assert used(ledger.tree) == before
    for victim in victims:
        ledger.release(victim.workload.name)
    if victims:
        # A decision is made with borrowing or without it.
        assert any(_minimal(case, ledger, victims, borrow=borrow) for borrow in (True, False))


def _minimal(case: Case, ledger: QuotaLedger, victims: Sequence[PreemptionTarget], *, borrow: bool) -> bool:
    """Whether all of these make room, and returning any one of them does not."""
    node = ledger.node(case.request.queue)
    if not fits(node, case.request.amounts, borrow=borrow):
        return False
    for victim in victims:
        ledger.admit(victim.workload)
        still = fits(node, case.request.amounts, borrow=borrow)
        ledger.release(victim.workload.name)
        if still:
            return False
    return True


@given(case=cases())
def test_no_victim_in_another_queue_within_its_quota(case: Case) -> None:
    ledger = case.ledger()
    for target in decide(case, ledger):
        if target.workload.queue != case.request.queue:
            assert ledger.node(target.workload.queue).over_quota(case.needed)
            assert target.reason is not Reason.IN_QUEUE


@given(case=cases(), seed=st.integers(min_value=0, max_value=99))
def test_order_of_the_inputs_changes_no_victim(case: Case, seed: int) -> None:
    other = Case(
        Random(seed).sample(case.cohorts, len(case.cohorts)),
        Random(seed).sample(case.queues, len(case.queues)),
        Random(seed).sample(case.workloads, len(case.workloads)),
        case.request,
        case.needed,
    )
    first, second = decide(case, case.ledger()), decide(other, other.ledger())
    assert first == second


@given(case=cases())
def test_cached_usage_equals_the_computed_sum(case: Case) -> None:
    ledger, world = case.ledger(), case.world()
    for removed in [None, *case.workloads]:
        if removed is not None:
            ledger.release(removed.name)
            world.workloads.remove(removed)
        for node in (*ledger.tree.queues.values(), *ledger.tree.cohorts.values()):
            for key in KEYS:
                distance, root = naive_assign.level(world, node.name, key, case.request.priority + 2)
                assert node.level(key, case.request.priority + 2) == (distance, not root)
                assert node.uses(key) == world.used(node.name, key)
                assert node.quota(key) == world.subtree(node.name, key)
                assert node.available(key) == world.available(node.name, key)
                assert node.potential(key) == world.available(node.name, key, empty=True)
                over = node.parent is not None and node in node.parent.over.get(key, ())
                assert over == (node.parent is not None and world.over(node.name, [key]))


@given(case=cases(), sizes=st.lists(st.integers(min_value=0, max_value=6), min_size=5, max_size=5))
def test_round_grants_no_quota_twice(case: Case, sizes: list[int]) -> None:
    """All quota that a round admits or makes room for is free once its victims are gone."""
    groups = (FlavorGroup(frozenset(("cpu",)), ("a",)), FlavorGroup(frozenset(("gpu",)), ("a", "b")))
    queues = [replace(queue, groups=groups) for queue in case.queues]
    ledger = QuotaLedger(Tree(queues, case.cohorts))
    for workload in case.workloads:
        if fits(ledger.node(workload.queue), workload.usage, borrow=True):
            ledger.admit(workload)
    heads = [
        Head(
            name=f"new-{queue.name}",
            queue=queue.name,
            request=FlavorRequest(requests={"gpu": size}),
            priority=1,
        )
        for queue, size in zip(queues, sizes, strict=False)
    ]
    before = used(ledger.tree)
    decisions = decide_round(ledger, heads, FLAVORS)
    assert used(ledger.tree) == before
    assert sorted(decision.head.name for decision in decisions) == [head.name for head in heads]
    victims = [target.workload.name for decision in decisions for target in decision.targets]
    assert len(victims) == len(set(victims))
    for name in victims:
        ledger.release(name)
    for decision in decisions:
        if decision.outcome is not HeadOutcome.WAIT:
            node, usage = ledger.node(decision.head.queue), decision.assignment.usage
            assert fits(node, usage, borrow=True)
            ledger.admit(AdmittedWorkload(name=decision.head.name, queue=node.name, usage=usage))


@given(case=cases())
def test_admissions_within_available_quota_stay_within_every_limit(case: Case) -> None:
    ledger = QuotaLedger(Tree(case.queues, case.cohorts))
    for workload in case.workloads:
        node = ledger.node(workload.queue)
        if all(value <= node.available(key) for key, value in workload.usage.items()):
            ledger.admit(workload)
    for node in (*ledger.tree.queues.values(), *ledger.tree.cohorts.values()):
        for key in KEYS:
            quota = node.quotas.get(key, Quota())
            if quota.borrowing_limit is not None and node.parent is not None:
                assert node.uses(key) <= node.quota(key) + quota.borrowing_limit
            if node.parent is None:
                assert node.uses(key) <= node.quota(key)
            if quota.lending_limit is not None:
                # Others may take at most the lent part of this node's quota.
                assert node.quota(key) - node.local.get(key, 0) <= max(quota.lending_limit, 0)
