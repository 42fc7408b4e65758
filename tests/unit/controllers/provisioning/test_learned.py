"""The room of machines as nodes show it: which estimate it corrects, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.controllers.provisioning.learned import (
    WITHOUT_NODE,
    MachineSort,
    RoomLearner,
    difference,
)
from broker.placement.model import PodInfo

SORT = MachineSort("team", "m5.large")
NOW = datetime(2026, 11, 23, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ESTIMATE = {"cpu": 2000, "memory": 8000, "pods": 10, "ephemeral-storage": 0}


def claim(name: str = "c") -> NodeClaim:
    allocatable = {"cpu": "2", "memory": "8000", "pods": "10"}
    status = {"providerID": f"aws:///a/{name}", "allocatable": allocatable}
    meta = {"name": name, "labels": {names.NODEPOOL: "team"}, "annotations": {names.NODECLASS_HASH: "1"}}
    ref = {"group": names.BROKER, "kind": "EC2NodeClass", "name": "gpu"}
    return NodeClaim.decode({"metadata": meta, "spec": {"nodeClassRef": ref}, "status": status})


def node(name: str = "c", *, created: int = 0, room: Mapping[str, str] = MappingProxyType({})) -> Node:
    labels = {names.INITIALIZED: "true", names.INSTANCE_TYPE: "m5.large"}
    meta = {"name": name, "labels": labels, "creationTimestamp": f"2026-11-23T00:00:{created:02}Z"}
    allocatable = {"cpu": "2", "memory": "8000", "pods": "10", **room}
    body: dict[str, Any] = {"metadata": meta, "spec": {"providerID": f"aws:///a/{name}"}}
    return Node.decode({**body, "status": {"allocatable": allocatable}})


def daemon_pod(memory: str) -> Pod:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}
    container = {"name": "main", "resources": {"requests": {"memory": memory}}}
    meta = {"name": "d-0", "namespace": "kube-system", "ownerReferences": [owner]}
    return Pod.decode({"metadata": meta, "spec": {"nodeName": "c", "containers": [container]}})


@pytest.mark.parametrize(
    ("room", "pods", "estimate", "daemons", "learned"),
    [
        ({}, [], ESTIMATE, 1, {}),
        ({"memory": "6000"}, [], ESTIMATE, 1, {"memory": 6000}),
        ({"memory": "9000"}, [], ESTIMATE, 1, {}),
        ({"memory": "6000"}, [], {**ESTIMATE, "memory": 7000}, 1, {}),
        ({}, [daemon_pod("500")], ESTIMATE, 1, {"memory": 7500, "pods": 9}),
        ({}, [daemon_pod("500")], ESTIMATE, 2, {}),
    ],
    ids=["as estimated", "less", "more", "another estimate", "unknown daemon", "other DaemonSets"],
)
def test_node_with_less_room_corrects_the_estimate_that_it_contradicts(
    room: dict[str, str], pods: list[Pod], estimate: dict[str, int], daemons: int, learned: dict[str, int]
) -> None:
    learner = RoomLearner()
    learner.observe([node(room=room)], [claim()], pods, 1, classes={}, now=NOW)
    known = learner.observe([], [], [], daemons, classes={}, now=NOW)  # the node is gone
    assert known.room(SORT, estimate, {}) == learned


@pytest.mark.parametrize(
    ("nodes", "hash_", "later", "learned"),
    [
        ([], "1", WITHOUT_NODE - SECOND, {"memory": 6000}),
        ([], "1", WITHOUT_NODE, {}),
        ([node(room={"memory": "6000"})], "1", WITHOUT_NODE, {"memory": 6000}),
        ([], "2", SECOND, {}),
        ([node(room={"memory": "6000"})], "2", SECOND, {}),
    ],
    ids=["kept for a while", "node gone long", "node there", "other class", "node of the class before"],
)
def test_lesson_ends_with_its_class_and_a_while_after_its_node(
    nodes: list[Node], hash_: str, later: timedelta, learned: dict[str, int]
) -> None:
    learner = RoomLearner()
    learner.observe([node(room={"memory": "6000"})], [claim()], [], 1, classes={"gpu": "1"}, now=NOW)
    known = learner.observe(nodes, [claim()], [], 1, classes={"gpu": hash_}, now=NOW + later)
    assert known.room(SORT, ESTIMATE, {}) == learned


def test_the_newest_node_counts() -> None:
    nodes = [node("new", created=9), node("old", created=1, room={"memory": "6000"})]
    known = RoomLearner().observe(nodes, [claim("new"), claim("old")], [], 1, classes={}, now=NOW)
    assert known.room(SORT, ESTIMATE, {}) == {}


def test_difference_is_reported_only_to_pods_that_the_estimate_has_room_for() -> None:
    reports = {
        memory: difference(
            PodInfo(namespace="n", name="p", requests={"memory": memory}),
            SORT,
            ESTIMATE,
            {"memory": 6000},
            "c",
        )
        for memory in (5000, 7000, 9000)
    }
    assert reports == {
        5000: "",
        7000: "m5.large of NodePool team has 6000 memory for pods instead of 8000, as node c shows",
        9000: "",
    }
