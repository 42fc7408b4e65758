"""Properties of every decision in random trees, compared with the same rules by the letter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from broker.quota.assign import SharingRules, Simulation, assign
from broker.quota.candidates import fits
from broker.quota.classical import preempt
from broker.quota.cycle import Head, HeadOutcome
from broker.quota.cycle import decide as decide_round
from broker.quota.fair import DEFAULT, preempt_fairly
from broker.quota.flavors import Flavor, PodSetRequest
from broker.quota.ledger import QuotaLedger
from broker.quota.model import (
    AdmittedWorkload,
    BorrowPolicy,
    FlavorGroup,
    FlavorResource,
    Fungibility,
    Policy,
    Preemption,
    PreemptionTarget,
    Preference,
    Queue,
    Quota,
    QuotaCohort,
    QuotaRequest,
    Reason,
    Search,
    Strategy,
)
from broker.quota.shares import share
from broker.quota.tree import Tree
from tests.unit.quota import naive, naive_assign

KEYS = (FlavorResource("a", "cpu"), FlavorResource("a", "gpu"), FlavorResource("b", "gpu"))
FLAVORS = {"a": Flavor(name="a"), "b": Flavor(name="b")}
STRATEGIES: tuple[tuple[Strategy, ...], ...] = (DEFAULT, (DEFAULT[0],), (DEFAULT[1],))
_amount = st.integers(min_value=0, max_value=6)
_limit = st.none() | _amount


@dataclass(frozen=True)
class Case:
    cohorts: Sequence[QuotaCohort]
    queues: Sequence[Queue]
    workloads: Sequence[AdmittedWorkload]
    ask: QuotaRequest
    needed: frozenset[FlavorResource]
    strategies: tuple[Strategy, ...]

    def ledger(self) -> QuotaLedger:
        return QuotaLedger(Tree(self.queues, self.cohorts), self.workloads)

    def world(self) -> naive.World:
        cohorts = {each.name: each for each in self.cohorts}
        return naive.World({each.name: each for each in self.queues}, cohorts, list(self.workloads))


@st.composite
def quotas(draw: st.DrawFn, *, limits: bool) -> dict[FlavorResource, Quota]:
    found = {}
    for key in draw(st.lists(st.sampled_from(KEYS), unique=True)):
        nominal = draw(_amount)
        found[key] = Quota(
            nominal=nominal,
            borrowing_limit=draw(_limit) if limits else None,
            lending_limit=draw(_limit) if limits else None,
        )
    return found


@st.composite
def cases(draw: st.DrawFn) -> Case:
    cohorts: list[QuotaCohort] = []
    for index in range(draw(st.integers(min_value=1, max_value=4))):
        parent = draw(st.sampled_from(["", *(each.name for each in cohorts)]))
        cohorts.append(
            QuotaCohort(
                name=f"c{index}",
                parent=parent,
                quotas=draw(quotas(limits=bool(parent))),
                weight=draw(st.sampled_from((0.0, 0.5, 1.0, 1.0, 2.0))),
            )
        )
    queues = []
    for index in range(draw(st.integers(min_value=1, max_value=5))):
        cohort = draw(st.sampled_from(["", *(each.name for each in cohorts for _ in range(3))]))
        queues.append(
            Queue(
                name=f"q{index}",
                cohort=cohort,
                quotas=draw(quotas(limits=bool(cohort))),
                weight=draw(st.sampled_from((0.0, 0.5, 1.0, 1.0, 2.0))),
                preemption=Preemption(
                    within=draw(st.sampled_from(get_args(Policy))),
                    reclaim=draw(st.sampled_from(get_args(Policy))),
                    borrow=draw(st.sampled_from(get_args(BorrowPolicy))),
                    threshold=draw(st.none() | st.integers(min_value=-1, max_value=3)),
                ),
            )
        )
    names = st.sampled_from([each.name for each in queues])
    usage = st.dictionaries(st.sampled_from(KEYS), _amount, min_size=1)
    priority = st.integers(min_value=-1, max_value=3)
    time = st.integers(min_value=0, max_value=3).map(float)
    workloads = [
        AdmittedWorkload(
            name=f"w{index}",
            queue=draw(names),
            usage=draw(usage),
            priority=draw(priority),
            queued=draw(time),
            reserved=draw(time),
            evicted=draw(st.integers(min_value=0, max_value=5)) == 0,
        )
        for index in range(draw(st.integers(min_value=0, max_value=12)))
    ]
    amounts = draw(usage)
    return Case(
        cohorts,
        queues,
        workloads,
        QuotaRequest(queue=draw(names), amounts=amounts, priority=draw(priority), queued=draw(time)),
        frozenset(draw(st.sets(st.sampled_from(sorted(amounts)), min_size=1))),
        draw(st.sampled_from(STRATEGIES)),
    )


def used(tree: Tree) -> dict[str, dict[FlavorResource, int]]:
    return {
        node.name: {key: value for key, value in node.usage.items() if value}
        for node in (*tree.queues.values(), *tree.cohorts.values())
    }


def decide(case: Case, ledger: QuotaLedger, *, fair: bool) -> tuple[PreemptionTarget, ...]:
    if fair:
        return preempt_fairly(ledger, case.ask, case.needed, case.strategies)
    return preempt(ledger, case.ask, case.needed)


BOTH = pytest.mark.parametrize("fair", [False, True], ids=["classical", "fair"])


@BOTH
@settings(max_examples=150)
@given(case=cases())
def test_decides_as_the_rules_by_the_letter(fair: bool, case: Case) -> None:
    found = {(each.workload.name, each.reason) for each in decide(case, case.ledger(), fair=fair)}
    if fair:
        wanted = naive.preempt_fairly(case.world(), case.ask, case.needed, case.strategies)
    else:
        wanted = naive.preempt(case.world(), case.ask, case.needed)
    assert found == wanted


@BOTH
@settings(max_examples=150)
@given(case=cases(), others=st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 3)), max_size=4))
def test_values_kept_for_a_round_change_no_decision(
    fair: bool, case: Case, others: list[tuple[int, int]]
) -> None:
    """Decisions about many requests, while the ledger does not change, equal those about each alone."""
    cases_ = [
        replace(case, ask=replace(case.ask, queue=queue.name, priority=priority, queued=float(queued)))
        for priority, queued in others
        for queue in case.queues
    ]
    ledger = case.ledger()
    before = used(ledger.tree)
    with ledger.still():
        found = [decide(each, ledger, fair=fair) for each in cases_]
    assert found == [decide(each, case.ledger(), fair=fair) for each in cases_]
    assert used(ledger.tree) == before


GROUPS = st.sampled_from(
    (
        (FlavorGroup(frozenset(("cpu", "gpu")), ("a", "gone", "b")),),
        (FlavorGroup(frozenset(("cpu",)), ("a",)), FlavorGroup(frozenset(("gpu",)), ("b", "a"))),
    )
)
_search = st.sampled_from(get_args(Search))
FUNGIBILITY = st.builds(
    Fungibility,
    when_can_borrow=_search,
    when_can_preempt=_search,
    preference=st.sampled_from(get_args(Preference)),
)
PODS = st.builds(
    PodSetRequest,
    count=st.integers(min_value=0, max_value=2),
    requests=st.fixed_dictionaries({"gpu": _amount}, optional={"cpu": _amount, "none": st.just(0)}),
)


@BOTH
@settings(max_examples=40)
@given(
    case=cases(),
    groups=GROUPS,
    fungibility=FUNGIBILITY,
    asked=st.lists(PODS, min_size=1, max_size=2),
)
def test_assigns_as_the_rules_by_the_letter(
    fair: bool,
    case: Case,
    groups: tuple[FlavorGroup, ...],
    fungibility: Fungibility,
    asked: list[PodSetRequest],
) -> None:
    queues = [replace(each, groups=groups, fungibility=fungibility) for each in case.queues]
    case = replace(case, queues=queues)
    ledger, ask = case.ledger(), case.ask
    rules = SharingRules(flavors=FLAVORS, fair=fair, strategies=case.strategies)
    pod_sets = [replace(each, name=f"pods-{index}") for index, each in enumerate(asked)]

    simulation = Simulation(ledger, ask.queue, ask.priority, ask.queued, rules)
    found = assign(ledger.node(ask.queue), pod_sets, rules, simulation)

    given = naive_assign.assign(case.world(), ask, pod_sets, rules)
    assert [
        {resource: (each.flavor, each.mode) for resource, each in pods.choices.items()}
        for pods in found.pod_sets
    ] == given.pod_sets
    assert [each.mode for each in found.pod_sets] == given.modes
    assert (found.mode, found.level) == (min(given.modes), given.level)


@BOTH
@given(case=cases())
def test_makes_room_with_nothing_to_spare_and_leaves_the_tree_alone(fair: bool, case: Case) -> None:
    ledger = case.ledger()
    before = used(ledger.tree)
    assume(not fits(ledger.node(case.ask.queue), case.ask.amounts, borrow=True))
    found = decide(case, ledger, fair=fair)
    assert used(ledger.tree) == before
    for each in found:
        ledger.release(each.workload.name)
    if found:
        # A classical decision is made with borrowing or without it; a fair one always with it.
        assert any(
            _minimal(case, ledger, found, borrow=borrow) for borrow in ((True,) if fair else (True, False))
        )


def _minimal(case: Case, ledger: QuotaLedger, found: Sequence[PreemptionTarget], *, borrow: bool) -> bool:
    """Whether all of these make room, and returning any one of them does not."""
    node = ledger.node(case.ask.queue)
    if not fits(node, case.ask.amounts, borrow=borrow):
        return False
    for each in found:
        ledger.admit(each.workload)
        still = fits(node, case.ask.amounts, borrow=borrow)
        ledger.release(each.workload.name)
        if still:
            return False
    return True


@BOTH
@given(case=cases())
def test_nothing_within_its_quota_is_taken_from_another_queue(fair: bool, case: Case) -> None:
    ledger = case.ledger()
    for each in decide(case, ledger, fair=fair):
        if each.workload.queue != case.ask.queue:
            assert ledger.node(each.workload.queue).over_quota(case.needed)
            assert each.reason is not Reason.IN_QUEUE


@BOTH
@given(case=cases(), seed=st.integers(min_value=0, max_value=99))
def test_the_order_in_which_things_are_given_does_not_matter(fair: bool, case: Case, seed: int) -> None:
    other = Case(
        Random(seed).sample(case.cohorts, len(case.cohorts)),
        Random(seed).sample(case.queues, len(case.queues)),
        Random(seed).sample(case.workloads, len(case.workloads)),
        case.ask,
        case.needed,
        case.strategies,
    )
    one, two = decide(case, case.ledger(), fair=fair), decide(other, other.ledger(), fair=fair)
    assert one == two


@given(case=cases())
def test_usage_kept_is_usage_added_up(case: Case) -> None:
    ledger, world = case.ledger(), case.world()
    for removed in [None, *case.workloads]:
        if removed is not None:
            ledger.release(removed.name)
            world.workloads.remove(removed)
        for node in (*ledger.tree.queues.values(), *ledger.tree.cohorts.values()):
            assert share(node).order == world.share(node.name)
            for key in KEYS:
                distance, root = naive_assign.level(world, node.name, key, case.ask.priority + 2)
                assert node.level(key, case.ask.priority + 2) == (distance, not root)
                assert node.uses(key) == world.used(node.name, key)
                assert node.quota(key) == world.subtree(node.name, key)
                assert node.available(key) == world.available(node.name, key)
                assert node.potential(key) == world.available(node.name, key, empty=True)
                over = node.parent is not None and node in node.parent.over.get(key, ())
                assert over == (node.parent is not None and world.over(node.name, [key]))


@BOTH
@given(case=cases(), asked=st.lists(st.integers(min_value=0, max_value=6), min_size=5, max_size=5))
def test_a_round_promises_nothing_twice(fair: bool, case: Case, asked: list[int]) -> None:
    """All quota that a round admits or makes room for is there once its victims are gone."""
    groups = (FlavorGroup(frozenset(("cpu",)), ("a",)), FlavorGroup(frozenset(("gpu",)), ("a", "b")))
    queues = [replace(each, groups=groups) for each in case.queues]
    ledger = QuotaLedger(Tree(queues, case.cohorts))
    for each in case.workloads:
        if fits(ledger.node(each.queue), each.usage, borrow=True):
            ledger.admit(each)
    heads = [
        Head(
            name=f"new-{each.name}",
            queue=each.name,
            pod_sets=(PodSetRequest(requests={"gpu": size}),),
            priority=1,
        )
        for each, size in zip(queues, asked, strict=False)
    ]
    before = used(ledger.tree)
    decisions = decide_round(
        ledger, heads, SharingRules(flavors=FLAVORS, fair=fair, strategies=case.strategies)
    )
    assert used(ledger.tree) == before
    assert sorted(each.head.name for each in decisions) == [each.name for each in heads]
    victims = [target.workload.name for each in decisions for target in each.targets]
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
    for each in case.workloads:
        node = ledger.node(each.queue)
        if all(value <= node.available(key) for key, value in each.usage.items()):
            ledger.admit(each)
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
