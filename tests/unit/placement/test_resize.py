"""Requests of a pod while a resize is pending."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.core import Pod
from broker.controllers.provisioning.claims import total_requests
from broker.placement.model import NodeInfo
from broker.placement.packing_model import PendingPod
from broker.placement.quantities import pod_requests
from broker.placement.reading import pod_info
from broker.placement.sequential import place_on_existing
from broker.placement.snapshot import PlacementSnapshot

PENDING = {"type": "PodResizePending", "status": "True"}
INFEASIBLE = {**PENDING, "reason": "Infeasible"}


def container(name: str, cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": cpu}}, **more}


def status(name: str, allocated: str = "", actual: str = "") -> dict[str, Any]:
    body: dict[str, Any] = {"name": name}
    if allocated:
        body["allocatedResources"] = {"cpu": allocated}
    if actual:
        body["resources"] = {"requests": {"cpu": actual}}
    return body


def cpu(containers: list[dict[str, Any]], spec: dict[str, Any] | None = None, **status_: Any) -> int:
    body = {"metadata": {"name": "p"}, "spec": {"containers": containers, **(spec or {})}, "status": status_}
    return pod_requests(Pod.decode(body))["cpu"]


@pytest.mark.covers("FLT-38")
@pytest.mark.parametrize(
    ("desired", "allocated", "actual", "conditions", "expected"),
    [
        ("1", "3", "3", [], 3000),
        ("3", "1", "1", [PENDING], 3000),
        ("1", "1", "3", [], 3000),
        ("1", "3", "", [], 3000),
        ("1", "", "3", [], 3000),
        ("9", "1", "1", [INFEASIBLE], 1000),
        ("9", "1", "2", [INFEASIBLE], 2000),
        ("9", "", "", [INFEASIBLE], 9000),
        ("9", "1", "1", [{**INFEASIBLE, "status": "False"}], 9000),
        ("9", "1", "1", [{**PENDING, "reason": "Deferred"}], 9000),
    ],
)
def test_the_largest_of_desired_allocated_and_actual_counts(
    desired: str, allocated: str, actual: str, conditions: list[dict[str, str]], expected: int
) -> None:
    statuses = [status("c", allocated, actual)]
    assert cpu([container("c", desired)], containerStatuses=statuses, conditions=conditions) == expected


@pytest.mark.covers("FLT-38")
def test_each_source_is_summed_over_the_containers_first() -> None:
    statuses = [status("a", "3", "3"), status("b", "1", "1")]
    assert cpu([container("a", "1"), container("b", "3")], containerStatuses=statuses) == 4000


@pytest.mark.covers("FLT-38")
def test_a_sidecar_and_the_pod_as_a_whole_are_resized_alike() -> None:
    sidecar = {"initContainers": [container("s", "1", restartPolicy="Always")]}
    assert cpu([container("c", "1")], sidecar, initContainerStatuses=[status("s", "2", "2")]) == 3000
    whole = {"resources": {"requests": {"cpu": "4"}}}
    given = {"allocatedResources": {"cpu": "6"}, "resources": {"requests": {"cpu": "5"}}}
    assert cpu([container("c", "1")], whole, **given) == 6000
    assert cpu([container("c", "1")], whole, resources={"requests": {"cpu": "7"}}) == 7000


@pytest.mark.covers("FLT-38")
def test_resources_that_a_status_leaves_out_are_those_of_the_spec() -> None:
    """Devices are never resized, and a status may have CPU and memory alone."""
    spec = {"name": "c", "resources": {"requests": {"cpu": "9"}, "limits": {"nvidia.com/gpu": "2"}}}
    body = {
        "metadata": {"name": "p"},
        "spec": {"containers": [spec], "overhead": {"cpu": "1"}},
        "status": {"containerStatuses": [status("c", "1", "1")], "conditions": [INFEASIBLE]},
    }
    assert pod_requests(Pod.decode(body)) == {"cpu": 2000, "nvidia.com/gpu": 2}


@pytest.mark.covers("FLT-38")
@pytest.mark.parametrize(("actual", "placed"), [("3", {}), ("1", {"default/next": "n"})])
def test_packing_counts_a_pod_that_shrinks_until_the_kubelet_has_done_it(
    actual: str, placed: dict[str, str]
) -> None:
    big = pod("big", "1", node="n", containerStatuses=[status("c", actual, actual)])
    node = NodeInfo(name="n", allocatable={"cpu": 4000, "pods": 10})
    snapshot = PlacementSnapshot.of([node], [pod_info(big)])
    waiting = [PendingPod(info=pod_info(pod("next", "2")))]
    assert place_on_existing(waiting, snapshot)[1] == placed


@pytest.mark.covers("FLT-38")
def test_a_claim_asks_for_the_largest_size_of_its_pods() -> None:
    shrinks = pod("big", "1", containerStatuses=[status("c", "2", "3")])
    assert total_requests([pod_info(shrinks)], {})["cpu"] == 3000


def pod(name: str, cpu: str, *, node: str = "", **status_: Any) -> Pod:
    meta = {"name": name, "namespace": "default", "uid": name}
    spec = {"nodeName": node, "containers": [container("c", cpu)]}
    return Pod.decode({"metadata": meta, "spec": spec, "status": status_})
