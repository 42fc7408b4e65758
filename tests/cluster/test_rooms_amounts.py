"""How much a pod takes: while it is resized, of MIG devices, and of GPUs of unlike nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.apis.core import Pod
from broker.quota.elastic_gpu import GPU_MEMORY
from tests.cluster.rooms import Rooms, rooms

SMALL, BIG = ({"karpenter.k8s.aws/instance-gpu-memory": mebibytes} for mebibytes in ("16384", "81920"))


@pytest.fixture
def cluster() -> Iterator[Rooms]:
    with rooms() as rooms_:
        rooms_.start()
        yield rooms_


def resized(cluster: Rooms, name: str, cpu: str, namespace: str = "default") -> None:
    """The kubelet's report: the size that the pod's container has."""
    given = {"name": "c", "allocatedResources": {"cpu": cpu}, "resources": {"requests": {"cpu": cpu}}}
    status = {"status": {"phase": "Running", "containerStatuses": [given]}}
    cluster.client.patch(Pod.KIND, name, status, namespace=namespace, subresource="status")


@pytest.mark.covers("FLT-38")
def test_a_pod_that_shrinks_keeps_its_room_until_the_kubelet_has_done_it(cluster: Rooms) -> None:
    cluster.case("quota-6", "a")
    resized(cluster, "big", "3")
    cluster.case("quota-6", "b")
    cluster.until_rejected("next", "Insufficient cpu")
    resized(cluster, "big", "1")
    assert cluster.until_bound("next") == ["n0"]


@pytest.mark.covers("FLT-38")
def test_a_quota_counts_the_size_that_a_pod_has(cluster: Rooms) -> None:
    cluster.node("n0", room={"cpu": "8"})
    cluster.quota("a", min={"cpu": 4}, max={"cpu": 4})
    container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": "1"}}}
    spec = {"schedulerName": "nos-scheduler", "containers": [container]}
    cluster.client.create(Pod.KIND, {"metadata": {"name": "big", "namespace": "a"}, "spec": spec})
    cluster.until_bound("big", namespace="a")
    resized(cluster, "big", "3", "a")
    cluster.until_used("a", {"cpu": "3"})
    cluster.pod("next", cpu="2", namespace="a", scheduler="nos-scheduler")
    cluster.until_rejected("next", "exceed its max", namespace="a")
    resized(cluster, "big", "1", "a")
    cluster.until_bound("next", namespace="a")


@pytest.mark.covers("FLT-44")
def test_a_mig_profile_counts_wherever_it_stands_in_the_name(cluster: Rooms) -> None:
    cluster.case("quota-9", "a")
    cluster.started("p", namespace="a")
    cluster.until(lambda: cluster.quota_status("a", "q").used == {GPU_MEMORY: "24"}, "24 GB used")


def gpu(cluster: Rooms, name: str, **more: Any) -> str:
    return cluster.pod(
        name, namespace="a", requests={"nvidia.com/gpu": "1"}, scheduler="nos-scheduler", **more
    )


@pytest.mark.covers("FLT-68")
@pytest.mark.parametrize(
    ("nodes", "gigabytes", "expected"),
    [
        ({"big": BIG}, 40, ""),
        ({"small": SMALL}, 16, "small"),
        ({"big": BIG, "small": SMALL}, 16, "small"),
        ({"big": BIG, "small": SMALL}, 15, ""),
        ({"plain": {}}, 32, "plain"),
        ({"plain": {}}, 31, ""),
    ],
)
def test_a_pod_counts_the_memory_of_the_nodes_that_it_may_have(
    cluster: Rooms, nodes: dict[str, dict[str, str]], gigabytes: int, expected: str
) -> None:
    for name, labels in nodes.items():
        cluster.node(name, room={"nvidia.com/gpu": "1", "cpu": "64"}, labels=labels)
    cluster.quota("a", min={GPU_MEMORY: gigabytes}, max={GPU_MEMORY: gigabytes})
    gpu(cluster, "p")
    if expected:
        assert cluster.until_bound("p", namespace="a") == [expected]
    else:
        cluster.until_rejected("p", "exceed its max", namespace="a")
        assert cluster.waiting_for("p", "a") == "QuotaExceeded"


@pytest.mark.covers("FLT-68")
def test_a_pod_counts_after_its_bind_as_at_its_admission(cluster: Rooms) -> None:
    cluster.node("big", room={"nvidia.com/gpu": "4"}, labels=BIG)
    cluster.quota("a", min={GPU_MEMORY: 160}, max={GPU_MEMORY: 160})
    names = [gpu(cluster, f"p{number}") for number in range(3)]
    cluster.until_bound(*names[:2], namespace="a")
    cluster.until_rejected(names[2], "exceed its max", namespace="a")
    cluster.ran(*names[:2], namespace="a")
    cluster.until_used("a", {GPU_MEMORY: "160"})


@pytest.mark.covers("FLT-68")
def test_a_node_that_its_quota_refuses_is_no_reason_for_a_machine(cluster: Rooms) -> None:
    cluster.node("small", room={"nvidia.com/gpu": "1"}, labels=SMALL)
    cluster.node("big", room={"nvidia.com/gpu": "1"}, labels=BIG)
    cluster.quota("a", min={GPU_MEMORY: 32}, max={GPU_MEMORY: 32})
    gpu(cluster, "first")
    assert cluster.until_bound("first", namespace="a") == ["small"]
    gpu(cluster, "second")
    cluster.until_rejected("second", "exceed its max", namespace="a")
    assert cluster.waiting_for("second", "a") == "QuotaExceeded"


@pytest.mark.covers("FLT-68", "FLT-21")
def test_a_minimum_of_gpu_memory_comes_back_on_the_nodes_of_its_size(cluster: Rooms) -> None:
    cluster.node("small", room={"nvidia.com/gpu": "1"}, labels=SMALL)
    cluster.quota("b", min={GPU_MEMORY: 0})
    cluster.quota("a", min={GPU_MEMORY: 16})
    cluster.pod("lent", namespace="b", requests={"nvidia.com/gpu": "1"}, scheduler="nos-scheduler")
    cluster.started("lent", namespace="b")
    gpu(cluster, "owner")
    cluster.until(lambda: cluster.evicted() == ["lent"], "an eviction")
    cluster.end_evicted()
    assert cluster.until_bound("owner", namespace="a") == ["small"]


@pytest.mark.covers("FLT-68", "FLT-42", "FLT-21")
def test_a_gang_gets_its_minimum_back_on_the_larger_gpus_too(cluster: Rooms) -> None:
    cluster.node("small", room={"nvidia.com/gpu": "1"}, labels=SMALL)
    cluster.node("big", room={"nvidia.com/gpu": "2"}, labels=BIG)
    cluster.quota("b", min={GPU_MEMORY: 0})
    cluster.quota("a", min={GPU_MEMORY: 160})
    cluster.pod("lent", namespace="b", requests={"nvidia.com/gpu": "2"}, scheduler="nos-scheduler")
    cluster.started("lent", namespace="b")
    gang = {"capacity-broker.io/gang": "x", "capacity-broker.io/gang-size": "2"}
    members = [gpu(cluster, f"x-{number}", annotations=gang) for number in range(2)]
    cluster.until(lambda: cluster.evicted() == ["lent"], "an eviction")
    cluster.end_evicted()
    assert cluster.until_bound(*members, namespace="a") == ["big", "big"]
