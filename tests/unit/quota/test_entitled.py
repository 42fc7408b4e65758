"""Decisions about quota over all reservations: admissions, waits, and evictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.core import Taint
from broker.quota.cycle import Head
from broker.quota.entitled import AdmissionPhase, Entitled, Shortfall, entitle
from broker.quota.flavors import Flavor, FlavorRequest
from broker.quota.model import (
    AdmittedWorkload,
    BorrowPolicy,
    FlavorGroup,
    FlavorResource,
    Policy,
    Preemption,
    Queue,
    Quota,
    Reason,
)
from broker.quota.tree import Tree
from tests.support.examples import examples
from tests.unit.quota.builders import FLAVORS, GPU, SPOT, queue, quota, workload

RECLAIM = Preemption(within="LowerPriority", reclaim="Any")
MEMORY = FlavorResource("h100", "memory")


def cluster_request(name: str, queue: str, gpus: int, **rest: object) -> Head:
    wants = FlavorRequest(requests={"gpu": gpus})
    return Head(**{"name": name, "queue": queue, "request": wants, **rest})  # type: ignore[arg-type]


def decided(*given: Queue | AdmittedWorkload | Head, flavors: Mapping[str, Flavor] = FLAVORS) -> Entitled:
    return entitle(
        [item for item in given if isinstance(item, Queue)],
        holders=[item for item in given if isinstance(item, AdmittedWorkload)],
        requests=[item for item in given if isinstance(item, Head)],
        flavors=flavors,
    )


def phases(result: Entitled) -> dict[str, str]:
    return {name: str(decision.phase) for name, decision in result.decisions.items()}


@pytest.mark.covers("OME-072")
def test_several_clusters_share_one_reservation_up_to_its_quota() -> None:
    result = decided(
        queue("r", 8),
        cluster_request("a", "r", 4),
        cluster_request("b", "r", 4, queued=1.0),
        cluster_request("c", "r", 1, queued=2.0),
    )
    assert phases(result) == {"a": "Admitted", "b": "Admitted", "c": "Waiting"}
    assert result.decisions["c"].shortfalls == (Shortfall(GPU, 1, 0),)
    assert not result.evictions


@pytest.mark.covers("OME-034", "OME-036")
def test_borrowing_limit_bounds_usage_beyond_nominal_quota() -> None:
    lender, borrower = queue("lender", 64, "c"), queue("borrower", quota(64, borrow=32), "c")
    assert phases(decided(lender, borrower, cluster_request("a", "borrower", 96))) == {"a": "Admitted"}
    over = decided(lender, borrower, cluster_request("a", "borrower", 97))
    assert over.decisions["a"].phase is AdmissionPhase.NEVER
    assert over.decisions["a"].shortfalls == (Shortfall(GPU, 97, 96),)


@pytest.mark.covers("OME-037")
def test_queue_without_borrowing_stays_within_nominal_in_an_idle_cohort() -> None:
    result = decided(
        queue("lender", 64, "c"), queue("r", quota(8, borrow=0), "c"), cluster_request("a", "r", 9)
    )
    assert phases(result) == {"a": "Never"}


@pytest.mark.covers("OME-040")
def test_queue_without_borrowing_still_lends_up_to_its_lending_limit() -> None:
    lender = queue("lender", quota(64, borrow=0, lend=16), "c")
    assert phases(decided(lender, queue("r", 8, "c"), cluster_request("a", "r", 24))) == {"a": "Admitted"}
    assert phases(decided(lender, queue("r", 8, "c"), cluster_request("a", "r", 25))) == {"a": "Never"}


@pytest.mark.covers("OME-041")
def test_without_a_borrowing_limit_the_whole_cohort_may_be_used() -> None:
    result = decided(queue("lender", 64, "c"), queue("r", 8, "c"), cluster_request("a", "r", 72))
    assert phases(result) == {"a": "Admitted"}


@pytest.mark.covers("OME-042")
def test_limits_are_by_flavor_and_resource() -> None:
    def both(name: str, gpus: Quota, memory: Quota) -> Queue:
        groups = (FlavorGroup(frozenset(("gpu", "memory")), ("h100",)),)
        return Queue(name=name, cohort="c", groups=groups, quotas={GPU: gpus, MEMORY: memory})

    lender = both("lender", quota(8), quota(800))
    borrower = both("r", quota(8, borrow=8), quota(800, borrow=0))
    wants = FlavorRequest(requests={"gpu": 16, "memory": 800})
    assert phases(decided(lender, borrower, cluster_request("a", "r", 0, request=wants))) == {"a": "Admitted"}
    more = decided(
        lender,
        borrower,
        cluster_request("a", "r", 0, request=FlavorRequest(requests={"gpu": 16, "memory": 801})),
    )
    assert more.decisions["a"].shortfalls == (Shortfall(MEMORY, 801, 800),)


@pytest.mark.covers("OME-043")
def test_a_cluster_wide_reservation_in_a_cohort_is_a_pool_that_members_share() -> None:
    pool = queue("pool", 256, "c")
    result = decided(
        pool,
        queue("one", 0, "c"),
        queue("two", 0, "c"),
        cluster_request("a", "one", 128),
        cluster_request("b", "two", 128),
    )
    assert phases(result) == {"a": "Admitted", "b": "Admitted"}


@pytest.mark.covers("OME-032", "OME-046", "OME-055")
def test_nominal_quota_is_reclaimed_from_a_borrower_of_any_priority() -> None:
    owner = queue("owner", 8, "c", preemption=RECLAIM)
    borrower = workload("theirs", "borrower", 8, priority=1000)
    result = decided(owner, queue("borrower", 0, "c"), borrower, cluster_request("mine", "owner", 8))
    assert phases(result) == {"mine": "Preempting"}
    eviction = result.evictions["theirs"]
    assert (eviction.reason, eviction.preemptor) == (Reason.RECLAIM, "mine")
    assert (eviction.preemptor_path, eviction.preemptee_path) == ("/c/owner", "/c/borrower")


@pytest.mark.covers("OME-047")
def test_reclaim_from_lower_priority_only() -> None:
    owner = queue("owner", 8, "c", preemption=Preemption(reclaim="LowerPriority"))
    for priority, evicted in ((99, ["theirs"]), (100, [])):
        borrower = workload("theirs", "borrower", 8, priority=priority)
        result = decided(
            owner, queue("borrower", 0, "c"), borrower, cluster_request("mine", "owner", 8, priority=100)
        )
        assert [*result.evictions] == evicted


@pytest.mark.covers("OME-048", "OME-055")
def test_while_borrowing_only_lower_priority_up_to_the_threshold_is_preempted() -> None:
    rule = Preemption(reclaim="Any", borrow="LowerPriority", threshold=100)
    for priority, evicted in ((100, ["theirs"]), (101, [])):
        borrower = workload("theirs", "other", 8, priority=priority)
        result = decided(
            queue("pool", 8, "c"),
            queue("r", 0, "c", preemption=rule),
            queue("other", 0, "c"),
            borrower,
            cluster_request("mine", "r", 8, priority=500),
        )
        assert [*result.evictions] == evicted
        assert all(
            eviction.reason is Reason.RECLAIM_WHILE_BORROWING for eviction in result.evictions.values()
        )


@pytest.mark.covers("OME-049", "OME-053")
def test_within_a_reservation_the_lowest_priority_and_then_the_newest_is_evicted() -> None:
    held = [
        workload("high", "r", 2, priority=5, reserved=1.0),
        workload("older", "r", 2, priority=1, reserved=2.0),
        workload("newer", "r", 2, priority=1, reserved=3.0),
    ]
    r = queue("r", 6, preemption=Preemption(within="LowerPriority"))
    result = decided(r, *held, cluster_request("mine", "r", 2, priority=3))
    assert {name: str(eviction.reason) for name, eviction in result.evictions.items()} == {
        "newer": "InClusterQueue"
    }
    assert phases(decided(r, *held, cluster_request("mine", "r", 2, priority=1))) == {"mine": "Waiting"}


def test_quota_is_granted_only_when_free_and_reclaimed_once() -> None:
    owner = queue("owner", 8, "c", preemption=RECLAIM)
    terminating = workload("leaving", "borrower", 8, evicted=True)
    staying = workload("staying", "borrower", 8)
    lender = queue("lender", 8, "c")
    result = decided(
        owner, lender, queue("borrower", 0, "c"), terminating, staying, cluster_request("mine", "owner", 8)
    )
    assert phases(result) == {"mine": "Preempting"}
    assert not result.evictions
    gone = decided(owner, lender, queue("borrower", 0, "c"), staying, cluster_request("mine", "owner", 8))
    assert phases(gone) == {"mine": "Admitted"}


def test_promised_quota_is_not_given_to_another_request() -> None:
    owner = queue("owner", 8, "c", preemption=RECLAIM)
    result = decided(
        owner,
        queue("borrower", 0, "c"),
        workload("theirs", "borrower", 6),
        cluster_request("mine", "owner", 8),
        cluster_request("small", "borrower", 2),
    )
    assert phases(result) == {"mine": "Preempting", "small": "Waiting"}


def test_holder_within_quota_is_no_victim_because_its_queue_just_borrowed() -> None:
    """The new request borrows quota that x2 then requests: the next decision reclaims it from the
    borrowers then."""
    result = decided(
        queue("a", 2, "c", preemption=RECLAIM),
        queue("b", 4, "c"),
        workload("old", "b", 4, priority=-1),
        cluster_request("x1", "a", 1),
        cluster_request("new", "b", 1),
        cluster_request("x2", "a", 1, queued=1.0),
    )
    assert phases(result) == {"x1": "Admitted", "new": "Admitted", "x2": "Waiting"}
    assert not result.evictions


def test_claim_covered_by_its_queues_quota_counts_even_if_others_hold_it() -> None:
    queues = [queue("a", 2, "c", preemption=RECLAIM), queue("b", 2, "c")]
    held = [workload("borrows", "b", 4)]
    requests = [cluster_request("cluster", "a", 1)]
    alone = entitle(queues, holders=held, requests=requests, flavors=FLAVORS)
    assert (phases(alone), list(alone.evictions)) == ({"cluster": "Preempting"}, ["borrows"])
    claim = workload("claim", "a", 2)
    beside = entitle(queues, holders=held, requests=requests, flavors=FLAVORS, claimed=[claim])
    assert (phases(beside), list(beside.evictions)) == ({"cluster": "Waiting"}, [])


def test_terminating_holder_is_not_admitted_again() -> None:
    result = decided(queue("r", 8), workload("a", "r", 4, evicted=True), cluster_request("a", "r", 4))
    assert not result.decisions


def test_growth_requests_the_rest_in_the_held_flavor() -> None:
    r = queue("r", 8, more={SPOT: quota(100)})
    result = decided(r, workload("a", "r", 4), cluster_request("a", "r", 8))
    assert result.decisions["a"].usage == {GPU: 8}
    more = decided(r, workload("a", "r", 4), cluster_request("a", "r", 9))
    assert more.decisions["a"].phase is AdmissionPhase.NEVER
    assert more.decisions["a"].shortfalls == (Shortfall(GPU, 9, 8),)


def test_growth_waits_for_victims_and_keeps_its_quota() -> None:
    result = decided(
        queue("r", 8), workload("a", "r", 4), workload("b", "r", 4), cluster_request("a", "r", 8)
    )
    assert phases(result) == {"a": "Waiting"}
    assert result.decisions["a"].shortfalls == (Shortfall(GPU, 8, 4),)


def test_cluster_takes_the_first_flavor_that_holds_all_of_it() -> None:
    r = queue("r", 4, more={SPOT: quota(8)})
    result = decided(r, cluster_request("a", "r", 8))
    assert result.decisions["a"].usage == {SPOT: 8}


def test_missing_and_untolerated_flavors_are_named() -> None:
    tainted = {"h100": Flavor(name="h100", taints=(Taint(key="team", value="x", effect="NoSchedule"),))}
    result = decided(queue("r", 8, more={SPOT: quota(8)}), cluster_request("a", "r", 1), flavors=tainted)
    assert phases(result) == {"a": "Never"}
    assert result.decisions["a"].misfits == (
        "untolerated taint team=x:NoSchedule in flavor h100",
        "flavor spot does not exist: create the ResourceFlavor",
    )


def test_a_resource_that_no_group_covers_is_named() -> None:
    result = decided(
        queue("r", 8), cluster_request("a", "r", 0, request=FlavorRequest(requests={"gpu": 1, "efa": 4}))
    )
    assert result.decisions["a"].shortfalls == (Shortfall(FlavorResource("", "efa"), 4, 0),)


_sizes = st.integers(min_value=1, max_value=6)
_policies: st.SearchStrategy[Policy] = st.sampled_from(("Never", "LowerPriority", "Any"))
_within: st.SearchStrategy[Policy] = st.sampled_from(("Never", "LowerPriority", "LowerOrNewerEqualPriority"))
_borrows: st.SearchStrategy[BorrowPolicy] = st.sampled_from(("Never", "LowerPriority"))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Queue], list[AdmittedWorkload], list[Head]]:
    names = [f"q{n}" for n in range(draw(st.integers(min_value=1, max_value=4)))]
    queues = [
        queue(
            name,
            quota(
                draw(st.integers(0, 8)),
                borrow=draw(st.none() | st.integers(0, 8)),
                lend=draw(st.none() | st.integers(0, 4)),
            ),
            draw(st.sampled_from(("c", "d", "c"))),
            preemption=Preemption(
                within=draw(_within),
                reclaim=draw(_policies),
                borrow=draw(_borrows),
                threshold=draw(st.none() | st.integers(0, 2)),
            ),
        )
        for name in names
    ]
    tree = Tree(queues, [])
    holders: list[AdmittedWorkload] = []
    for n in range(draw(st.integers(min_value=0, max_value=6))):
        name, size = draw(st.sampled_from(names)), draw(_sizes)
        if size <= max(0, tree.queues[name].available(GPU)):
            tree.queues[name].add({GPU: size})
            holders.append(
                workload(
                    f"h{n}",
                    name,
                    size,
                    priority=draw(st.integers(0, 2)),
                    reserved=float(n),
                    evicted=draw(st.sampled_from((False, False, True))),
                )
            )
    requests = [
        cluster_request(
            f"w{n}",
            draw(st.sampled_from(names)),
            draw(_sizes),
            priority=draw(st.integers(0, 2)),
            queued=float(n),
        )
        for n in range(draw(st.integers(min_value=0, max_value=5)))
    ]
    requests += [
        cluster_request(holder.name, holder.queue, holder.usage[GPU] + draw(_sizes), priority=holder.priority)
        for holder in holders
        if draw(st.booleans())
    ]
    return queues, holders, requests


def _used(queues: Sequence[Queue], held: Sequence[AdmittedWorkload]) -> Tree:
    tree = Tree(queues, [])
    for holder in held:
        tree.queues[holder.queue].add(holder.usage)
    return tree


@pytest.mark.covers("OME-054", "OME-060")
@examples(60)
@given(worlds())
def test_usage_never_exceeds_quota_and_queues_at_nominal_lose_nothing(
    world: tuple[list[Queue], list[AdmittedWorkload], list[Head]],
) -> None:
    queues, holders, requests = world
    result = entitle(queues, holders=holders, requests=requests, flavors=FLAVORS)
    admitted = {
        name: decision.usage
        for name, decision in result.decisions.items()
        if decision.phase is AdmissionPhase.ADMITTED
    }
    owner = {request.name: request.queue for request in requests}
    kept = [holder for holder in holders if holder.name not in admitted]
    new_holders = [
        AdmittedWorkload(name=name, queue=owner[name], usage=usage) for name, usage in admitted.items()
    ]
    tree = _used(queues, [*kept, *new_holders])
    for spec in queues:
        node, limits = tree.queues[spec.name], spec.quotas[GPU]
        if limits.borrowing_limit is not None:
            assert node.uses(GPU) <= limits.nominal + limits.borrowing_limit
    for root in tree.cohorts.values():
        assert root.uses(GPU) <= root.quota(GPU)
    before = _used(queues, holders)
    for name, eviction in result.evictions.items():
        victim = next(holder for holder in holders if holder.name == name)
        assert not victim.evicted
        if victim.queue != owner[eviction.preemptor]:
            assert before.queues[victim.queue].over_quota([GPU])
            assert eviction.reason is not Reason.IN_QUEUE


@examples(60)
@given(worlds(), st.randoms())
def test_input_order_changes_no_admission(
    world: tuple[list[Queue], list[AdmittedWorkload], list[Head]], random: object
) -> None:
    queues, holders, requests = world
    first = entitle(queues, holders=holders, requests=requests, flavors=FLAVORS)
    for items in (queues, holders, requests):
        random.shuffle(items)  # type: ignore[attr-defined]
    second = entitle(queues, holders=holders, requests=requests, flavors=FLAVORS)
    assert (first.decisions, first.evictions) == (second.decisions, second.evictions)


@examples(60)
@given(worlds())
def test_second_decision_evicts_nothing_that_the_first_admitted(
    world: tuple[list[Queue], list[AdmittedWorkload], list[Head]],
) -> None:
    queues, holders, requests = world
    held = {holder.name for holder in holders}
    requests = [request for request in requests if request.name not in held]
    first = entitle(queues, holders=holders, requests=requests, flavors=FLAVORS)
    given = {
        n: decision for n, decision in first.decisions.items() if decision.phase is AdmissionPhase.ADMITTED
    }
    after = [replace(holder, evicted=holder.evicted or holder.name in first.evictions) for holder in holders]
    after += [
        AdmittedWorkload(
            name=request.name,
            queue=request.queue,
            usage=given[request.name].usage,
            priority=request.priority,
            queued=request.queued,
            reserved=1000.0 + request.queued,
        )
        for request in requests
        if request.name in given
    ]
    rest = [request for request in requests if request.name not in given]
    second = entitle(queues, holders=after, requests=rest, flavors=FLAVORS)
    assert not second.evictions.keys() & given.keys()
