"""NodeResourcesFit: requests of pods, and room of nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.core import PodSpec
from broker.placement.quantities import amounts, counted, spec_requests
from tests.unit.placement.builders import node, on_one, pod

Json = dict[str, Any]


def container(cpu: str, memory: str = "0", *, sidecar: bool = False) -> Json:
    policy = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}, **policy}


@pytest.mark.parametrize(
    ("spec", "cpu", "memory"),
    [
        ({"containers": [container("1", "1Gi"), container("500m", "1")]}, 1500, 2**30 + 1),
        ({"containers": [container("1")], "initContainers": [container("2"), container("3")]}, 3000, 0),
        ({"containers": [container("2", "1")], "initContainers": [container("1", "2")]}, 2000, 2),
        # A sidecar runs beside the init containers after it, and beside the containers.
        (
            {
                "containers": [container("1")],
                "initContainers": [container("2"), container("1", sidecar=True)],
            },
            2000,
            0,
        ),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("1", sidecar=True), container("2")],
            },
            3000,
            0,
        ),
        (
            {
                "containers": [container("1")],
                "initContainers": [
                    container("1", sidecar=True),
                    container("1"),
                    container("2", sidecar=True),
                    container("3"),
                ],
            },
            6000,
            0,
        ),
        ({"containers": [container("1")], "overhead": {"cpu": "250m", "memory": "64Mi"}}, 1250, 64 * 2**20),
        # The pod's own requests replace those of its containers, before overhead.
        ({"containers": [container("1", "1")], "resources": {"requests": {"cpu": "4"}}}, 4000, 1),
        (
            {
                "containers": [container("1")],
                "resources": {"requests": {"cpu": "4"}},
                "overhead": {"cpu": "1"},
            },
            5000,
            0,
        ),
        # Only sums are rounded, and up.
        ({"containers": [container("100u"), container("100u")]}, 1, 0),
        ({"containers": [container("0", "100m"), container("0", "1900m")]}, 0, 2),
        (
            {
                "containers": [
                    {"name": "c", "resources": {"limits": {"cpu": "2"}, "requests": {"memory": "3"}}}
                ]
            },
            2000,
            3,
        ),
    ],
)
def test_requests_are_the_peak_of_the_pods_life(spec: Json, cpu: int, memory: int) -> None:
    requests = spec_requests(PodSpec.model_validate(spec))
    assert (requests["cpu"], requests.get("memory", 0)) == (cpu, memory)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("cpu", True),
        ("ephemeral-storage", True),
        ("hugepages-2Mi", True),
        ("attachable-volumes-aws-ebs", True),
        ("nvidia.com/gpu", True),
        ("node.kubernetes.io/x", True),
        ("requests.nvidia.com/gpu", False),
        ("storage", False),
        ("pods", False),
    ],
)
def test_only_resources_of_nodes_count(name: str, counts: bool) -> None:
    assert counted(name) == counts


@pytest.mark.parametrize(
    ("requests", "used", "messages"),
    [
        ({"cpu": "2"}, {"cpu": "2"}, []),
        ({"cpu": "2"}, {"cpu": "2001m"}, ["Insufficient cpu"]),
        ({"cpu": "5", "memory": "9Gi"}, {}, ["Insufficient cpu", "Insufficient memory"]),
        ({"cpu": "0", "memory": "0"}, {"cpu": "8", "memory": "16Gi"}, []),
        ({}, {"cpu": "8"}, []),
        ({"example.com/gpu": "1"}, {}, ["Insufficient example.com/gpu"]),
        ({"example.com/gpu": "0"}, {}, []),
        ({"ephemeral-storage": "1"}, {}, ["Insufficient ephemeral-storage"]),
        ({"hugepages-2Mi": "2Mi"}, {}, ["Insufficient hugepages-2Mi"]),
    ],
)
def test_node_lacks_each_resource_that_does_not_fit(requests: Json, used: Json, messages: list[str]) -> None:
    assert on_one(pod(requests=requests), node(), pod("other", on="n", requests=used)) == messages


def test_full_node_has_too_many_pods() -> None:
    small = node(room={"pods": "1"})
    assert on_one(pod(), small) == []
    assert on_one(pod(), small, pod("other", on="n")) == ["Too many pods"]
    assert on_one(pod(requests={"cpu": "9"}), node(room={"pods": "0"})) == [
        "Too many pods",
        "Insufficient cpu",
    ]


def test_room_is_read_in_milli_cpu_and_base_units() -> None:
    room = {"cpu": "1.5", "memory": "1Ki", "pods": "10", "storage": "1Gi"}
    assert amounts(room) == {"cpu": 1500, "memory": 1024, "pods": 10}


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=5), st.integers(0, 2**40))
def test_pod_never_requests_less_than_a_container(sizes: list[int], init: int) -> None:
    spec = {
        "containers": [container("0", str(size)) for size in sizes],
        "initContainers": [container("0", str(init))],
    }
    assert spec_requests(PodSpec.model_validate(spec))["memory"] == max(sum(sizes), init)
