"""Elastic quotas on a cluster: guarantee, borrow, reclaim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pytest

from broker.apis.core import Pod
from broker.apis.kueue import PriorityClass
from broker.apis.nos import CompositeElasticQuota, ElasticQuota
from broker.kube.client import Request
from broker.kube.errors import Forbidden, Invalid, TooManyRequests
from broker.quota.elastic_gpu import GPU_MEMORY
from tests.cluster import objects
from tests.cluster.rooms import Rooms, rooms

QUOTA_A: Mapping[str, Any] = {"min": {"cpu": 2, GPU_MEMORY: 16}, "max": {"cpu": 10}}


@pytest.fixture
def cluster() -> Iterator[Rooms]:
    with rooms() as rooms_:
        rooms_.start()
        rooms_.node("node-0", room={"cpu": "32", "nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "8"})
        yield rooms_


def pod(cluster: Rooms, name: str, namespace: str, cpu: str = "1", **more: Any) -> str:
    return cluster.pod(name, namespace=namespace, cpu=cpu, scheduler="nos-scheduler", **more)


@pytest.mark.covers("NOS-01")
def test_the_definitions(cluster: Rooms) -> None:
    cluster.quota("team-a", name="quota-a", **QUOTA_A)
    cluster.quota("team-b", name="both", namespaces=("team-b", "team-c"), min={"cpu": 1}, max={"cpu": 2})
    with pytest.raises(Invalid, match="namespaces"):
        body = {"metadata": {"name": "none", "namespace": "team-b"}, "spec": {"namespaces": []}}
        cluster.client.create(CompositeElasticQuota.KIND, body)
    cluster.until(lambda: cluster.quota_status("team-a", "quota-a").used, "used of quota-a")
    discovery = orjson.loads(
        cluster.tap.request(Request(method="GET", path="/apis/nos.nebuly.com/v1alpha1"), timeout=9).body
    )
    shorts = {
        item["name"]: item.get("shortNames") for item in discovery["resources"] if "/" not in item["name"]
    }
    assert shorts == {"elasticquotas": ["eq", "eqs"], "compositeelasticquotas": ["ceq", "ceqs"]}
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    path = ElasticQuota.KIND.path(namespace="team-a", name="quota-a")
    table = orjson.loads(
        cluster.tap.request(Request(method="GET", path=path, headers=accept), timeout=9).body
    )
    columns = [column["name"] for column in table["columnDefinitions"]]
    cells = dict(zip(columns, table["rows"][0]["cells"], strict=True))
    shown = {name: cells[name] for name in columns if name.startswith(("Used", "Min"))}
    assert shown == {"Used-GPU-Memory": "0", "Min-GPU-Memory": "16", "Used-CPU": "0", "Min-CPU": "2"}


@pytest.mark.covers("NOS-03")
def test_used_follows_the_running_pods(cluster: Rooms) -> None:
    cluster.quota("a", min={"cpu": 4}, max={"cpu": 8, "memory": "8Gi"})
    cluster.until_used("a", {"cpu": "0", "memory": "0"})
    pod(cluster, "p", "a", "500m", memory="1Gi")
    pod(cluster, "q", "a", "1")
    cluster.until_bound("p", "q", namespace="a")
    assert cluster.quota_status("a").used == {"cpu": "0", "memory": "0"}
    cluster.ran("p", "q", namespace="a")
    cluster.until_used("a", {"cpu": "1500m", "memory": "1Gi"})
    cluster.ran("p", namespace="a", phase="Succeeded")
    cluster.until_used("a", {"cpu": "1", "memory": "0"})
    cluster.delete_pod("q", "a")
    cluster.until_used("a", {"cpu": "0", "memory": "0"})


@pytest.mark.covers("NOS-04")
def test_gpu_memory_is_derived(cluster: Rooms) -> None:
    cluster.node(
        "labelled", room={"nvidia.com/gpu": "1"}, labels={"karpenter.k8s.aws/instance-gpu-memory": "81920"}
    )
    cluster.quota("a", min={GPU_MEMORY: 1000})
    whole = {"nvidia.com/gpu": "1"}
    pod(cluster, "plain", "a", requests=whole, nodeSelector={"kubernetes.io/hostname": "node-0"})
    cluster.started("plain", namespace="a")
    cluster.until_used("a", {GPU_MEMORY: "32"})
    pod(cluster, "mig", "a", requests={"nvidia.com/mig-1g.10gb": "2"})
    cluster.started("mig", namespace="a")
    cluster.until_used("a", {GPU_MEMORY: "52"})
    pod(cluster, "by-type", "a", requests=whole, nodeSelector={"kubernetes.io/hostname": "labelled"})
    cluster.started("by-type", namespace="a")
    cluster.until_used("a", {GPU_MEMORY: "132"})
    cluster.stop()
    cluster.start(gpu_memory_gb=16)
    cluster.until_used("a", {GPU_MEMORY: "116"})


@pytest.mark.covers("NOS-05")
def test_pods_carry_their_place_in_the_quota(cluster: Rooms) -> None:
    cluster.quota("a", min={"cpu": 2})
    cluster.quota("b", min={"cpu": 8})
    for name in ("first", "second", "third"):
        pod(cluster, name, "a")
        cluster.started(name, namespace="a")
        cluster.clock.advance(2)
    cluster.until(lambda: all(cluster.labels("first", "second", "third", namespace="a")), "labels")
    assert cluster.labels("first", "second", "third", namespace="a") == ["in-quota", "in-quota", "over-quota"]
    cluster.delete_pod("first", "a")
    cluster.until(lambda: cluster.labels("third", namespace="a") == ["in-quota"], "third within quota")


@pytest.mark.covers("NOS-06")
def test_the_scheduler_rejects_pods_without_quota(cluster: Rooms) -> None:
    cluster.quota("team-a", name="quota-a", **QUOTA_A)
    cluster.until(lambda: cluster.quota_status("team-a", "quota-a").conditions, "quota in force")
    pod(cluster, "memory", "team-a", memory="64Mi")
    cluster.until_bound("memory", namespace="team-a")
    pod(cluster, "max", "team-a", "10")
    assert "exceed its max" in cluster.until_rejected("max", namespace="team-a")
    pod(cluster, "total", "team-a", "2")
    assert "exceed their total min" in cluster.until_rejected("total", namespace="team-a")
    cluster.until(lambda: cluster.messages("total"), "an event")
    assert [cluster.waiting_for(name, "team-a") for name in ("max", "total")] == ["QuotaExceeded"] * 2
    pod(cluster, "free", "default", "9")
    cluster.until_bound("free")
    cluster.stop()
    cluster.start(quota_absent_is_zero=True)
    pod(cluster, "zero", "team-a", memory="64Mi")
    assert "exceed" in cluster.until_rejected("zero", namespace="team-a")


@pytest.mark.covers("NOS-07")
def test_a_namespace_borrows_up_to_its_max(cluster: Rooms) -> None:
    cluster.quota("a", min={"cpu": 2}, max={"cpu": 4})
    cluster.quota("b", min={"cpu": 6})
    for name in ("1", "2", "3", "4"):
        pod(cluster, name, "a")
    cluster.until_bound("1", "2", "3", "4", namespace="a")
    pod(cluster, "5", "a")
    assert "exceed its max" in cluster.until_rejected("5", namespace="a")
    pod(cluster, "rest", "b", "4")
    cluster.until_bound("rest", namespace="b")
    pod(cluster, "over", "b", "1")
    assert "total min" in cluster.until_rejected("over", namespace="b")


def borrowed(cluster: Rooms) -> None:
    """`b` uses its 2 CPU and 4 of `a`."""
    cluster.quota("a", min={"cpu": 4})
    cluster.quota("b", min={"cpu": 2})
    for name in ("b-1", "b-2", "b-3"):
        pod(cluster, name, "b", "2", labels={"app": name})
        cluster.started(name, namespace="b")
        cluster.clock.advance(2)
    cluster.until(lambda: all(cluster.labels("b-1", "b-2", "b-3", namespace="b")), "labels")
    assert cluster.labels("b-1", "b-2", "b-3", namespace="b") == ["in-quota", "over-quota", "over-quota"]


@pytest.mark.covers("NOS-08")
def test_a_guaranteed_pod_evicts_pods_over_quota(cluster: Rooms) -> None:
    borrowed(cluster)
    pod(cluster, "a-1", "a", "2")
    preemptor = cluster.get(Pod, "a-1", "a").uid
    cluster.until(cluster.evicted, "an eviction")
    assert cluster.evicted() == ["b-3"]
    assert cluster.get(Pod, "a-1", "a").spec.node_name == ""
    cluster.until(lambda: cluster.get(Pod, "a-1", "a").status.nominated_node_name == "node-0", "nominated")
    # The room that comes free is kept for it, also from a pod of higher priority that would borrow.
    high = {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"}
    cluster.client.create(PriorityClass.KIND, high)
    pod(cluster, "b-4", "b", "2", priorityClassName="high")
    cluster.end_evicted()
    cluster.started("a-1", namespace="a")
    assert "total min" in cluster.until_rejected("b-4", namespace="b")
    pod(cluster, "a-2", "a", "2")
    cluster.until(lambda: cluster.evicted() == ["b-2"], "the second eviction")
    cluster.end_evicted()
    cluster.started("a-2", namespace="a")
    # Nothing is borrowed any more, and b-1 is within the quota of b.
    pod(cluster, "a-3", "a", "2")
    cluster.until_rejected("a-3", "total min", namespace="a")
    assert cluster.evicted() == []
    assert cluster.messages("b-3", "Preempted") == [f"Preempted by pod {preemptor} on node node-0"]


@pytest.mark.covers("NOS-09")
def test_a_composite_is_one_quota(cluster: Rooms) -> None:
    cluster.quota("x", namespaces=("x", "y", "z"), min={"cpu": 4})
    for name, namespace in (("1", "x"), ("2", "y"), ("3", "z")):
        pod(cluster, name, namespace)
        cluster.started(name, namespace=namespace)
    cluster.until_used("x", {"cpu": "3"}, composite=True)
    pod(cluster, "4", "y", "2")
    assert "total min" in cluster.until_rejected("4", namespace="y")
    pod(cluster, "5", "z")
    cluster.until_bound("5", namespace="z")


@pytest.mark.covers("NOS-10")
def test_budgets_hold_against_evictions(cluster: Rooms) -> None:
    borrowed(cluster)
    budget = objects.budget("keep", app="b-3", allowed=0)
    budget["metadata"]["namespace"] = "b"
    cluster.client.create(objects.PDB, budget)
    status = {
        "observedGeneration": 1,
        "disruptionsAllowed": 0,
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "expectedPods": 1,
    }
    cluster.client.patch(objects.PDB, "keep", {"status": status}, namespace="b", subresource="status")
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    for name in ("b-2", "b-3"):
        cluster.client.patch(Pod.KIND, name, ready, namespace="b", subresource="status")
    pod(cluster, "a-1", "a", "2")
    cluster.until(lambda: cluster.messages("a-1", "PreemptionBlocked"), "the budget is reported")
    assert cluster.evicted() == []
    cluster.clock.advance(2)
    cluster.until(cluster.evicted, "the other pod is evicted")
    assert cluster.evicted() == ["b-2"]
    cluster.end_evicted()
    cluster.until_bound("a-1", namespace="a")
    assert cluster.node_of("b-3", "b") == "node-0"


@pytest.mark.covers("NOS-10")
def test_another_pod_is_evicted_where_a_webhook_refuses_one(cluster: Rooms) -> None:
    borrowed(cluster)
    tried: list[str] = []

    def refuse(request: Request) -> None:
        tried.append(request.path)
        if request.path == tried[0]:
            raise Forbidden(403, "Forbidden", "the webhook denied the request: the shard moves")

    cluster.tap.on(lambda request: request.path.endswith("/eviction"), refuse, times=-1)
    pod(cluster, "a-1", "a", "2")
    cluster.until(lambda: cluster.messages("a-1", "PreemptionBlocked"), "the refusal is reported")
    (message,) = cluster.messages("a-1", "PreemptionBlocked")
    assert "the shard moves; other pods are tried" in message
    cluster.clock.advance(2)
    cluster.until(cluster.evicted, "the other pod is evicted")
    cluster.end_evicted()
    cluster.until_bound("a-1", namespace="a")


@pytest.mark.covers("NOS-10")
def test_no_pod_is_evicted_in_vain(cluster: Rooms) -> None:
    borrowed(cluster)
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    for name in ("b-2", "b-3"):
        cluster.client.patch(Pod.KIND, name, ready, namespace="b", subresource="status")
    tried: list[str] = []

    def evicts(request: Request) -> bool:
        return request.path.endswith("/eviction")

    def refuse(request: Request) -> None:
        """A budget protects the second of the two."""
        tried.append(request.path)
        if request.path != tried[0]:
            raise TooManyRequests(429, "TooManyRequests", "a budget protects it")

    cluster.tap.on(evicts, refuse, times=-1)
    # Both borrowers are needed, and one of them is protected.
    pod(cluster, "a-1", "a", "4")
    cluster.until(lambda: cluster.messages("a-1", "PreemptionBlocked"), "the budget is reported")
    assert cluster.evicted() == []
    assert len(set(tried)) == 2


@pytest.mark.covers("NOS-02")
def test_a_quota_that_cannot_be_in_force_is_shown_and_has_no_effect(cluster: Rooms) -> None:
    cluster.quota("a", min={"cpu": 4})
    cluster.clock.advance(2)
    cluster.quota("a", name="second", min={"cpu": 1})
    cluster.quota("c", name="both", namespaces=("a", "c"), min={"cpu": 1})
    cluster.quota("d", name="wrong", min={"cpu": 4}, max={"cpu": 2})

    def reason(namespace: str, name: str, *, composite: bool = False) -> str:
        conditions = cluster.quota_status(namespace, name, composite=composite).conditions
        return f"{conditions[0].status} {conditions[0].reason}" if conditions else ""

    for namespace, name, composite, expected in (
        ("a", "quota", False, "True InForce"),
        ("a", "second", False, "False NamespaceTaken"),
        ("c", "both", True, "False NamespaceTaken"),
        ("d", "wrong", False, "False MaxBelowMin"),
    ):
        shown = cluster.until(lambda n=namespace, m=name, c=composite: reason(n, m, composite=c), name)  # type: ignore[misc]
        assert shown == expected
    pod(cluster, "p", "c", "9")
    cluster.until_bound("p", namespace="c")


def test_a_pod_for_which_no_room_comes_free_is_nominated_no_more(cluster: Rooms) -> None:
    """Else it would never get a new node: provisioning leaves nominated pods to preemption."""
    cluster.quota("a", min={"cpu": 4})
    pod(cluster, "big", "a", "64")
    cluster.until_rejected("big", namespace="a")
    status = {"status": {"nominatedNodeName": "node-9"}}
    cluster.client.patch(Pod.KIND, "big", status, namespace="a", subresource="status")
    cluster.node("node-1", room={"cpu": "1"})  # each change of a node starts a run
    cluster.until(lambda: not cluster.get(Pod, "big", "a").status.nominated_node_name, "no nomination")


@pytest.mark.covers("FLT-44")
def test_used_memory_counts_a_mig_device_with_an_attribute_in_its_name(cluster: Rooms) -> None:
    cluster.case("quota-9", "a")
    cluster.until_bound("p", namespace="a")
    cluster.ran("p", namespace="a")
    cluster.until(
        lambda: cluster.quota_status("a", "q").used == {GPU_MEMORY: "24"}, "used of one 24 GB device"
    )
