"""Decisions about quota over all reservations: admissions, waits, and evictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.quota.assign import SharingRules
from broker.quota.entitled import AdmissionPhase, ClusterRequest, Entitled, Shortfall, entitle
from broker.quota.flavors import Flavor, FlavorTaint, PodSetRequest
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
from tests.unit.quota.builders import GPU, RULES, SPOT, queue, quota, workload

RECLAIM = Preemption(within="LowerPriority", reclaim="Any")
MEMORY = FlavorResource("h100", "memory")


def want(name: str, queue: str, gpus: int, **rest: object) -> ClusterRequest:
    pods = PodSetRequest(requests={"gpu": gpus})
    return ClusterRequest(**{"name": name, "queue": queue, "pods": pods, **rest})  # type: ignore[arg-type]


def decided(*given: Queue | AdmittedWorkload | ClusterRequest, rules: SharingRules = RULES) -> Entitled:
    return entitle(
        [each for each in given if isinstance(each, Queue)],
        [],
        holders=[each for each in given if isinstance(each, AdmittedWorkload)],
        wants=[each for each in given if isinstance(each, ClusterRequest)],
        rules=rules,
    )


def standings(found: Entitled) -> dict[str, str]:
    return {name: str(each.phase) for name, each in found.decisions.items()}


@pytest.mark.covers("OME-072")
def test_several_clusters_share_one_reservation_up_to_its_quota() -> None:
    found = decided(
        queue("r", 8), want("a", "r", 4), want("b", "r", 4, queued=1.0), want("c", "r", 1, queued=2.0)
    )
    assert standings(found) == {"a": "Admitted", "b": "Admitted", "c": "Waiting"}
    assert found.decisions["c"].shortfalls == (Shortfall(GPU, 1, 0),)
    assert not found.evictions


@pytest.mark.covers("OME-034", "OME-036")
def test_borrowing_limit_bounds_usage_beyond_nominal_quota() -> None:
    lender, borrower = queue("lender", 64, "c"), queue("borrower", quota(64, borrow=32), "c")
    assert standings(decided(lender, borrower, want("a", "borrower", 96))) == {"a": "Admitted"}
    over = decided(lender, borrower, want("a", "borrower", 97))
    assert over.decisions["a"].phase is AdmissionPhase.NEVER
    assert over.decisions["a"].shortfalls == (Shortfall(GPU, 97, 96),)


@pytest.mark.covers("OME-037")
def test_queue_without_borrowing_stays_within_nominal_in_an_idle_cohort() -> None:
    found = decided(queue("lender", 64, "c"), queue("r", quota(8, borrow=0), "c"), want("a", "r", 9))
    assert standings(found) == {"a": "Never"}


@pytest.mark.covers("OME-040")
def test_queue_without_borrowing_still_lends_up_to_its_lending_limit() -> None:
    lender = queue("lender", quota(64, borrow=0, lend=16), "c")
    assert standings(decided(lender, queue("r", 8, "c"), want("a", "r", 24))) == {"a": "Admitted"}
    assert standings(decided(lender, queue("r", 8, "c"), want("a", "r", 25))) == {"a": "Never"}


@pytest.mark.covers("OME-041")
def test_without_a_borrowing_limit_the_whole_cohort_may_be_used() -> None:
    found = decided(queue("lender", 64, "c"), queue("r", 8, "c"), want("a", "r", 72))
    assert standings(found) == {"a": "Admitted"}


@pytest.mark.covers("OME-042")
def test_limits_are_by_flavor_and_resource() -> None:
    def both(name: str, gpus: Quota, memory: Quota) -> Queue:
        groups = (FlavorGroup(frozenset(("gpu", "memory")), ("h100",)),)
        return Queue(name=name, cohort="c", groups=groups, quotas={GPU: gpus, MEMORY: memory})

    lender = both("lender", quota(8), quota(800))
    borrower = both("r", quota(8, borrow=8), quota(800, borrow=0))
    asks = PodSetRequest(requests={"gpu": 16, "memory": 800})
    assert standings(decided(lender, borrower, want("a", "r", 0, pods=asks))) == {"a": "Admitted"}
    more = decided(
        lender, borrower, want("a", "r", 0, pods=PodSetRequest(requests={"gpu": 16, "memory": 801}))
    )
    assert more.decisions["a"].shortfalls == (Shortfall(MEMORY, 801, 800),)


@pytest.mark.covers("OME-043")
def test_a_cluster_wide_reservation_in_a_cohort_is_a_pool_that_members_share() -> None:
    pool = queue("pool", 256, "c")
    found = decided(
        pool, queue("one", 0, "c"), queue("two", 0, "c"), want("a", "one", 128), want("b", "two", 128)
    )
    assert standings(found) == {"a": "Admitted", "b": "Admitted"}


@pytest.mark.covers("OME-032", "OME-046", "OME-055")
def test_nominal_quota_comes_back_from_a_borrower_whatever_its_priority() -> None:
    owner = queue("owner", 8, "c", preemption=RECLAIM)
    borrower = workload("theirs", "borrower", 8, priority=1000)
    found = decided(owner, queue("borrower", 0, "c"), borrower, want("mine", "owner", 8))
    assert standings(found) == {"mine": "Preempting"}
    eviction = found.evictions["theirs"]
    assert (eviction.reason, eviction.preemptor) == (Reason.RECLAIM, "mine")
    assert (eviction.preemptor_path, eviction.preemptee_path) == ("/c/owner", "/c/borrower")


@pytest.mark.covers("OME-047")
def test_reclaim_from_lower_priority_only() -> None:
    owner = queue("owner", 8, "c", preemption=Preemption(reclaim="LowerPriority"))
    for priority, evicted in ((99, ["theirs"]), (100, [])):
        borrower = workload("theirs", "borrower", 8, priority=priority)
        found = decided(owner, queue("borrower", 0, "c"), borrower, want("mine", "owner", 8, priority=100))
        assert [*found.evictions] == evicted


@pytest.mark.covers("OME-048", "OME-055")
def test_while_borrowing_only_lower_priority_up_to_the_threshold_is_preempted() -> None:
    rule = Preemption(reclaim="Any", borrow="LowerPriority", threshold=100)
    for priority, evicted in ((100, ["theirs"]), (101, [])):
        theirs = workload("theirs", "other", 8, priority=priority)
        found = decided(
            queue("pool", 8, "c"),
            queue("r", 0, "c", preemption=rule),
            queue("other", 0, "c"),
            theirs,
            want("mine", "r", 8, priority=500),
        )
        assert [*found.evictions] == evicted
        assert all(each.reason is Reason.RECLAIM_WHILE_BORROWING for each in found.evictions.values())


@pytest.mark.covers("OME-049", "OME-053")
def test_within_a_reservation_the_lowest_priority_and_then_the_newest_leaves() -> None:
    held = [
        workload("high", "r", 2, priority=5, reserved=1.0),
        workload("older", "r", 2, priority=1, reserved=2.0),
        workload("newer", "r", 2, priority=1, reserved=3.0),
    ]
    r = queue("r", 6, preemption=Preemption(within="LowerPriority"))
    found = decided(r, *held, want("mine", "r", 2, priority=3))
    assert {name: str(each.reason) for name, each in found.evictions.items()} == {"newer": "InClusterQueue"}
    assert standings(decided(r, *held, want("mine", "r", 2, priority=1))) == {"mine": "Waiting"}


def test_quota_is_granted_only_when_free_and_reclaimed_once() -> None:
    owner = queue("owner", 8, "c", preemption=RECLAIM)
    leaving = workload("leaving", "borrower", 8, evicted=True)
    staying = workload("staying", "borrower", 8)
    lender = queue("lender", 8, "c")
    found = decided(owner, lender, queue("borrower", 0, "c"), leaving, staying, want("mine", "owner", 8))
    assert standings(found) == {"mine": "Preempting"}
    assert not found.evictions
    gone = decided(owner, lender, queue("borrower", 0, "c"), staying, want("mine", "owner", 8))
    assert standings(gone) == {"mine": "Admitted"}


def test_promised_quota_is_not_given_to_another_request() -> None:
    owner = queue("owner", 8, "c", preemption=RECLAIM)
    found = decided(
        owner,
        queue("borrower", 0, "c"),
        workload("theirs", "borrower", 6),
        want("mine", "owner", 8),
        want("small", "borrower", 2),
    )
    assert standings(found) == {"mine": "Preempting", "small": "Waiting"}


def test_holder_within_quota_is_no_victim_because_its_queue_just_borrowed() -> None:
    """The new request borrows quota that x2 then requests: the next decision reclaims it from the
    borrowers then."""
    found = decided(
        queue("a", 2, "c", preemption=RECLAIM),
        queue("b", 4, "c"),
        workload("old", "b", 4, priority=-1),
        want("x1", "a", 1),
        want("new", "b", 1),
        want("x2", "a", 1, queued=1.0),
    )
    assert standings(found) == {"x1": "Admitted", "new": "Admitted", "x2": "Waiting"}
    assert not found.evictions


def test_a_claim_that_its_queue_s_quota_covers_counts_although_others_have_it() -> None:
    queues = [queue("a", 2, "c", preemption=RECLAIM), queue("b", 2, "c")]
    held = [workload("borrows", "b", 4)]
    wants = [want("cluster", "a", 1)]
    alone = entitle(queues, [], holders=held, wants=wants, rules=RULES)
    assert (standings(alone), list(alone.evictions)) == ({"cluster": "Preempting"}, ["borrows"])
    claim = workload("claim", "a", 2)
    beside = entitle(queues, [], holders=held, wants=wants, rules=RULES, claimed=[claim])
    assert (standings(beside), list(beside.evictions)) == ({"cluster": "Waiting"}, [])


def test_terminating_holder_is_not_admitted_again() -> None:
    found = decided(queue("r", 8), workload("a", "r", 4, evicted=True), want("a", "r", 4))
    assert not found.decisions


def test_growth_requests_the_rest_in_the_held_flavor() -> None:
    r = queue("r", 8, more={SPOT: quota(100)})
    found = decided(r, workload("a", "r", 4), want("a", "r", 8))
    assert found.decisions["a"].usage == {GPU: 8}
    more = decided(r, workload("a", "r", 4), want("a", "r", 9))
    assert more.decisions["a"].phase is AdmissionPhase.NEVER
    assert more.decisions["a"].shortfalls == (Shortfall(GPU, 9, 8),)


def test_growth_waits_for_victims_and_keeps_its_quota() -> None:
    found = decided(queue("r", 8), workload("a", "r", 4), workload("b", "r", 4), want("a", "r", 8))
    assert standings(found) == {"a": "Waiting"}
    assert found.decisions["a"].shortfalls == (Shortfall(GPU, 8, 4),)


def test_a_cluster_takes_the_first_flavor_that_holds_all_of_it() -> None:
    r = queue("r", 4, more={SPOT: quota(8)})
    found = decided(r, want("a", "r", 8))
    assert found.decisions["a"].usage == {SPOT: 8}


def test_flavors_that_are_not_there_or_not_tolerated_are_named() -> None:
    tainted = SharingRules(
        flavors={"h100": Flavor(name="h100", taints=(FlavorTaint(key="team", value="x"),))}
    )
    found = decided(queue("r", 8, more={SPOT: quota(8)}), want("a", "r", 1), rules=tainted)
    assert standings(found) == {"a": "Never"}
    assert found.decisions["a"].misfits == (
        "untolerated taint team=x:NoSchedule in flavor h100",
        "flavor spot is not there: create the ResourceFlavor",
    )


def test_a_resource_that_no_group_covers_is_named() -> None:
    found = decided(queue("r", 8), want("a", "r", 0, pods=PodSetRequest(requests={"gpu": 1, "efa": 4})))
    assert found.decisions["a"].shortfalls == (Shortfall(FlavorResource("", "efa"), 4, 0),)


_sizes = st.integers(min_value=1, max_value=6)
_policies: st.SearchStrategy[Policy] = st.sampled_from(("Never", "LowerPriority", "Any"))
_within: st.SearchStrategy[Policy] = st.sampled_from(("Never", "LowerPriority", "LowerOrNewerEqualPriority"))
_borrows: st.SearchStrategy[BorrowPolicy] = st.sampled_from(("Never", "LowerPriority"))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Queue], list[AdmittedWorkload], list[ClusterRequest]]:
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
    wants = [
        want(
            f"w{n}",
            draw(st.sampled_from(names)),
            draw(_sizes),
            priority=draw(st.integers(0, 2)),
            queued=float(n),
        )
        for n in range(draw(st.integers(min_value=0, max_value=5)))
    ]
    wants += [
        want(each.name, each.queue, each.usage[GPU] + draw(_sizes), priority=each.priority)
        for each in holders
        if draw(st.booleans())
    ]
    return queues, holders, wants


def _used(queues: Sequence[Queue], held: Sequence[AdmittedWorkload]) -> Tree:
    tree = Tree(queues, [])
    for each in held:
        tree.queues[each.queue].add(each.usage)
    return tree


@pytest.mark.covers("OME-054", "OME-060")
@settings(max_examples=150, deadline=None)
@given(worlds())
def test_usage_never_exceeds_quota_and_queues_at_nominal_lose_nothing(
    world: tuple[list[Queue], list[AdmittedWorkload], list[ClusterRequest]],
) -> None:
    queues, holders, wants = world
    found = entitle(queues, [], holders=holders, wants=wants, rules=RULES)
    admitted = {
        name: each.usage for name, each in found.decisions.items() if each.phase is AdmissionPhase.ADMITTED
    }
    owner = {each.name: each.queue for each in wants}
    kept = [each for each in holders if each.name not in admitted]
    made = [AdmittedWorkload(name=name, queue=owner[name], usage=usage) for name, usage in admitted.items()]
    tree = _used(queues, [*kept, *made])
    for each in queues:
        node, limits = tree.queues[each.name], each.quotas[GPU]
        if limits.borrowing_limit is not None:
            assert node.uses(GPU) <= limits.nominal + limits.borrowing_limit
    for root in tree.cohorts.values():
        assert root.uses(GPU) <= root.quota(GPU)
    before = _used(queues, holders)
    for name, eviction in found.evictions.items():
        victim = next(each for each in holders if each.name == name)
        assert not victim.evicted
        if victim.queue != owner[eviction.preemptor]:
            assert before.queues[victim.queue].over_quota([GPU])
            assert eviction.reason is not Reason.IN_QUEUE


@settings(max_examples=60, deadline=None)
@given(worlds(), st.randoms())
def test_the_order_in_which_anything_is_read_changes_nothing(
    world: tuple[list[Queue], list[AdmittedWorkload], list[ClusterRequest]], random: object
) -> None:
    queues, holders, wants = world
    one = entitle(queues, [], holders=holders, wants=wants, rules=RULES)
    for each in (queues, holders, wants):
        random.shuffle(each)  # type: ignore[attr-defined]
    other = entitle(queues, [], holders=holders, wants=wants, rules=RULES)
    assert (one.decisions, one.evictions) == (other.decisions, other.evictions)


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_a_second_look_takes_nothing_back_that_the_first_gave(
    world: tuple[list[Queue], list[AdmittedWorkload], list[ClusterRequest]],
) -> None:
    queues, holders, wants = world
    held = {each.name for each in holders}
    wants = [each for each in wants if each.name not in held]
    first = entitle(queues, [], holders=holders, wants=wants, rules=RULES)
    given = {n: each for n, each in first.decisions.items() if each.phase is AdmissionPhase.ADMITTED}
    after = [replace(each, evicted=each.evicted or each.name in first.evictions) for each in holders]
    after += [
        AdmittedWorkload(
            name=each.name,
            queue=each.queue,
            usage=given[each.name].usage,
            priority=each.priority,
            queued=each.queued,
            reserved=1000.0 + each.queued,
        )
        for each in wants
        if each.name in given
    ]
    rest = [each for each in wants if each.name not in given]
    second = entitle(queues, [], holders=after, wants=rest, rules=RULES)
    assert not second.evictions.keys() & given.keys()
