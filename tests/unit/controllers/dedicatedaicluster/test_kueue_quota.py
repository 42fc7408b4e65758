"""A dedicated cluster as Workloads in Kueue: its requests, its quota, its returns and its evictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.kueue import ClusterQueueSpec, Workload
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.dedicatedaicluster import kueue_quota
from broker.controllers.dedicatedaicluster.demand import ClusterDemand
from broker.quota.entitled import AdmissionDecision, AdmissionPhase
from broker.quota.model import FlavorResource

Json = dict[str, Any]
GPU, CPU, MEMORY = "nvidia.com/gpu", "cpu", "memory"
KEY = FlavorResource("h100", GPU)
CLUSTER = DedicatedAICluster.decode({"metadata": {"name": "c", "uid": "12345678-a"}})
NEVER = AdmissionDecision(phase=AdmissionPhase.NEVER)


def workload(
    gpus: int, *, at: int = 0, holds: bool = False, evicted: str = "", back: int = 0, why: str = ""
) -> Workload:
    raw = kueue_quota.body(
        CLUSTER, at, {GPU: gpus}, namespace="team", queue="gpu", demand=demand_of(gpus), priority=0
    )
    conditions = []
    if holds:
        conditions.append({"type": "Admitted", "status": "True"})
    if evicted:
        conditions.append({"type": "Evicted", "status": "True", "reason": evicted, "message": "so"})
    if why:
        conditions.append({"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": why})
    status: Json = {"conditions": conditions}
    if holds or evicted:
        assigned = {"name": "main", "flavors": {GPU: "h100"}, "resourceUsage": {GPU: gpus}, "count": gpus}
        status["admission"] = {"clusterQueue": "team--gpu", "podSetAssignments": [assigned]}
    if back:
        status["reclaimablePods"] = [{"name": "main", "count": back}]
    return Workload.decode({**raw, "status": status})


def demand_of(gpus: int) -> ClusterDemand:
    return ClusterDemand(requests={GPU: gpus})


@given(
    st.dictionaries(
        st.sampled_from((GPU, CPU, MEMORY, "example.com/licence")), st.integers(1, 1 << 50), min_size=1
    ).map(
        lambda amounts: {name: value % 5000 + 1 if name == GPU else value for name, value in amounts.items()}
    )
)
def test_pod_sets_sum_up_to_the_amounts(amounts: dict[str, int]) -> None:
    pod_sets = kueue_quota.pieces(amounts)
    total = {name: sum(count * per_pod.get(name, 0) for _, count, per_pod in pod_sets) for name in amounts}
    assert total == amounts
    assert all(count > 0 for _, count, _ in pod_sets)
    assert all(per_pod[GPU] == 1 for _, _, per_pod in pod_sets if GPU in amounts)


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        ({GPU: 32, MEMORY: 8 << 40, CPU: 512000}, (("main", 32, {GPU: 1, MEMORY: 256 << 30, CPU: 16000}),)),
        ({GPU: 1}, (("main", 1, {GPU: 1}),)),
        ({CPU: 4000}, (("main", 4, {CPU: 1000}),)),
        ({GPU: 3, CPU: 10}, (("main", 2, {GPU: 1, CPU: 3}), ("rest", 1, {GPU: 1, CPU: 4}))),
        ({MEMORY: 100}, (("main", 1, {MEMORY: 100}),)),
    ],
)
def test_a_pod_is_a_gpu_or_a_core(amounts: dict[str, int], expected: object) -> None:
    assert kueue_quota.pieces(amounts) == expected


AMOUNTS = {GPU: 4096, CPU: 1 << 20, MEMORY: 1 << 45, "example.com/licence": 7}
SPEC = ClusterQueueSpec.model_validate(
    {
        "resourceGroups": [
            {"coveredResources": [*AMOUNTS], "flavors": [{"name": "h100", "resources": []}]},
            {"coveredResources": ["either"], "flavors": [{"name": "a"}, {"name": "b"}]},
        ]
    }
)


def admitted(amounts: dict[str, int], *, apart: bool, at: int = 0) -> Workload:
    demand = ClusterDemand(requests=amounts)
    raw = kueue_quota.body(
        CLUSTER, at, amounts, namespace="team", queue="gpu", demand=demand, priority=0, split=apart
    )
    assigned = [
        {"name": pod_set["name"], "flavors": dict.fromkeys(amounts, "h100"), "count": pod_set["count"]}
        for pod_set in raw["spec"]["podSets"]
    ]
    conditions = [{"type": "Admitted", "status": "True"}]
    admission = {"clusterQueue": "team--gpu", "podSetAssignments": assigned}
    return Workload.decode({**raw, "status": {"conditions": conditions, "admission": admission}})


def after(workload: Workload, back: Mapping[str, int]) -> Workload:
    """The workload with this many pods given back, decoded again."""
    raw = workload.model_dump(by_alias=True, mode="json", exclude_none=True)
    raw["status"]["reclaimablePods"] = [{"name": name, "count": count} for name, count in back.items()]
    return Workload.decode(raw)


@pytest.mark.covers("SAF-72")
@given(
    st.fixed_dictionaries({name: st.integers(1, most) for name, most in AMOUNTS.items()}),
    st.lists(st.fixed_dictionaries(dict.fromkeys(AMOUNTS, st.floats(0, 1))), min_size=1, max_size=3),
    st.booleans(),
)
def test_kueues_usage_equals_the_held_quota_after_every_step(
    amounts: dict[str, int], steps: list[dict[str, float]], apart: bool
) -> None:
    workloads, held = [admitted(amounts, apart=apart)], amounts
    for step in steps:
        needs = {name: int(value * step[name]) for name, value in held.items()}
        needed = {FlavorResource("h100", name): value for name, value in needs.items() if value}
        kept = kueue_quota.counted_usage(workloads, needed)
        for workload_, back in kueue_quota.given_back(workloads, kept):
            workloads[workloads.index(workload_)] = after(workload_, back)
        assert kueue_quota.usage(workloads) == kept
        assert all(kept.get(key, 0) >= value for key, value in needed.items())
        if apart:  # all of it, but for less than a unit of a resource with more units than a set may have
            assert all(value - needed.get(key, 0) < 1 << 15 for key, value in kept.items())
            assert all(kept[key] == value for key, value in needed.items() if key.resource != MEMORY)
        held = {name: kept.get(FlavorResource("h100", name), 0) for name in held}


@pytest.mark.parametrize(
    ("amounts", "apart"),
    [
        ({GPU: 8, MEMORY: 1 << 40}, True),
        ({MEMORY: 1 << 40}, True),
        ({GPU: 8}, False),  # a pod each: nothing to separate
        ({GPU: 8, "either": 1}, False),  # its pod sets could be given different flavors
        ({GPU: 8, "unknown": 1}, False),
    ],
)
def test_resources_are_split_if_each_has_one_flavor(amounts: dict[str, int], apart: bool) -> None:
    assert kueue_quota.can_split(SPEC, amounts) is apart


def test_resources_are_not_split_if_pods_are_counted() -> None:
    groups = SPEC.model_dump(by_alias=True, mode="json", exclude_none=True)["resourceGroups"]
    groups.append({"coveredResources": ["pods"], "flavors": [{"name": "p"}]})
    spec = ClusterQueueSpec.model_validate({"resourceGroups": groups})
    assert not kueue_quota.can_split(spec, {GPU: 8, MEMORY: 1 << 40})


def test_split_pod_sets_sum_up_to_the_amounts() -> None:
    for amounts in ({GPU: 3, MEMORY: (8 << 40) + 5}, {MEMORY: (1 << 50) - 1}, {CPU: 1500}):
        pod_sets = kueue_quota.pieces(amounts, split=True)
        assert {
            name: sum(n * per_pod.get(name, 0) for _, n, per_pod in pod_sets) for name in amounts
        } == amounts
        assert all(0 < count <= 1 << 30 for _, count, _ in pod_sets)
        assert len({name for name, _, _ in pod_sets}) == len(pod_sets)


def test_a_cluster_is_admitted_once_kueue_admitted_all_of_it() -> None:
    assert kueue_quota.decision([workload(16, holds=True)], demand_of(16), None, None) == AdmissionDecision(
        phase=AdmissionPhase.ADMITTED, usage={KEY: 16}
    )
    waits = kueue_quota.decision([workload(16, why="insufficient quota")], demand_of(16), None, None)
    assert waits == AdmissionDecision(
        phase=AdmissionPhase.WAITING, why="Kueue reports for Workload team/c-12345678-0: insufficient quota"
    )
    both = [workload(8, holds=True), workload(8, at=1)]
    grows = kueue_quota.decision(both, demand_of(16), {KEY: 8}, None)
    assert grows is not None
    assert grows.phase is AdmissionPhase.WAITING
    assert kueue_quota.decision(both, demand_of(16), {KEY: 8}, NEVER) == NEVER
    assert kueue_quota.decision(both, demand_of(8), {KEY: 8}, None) is None
    assert (
        kueue_quota.decision([], demand_of(8), {KEY: 8}, None) is None
    )  # held from before Kueue was installed


def test_growth_requests_the_missing_and_the_returned_quota() -> None:
    assert kueue_quota.lacking([], demand_of(16)) == {GPU: 16}
    assert kueue_quota.lacking([workload(8, holds=True)], demand_of(16)) == {GPU: 8}
    assert kueue_quota.lacking([workload(16, holds=True, back=8)], demand_of(16)) == {GPU: 8}
    assert kueue_quota.lacking([workload(8, holds=True), workload(8, at=1)], demand_of(16)) == {}


def test_a_waiting_workload_over_the_demand_is_recreated() -> None:
    held, waits = workload(8, holds=True), workload(8, at=1)
    assert kueue_quota.outdated([held, waits], demand_of(16)) == []
    assert kueue_quota.outdated([held, waits], demand_of(12)) == [waits]
    assert kueue_quota.outdated([workload(16, holds=True)], demand_of(8)) == []


def test_unheld_quota_is_returned_from_the_last_workload_first() -> None:
    first, second = workload(16, holds=True), workload(8, at=1, holds=True)
    assert [*kueue_quota.given_back([first, second], {KEY: 24})] == []
    assert [*kueue_quota.given_back([first, second], {KEY: 16})] == [(second, {"main": 8})]
    assert [*kueue_quota.given_back([first, second], {KEY: 8})] == [
        (second, {"main": 8}),
        (first, {"main": 8}),
    ]
    partial = workload(16, holds=True, back=4)
    assert [*kueue_quota.given_back([partial], {KEY: 8})] == [(partial, {"main": 8})]


def test_an_eviction_has_kueues_reason_and_message() -> None:
    assert kueue_quota.eviction([workload(8, holds=True)]) is None
    eviction = kueue_quota.eviction(
        [workload(8, holds=True), workload(8, at=1, holds=True, evicted="Deactivated")]
    )
    assert eviction is not None
    assert (eviction.reason, eviction.message) == (
        "Deactivated",
        "Workload team/c-12345678-1 is evicted: so",
    )
    assert eviction.keeps == {KEY: 8}  # the quota that the other workload is admitted to
    alone = kueue_quota.eviction([workload(8, holds=True, evicted="Deactivated"), workload(8, at=1)])
    assert alone is not None and alone.keeps is None
    assert not kueue_quota.admitted(workload(8, holds=True, evicted="Preempted"))


def test_an_eviction_of_an_unadmitted_workload_does_not_evict_the_cluster() -> None:
    growth = workload(8, at=1, evicted="AdmissionCheck")
    assert growth.status.admission is not None  # a workload without a job keeps it
    assert kueue_quota.evicted(growth)
    assert kueue_quota.eviction([workload(8, holds=True), growth]) is None


@pytest.mark.covers("SAF-53")
def test_annotations_of_a_workload_give_a_cluster_no_quota() -> None:
    """A user who may edit Workloads can write them; the admitted quota is in spec and status."""
    honest = workload(8, holds=True)
    annotations = {"capacity-broker.io/asked": '{"nvidia.com/gpu": "800"}'}
    forged = Workload.decode(
        {**honest.wire(), "metadata": {**honest.metadata.wire(), "annotations": annotations}}
    )
    assert kueue_quota.usage([forged]) == kueue_quota.usage([honest]) == {KEY: 8}
    assert kueue_quota.remaining(forged) == {GPU: 8}
    decision = kueue_quota.decision([forged], demand_of(800), None, None)
    assert decision is not None and decision.phase is AdmissionPhase.WAITING
    unreadable = honest.wire()
    [container] = unreadable["spec"]["podSets"][0]["template"]["spec"]["containers"]
    container["resources"]["requests"] = {GPU: "many"}
    assert kueue_quota.remaining(Workload.decode(unreadable)) == {GPU: 0}
