"""Elastic quota: absent resources, composites, order, borrowing and reclaim."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quota.elastic import ElasticRefusal, ElasticShare, ElasticTotals
from broker.quota.elastic_gpu import GPU_MEMORY, with_gpu_memory
from broker.quota.elastic_labels import ElasticPod, in_order, labels, used_amounts
from broker.quota.elastic_reclaim import victims

START = datetime(2026, 11, 1, tzinfo=UTC)


def quota(id_: str, *, of: str = "", cpu: int | None = None, used: int = 0, **more: Any) -> ElasticShare:
    more.setdefault("min", {} if cpu is None else {"cpu": cpu})
    more.setdefault("used", {"cpu": used})
    return ElasticShare(id=id_, namespaces=frozenset((of or id_).split()), **more)


def pod(name: str, namespace: str = "a", cpu: int = 1, *, age: int = 0, **more: Any) -> ElasticPod:
    created = START - timedelta(seconds=age)
    more.setdefault("requests", {"cpu": cpu})
    return ElasticPod(uid=name, namespace=namespace, name=name, created=created, **more)


# The quota of the getting-started page: 2 CPU and 16 GB guaranteed, at most 10 CPU.
QUOTA_A = quota("a", min={"cpu": 2000, GPU_MEMORY: 16}, max={"cpu": 10000})


@pytest.mark.parametrize(
    ("requests", "absent_is_zero", "expected"),
    [
        ({"cpu": 1000, "memory": 2**30}, False, None),
        ({"cpu": 1000, "memory": 2**30}, True, ElasticRefusal.OVER_MAX),
        ({"cpu": 1000}, True, None),
        ({"cpu": 3000}, False, ElasticRefusal.OVER_TOTAL_MIN),
        ({"cpu": 11000}, False, ElasticRefusal.OVER_MAX),
        ({GPU_MEMORY: 17}, False, ElasticRefusal.OVER_TOTAL_MIN),
    ],
)
def test_a_resource_that_a_quota_does_not_name_is_unconstrained(
    requests: dict[str, int], absent_is_zero: bool, expected: ElasticRefusal | None
) -> None:
    assert ElasticTotals.of([QUOTA_A], absent_is_zero=absent_is_zero).refusal("a", requests) is expected


def test_a_resource_in_max_alone_is_limited_by_max_alone() -> None:
    totals = ElasticTotals.of([quota("a", cpu=2, max={"cpu": 4, "memory": 8})])
    assert totals.refusal("a", {"cpu": 1, "memory": 8}) is None
    assert totals.refusal("a", {"memory": 9}) is ElasticRefusal.OVER_MAX


def test_a_namespace_without_a_quota_is_not_limited() -> None:
    assert ElasticTotals.of([quota("a", cpu=1)]).refusal("b", {"cpu": 99}) is None


def test_a_namespace_borrows_what_others_leave_up_to_its_max() -> None:
    totals = ElasticTotals.of([quota("a", cpu=2, max={"cpu": 6}), quota("b", cpu=8, used=3)])
    assert totals.refusal("a", {"cpu": 6}) is None
    assert totals.refusal("a", {"cpu": 7}) is ElasticRefusal.OVER_MAX
    assert totals.refusal("b", {"cpu": 7}) is None
    assert totals.refusal("b", {"cpu": 8}) is ElasticRefusal.OVER_TOTAL_MIN


def test_composite_counts_once_for_all_its_namespaces() -> None:
    totals = ElasticTotals.of([quota("composite", of="x y z", cpu=4, used=1), quota("a", cpu=2)])
    assert totals.unused_min() == {"cpu": 5}
    assert totals.refusal("y", {"cpu": 5}) is None
    assert totals.refusal("a", {"cpu": 6}) is ElasticRefusal.OVER_TOTAL_MIN


def test_the_order_is_creation_then_priority_then_size_then_name() -> None:
    pods = [
        pod("young", age=0),
        pod("old-high", age=9, priority=5),
        pod("old-big", age=9, cpu=3),
        pod("old-b", age=9),
        pod("old-a", age=9),
    ]
    assert [item.name for item in in_order(pods)] == ["old-a", "old-b", "old-big", "old-high", "young"]


def test_pods_are_within_quota_up_to_min() -> None:
    pods = [pod("first", cpu=2, age=2), pod("second", cpu=2, age=1), pod("other", requests={"memory": 9})]
    assert labels(pods, {"cpu": 3}) == {"first": "in-quota", "second": "over-quota", "other": "over-quota"}
    assert used_amounts(pods, {"cpu": 3}, {"memory": 20, "gpu": 1}) == {"cpu": 4, "memory": 9, "gpu": 0}


def test_gpu_memory_is_derived_and_not_taken_from_the_pod() -> None:
    requests = with_gpu_memory({"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 2, GPU_MEMORY: 1}, 80)
    assert requests[GPU_MEMORY] == 100


@pytest.mark.covers("FLT-44")
@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("mig-1g.24gb-me", 24),
        ("mig-1g.24gb-gfx", 24),
        ("mig-1g.10gb.me", 10),
        ("mig-1g.10gb.me.all", 10),
        ("mig-1c.3g.20gb", 20),
        ("mig-1c.4g.40gb.me", 40),
        ("mig-7g.80gb", 80),
        ("mig-me-2g.48gb", 48),
        ("mig-2g.10gbx", 0),
        ("mig-small", 0),
        ("gpu-10gb", 0),
    ],
)
def test_memory_of_a_mig_profile_counts_wherever_it_stands_in_the_name(name: str, memory: int) -> None:
    assert with_gpu_memory({f"nvidia.com/{name}": 2}, 80).get(GPU_MEMORY, 0) == 2 * memory


# ---- reclaim


def without(*enough: str) -> Any:
    """The node has room once these pods are gone."""
    return lambda removed: {item.name for item in removed} >= set(enough)


def chosen(totals: ElasticTotals, preemptor: ElasticPod, *pods: ElasticPod, fits: Any) -> list[str] | None:
    evicted = victims(totals, preemptor, pods, fits)
    return None if evicted is None else [item.name for item in evicted]


BORROWED = {"borrowed": True}


def test_a_pod_within_min_evicts_pods_over_quota_of_others_only() -> None:
    totals = ElasticTotals.of([quota("a", cpu=4), quota("b", cpu=4, used=8)])
    within, over = pod("within", "b", 4), pod("over", "b", 4, **BORROWED)
    assert chosen(totals, pod("p", "a", 4), within, over, fits=without("over")) == ["over"]
    assert chosen(totals, pod("p", "a", 4), within, over, fits=without("within")) is None


def test_a_quota_that_does_not_borrow_loses_no_pod() -> None:
    """A label may be older than the sum: the sum decides."""
    totals = ElasticTotals.of([quota("a", cpu=4), quota("b", cpu=4, used=4)])
    assert chosen(totals, pod("p", "a", 4), pod("over", "b", 4, **BORROWED), fits=without("over")) is None


@pytest.mark.parametrize(("cpu", "expected"), [(15, ["over"]), (16, None)])
def test_over_min_the_guaranteed_part_of_unused_min_decides(cpu: int, expected: list[str] | None) -> None:
    """The example of nos's key concepts: of 30 unused, a quota of 40 of 80 may keep 15."""
    totals = ElasticTotals.of([quota("a", cpu=40, used=40), quota("b", cpu=10, used=40), quota("c", cpu=30)])
    over = pod("over", "b", 16, **BORROWED)
    assert chosen(totals, pod("p", "a", cpu), over, fits=without("over")) == expected


def test_a_pod_over_min_evicts_lower_priority_in_its_own_quota() -> None:
    totals = ElasticTotals.of([quota("composite", of="x y", cpu=4, used=4)])
    low, high = pod("low", "y", 4, priority=1, **BORROWED), pod("high", "y", 4, priority=9, **BORROWED)
    assert chosen(totals, pod("p", "x", 4, priority=5), low, high, fits=without("low")) == ["low"]
    assert chosen(totals, pod("p", "x", 4, priority=1), low, high, fits=without("low")) is None


def test_members_of_a_composite_do_not_reclaim_from_each_other() -> None:
    totals = ElasticTotals.of([quota("composite", of="x y", cpu=8, used=4)])
    over = pod("over", "y", 4, **BORROWED)
    assert chosen(totals, pod("p", "x", 4), over, fits=without("over")) is None


def test_namespaces_without_quota_evict_among_themselves_by_priority() -> None:
    totals = ElasticTotals.of([quota("a", cpu=4, used=8)])
    free, owned = pod("free", "b"), pod("owned", "a", **BORROWED)
    high = pod("p", "c", priority=1)
    assert chosen(totals, high, free, owned, fits=without("free")) == ["free"]
    assert chosen(totals, high, free, owned, fits=without("owned")) is None


def test_protected_and_important_pods_stay_if_they_can() -> None:
    totals = ElasticTotals.of([quota("a", cpu=4), quota("b", cpu=2, used=6)])
    pods = [
        pod("protected", "b", 1, protected=True, **BORROWED),
        pod("high", "b", 1, priority=9, **BORROWED),
        pod("old", "b", 1, age=9, **BORROWED),
        pod("young", "b", 1, **BORROWED),
    ]

    def two_gone(removed: Sequence[ElasticPod]) -> bool:
        return len(removed) >= 2

    assert chosen(totals, pod("p", "a", 2), *pods, fits=two_gone) == ["young", "old"]


USAGE = st.integers(0, 12)


@given(st.lists(st.tuples(st.integers(0, 6), st.lists(USAGE, max_size=4)), min_size=2, max_size=4), USAGE)
def test_no_pod_within_the_quota_of_another_is_evicted(rows: list[tuple[int, list[int]]], cpu: int) -> None:
    pods: list[ElasticPod] = []
    shares = []
    for number, (min_, sizes) in enumerate(rows):
        name = f"ns{number}"
        own = [pod(f"{name}-{index}", name, size, age=9 - index) for index, size in enumerate(sizes)]
        labelled = labels(own, {"cpu": min_})
        pods += [
            pod(item.name, name, item.requests["cpu"], borrowed=labelled[item.uid] == "over-quota")
            for item in own
        ]
        shares.append(quota(name, cpu=min_, used=sum(sizes)))
    totals = ElasticTotals.of(shares)
    evicted = victims(totals, pod("p", "ns0", cpu), pods, lambda _: True)
    assert all(item.borrowed for item in evicted or () if item.namespace != "ns0")
    after = totals
    for item in evicted or ():
        after = after.with_usage(item.namespace, item.requests, -1)
    assert evicted is None or after.refusal("ns0", {"cpu": cpu}) is None
