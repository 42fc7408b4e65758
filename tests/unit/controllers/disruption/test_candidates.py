"""Nodes that may be disrupted, and empty ones that waiting pods are about to take."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.names import INITIALIZED_CONDITION, PODS
from broker.controllers.disruption.candidates import awaits_pods, nominated, ready_to_go, usable_soon
from broker.controllers.disruption.conditions import RETRY
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.controllers.disruption.usable import closed_nodes
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.kube.cache import Cache
from broker.placement.reading import pod_info

POOL = NodePool.decode(
    {"metadata": {"name": "web"}, "spec": {"template": {"spec": {"nodeClassRef": {"name": "web"}}}}}
)


def node(name: str) -> Node:
    room = {"cpu": "2", "memory": "8Gi", "pods": "10"}
    return Node.decode({"metadata": {"name": name}, "status": {"allocatable": room}})


def managed(of: Node) -> ManagedNode:
    return ManagedNode(claim=NodeClaim.decode({"metadata": {"name": of.name}}), pool=POOL, node=of)


def pod(name: str, cpu: str, *, spec: dict[str, Any] | None = None, nominated: str = "") -> Pod:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    return Pod.decode(
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [container], **(spec or {})},
            "status": {"phase": "Pending", "nominatedNodeName": nominated},
        }
    )


PROVIDER_ID = "aws:///us-east-1a/i-0123456789abcdef0"


def caches(pods: list[Pod], claims: list[NodeClaim]) -> Any:
    listed = {"pods": pods, "claims": claims, "nodes": []}
    return SimpleNamespace(
        **{kind: SimpleNamespace(list=lambda o=objects: o, left_out=[]) for kind, objects in listed.items()}
    )


def kept(pods: list[Pod], *names: str) -> dict[str, str]:
    """The nodes of these that are kept, and for which pods. Another node, `busy`, is no candidate."""
    nodes = [node(name) for name in names]
    infos = {waiting.key: pod_info(waiting) for waiting in pods}
    occupancy = NodeOccupancy(nodes=[*nodes, node("busy")], infos=infos)
    return usable_soon(map(managed, nodes), caches(pods, []), occupancy)


@pytest.mark.covers("FUL-05")
@pytest.mark.parametrize(
    ("counted", "closed"),
    [
        pytest.param([], {"a"}, id="came since"),
        pytest.param(["a"], set(), id="counted"),
        pytest.param(["b"], {"a"}, id="moved since"),
    ],
)
def test_a_node_that_got_a_pod_since_the_pass_began_takes_no_other(
    counted: list[str], closed: set[str]
) -> None:
    """A successor that has the pod of its node would else have room for the next node's, which ends too."""

    def placed(on: str) -> Pod:
        return pod("web-0", "1500m", spec={"nodeName": on})

    caches: Any = SimpleNamespace(pods=SimpleNamespace(list=lambda: [placed("a")]))
    occupancy = NodeOccupancy(nodes=[node("a"), node("b")], pods=[placed(on) for on in counted])
    assert (
        closed_nodes(DisruptionSnapshot(now=datetime(2026, 1, 1, tzinfo=UTC), occupancy=occupancy), caches)
        == closed
    )


def test_as_few_empty_nodes_are_kept_as_hold_the_waiting_pods() -> None:
    pods = [pod("a", "500m"), pod("b", "500m"), pod("c", "1500m")]
    assert kept(pods[:2], "n1", "n2", "n3") == {"n1": "default/a"}
    assert kept(pods, "n1", "n2", "n3") == {"n1": "default/a", "n2": "default/c"}


def test_pods_that_take_none_of_the_nodes_keep_none() -> None:
    pods = [
        pod("large", "3"),
        pod("gated", "1", spec={"schedulingGates": [{"name": "example.com/wait"}]}),
        pod("bound", "1", spec={"nodeName": "busy"}),
        pod("preempts", "1", nominated="busy"),
        pod("elsewhere", "1", spec={"nodeSelector": {"zone": "b"}}),
    ]
    assert kept(pods, "n1", "n2") == {}
    assert kept([pod("here", "1", nominated="n2")], "n1", "n2") == {"n2": "default/here"}


@pytest.mark.parametrize(("made_for", "expected"), [("default/a", {"n1": "default/a"}), ("default/b", {})])
def test_an_empty_node_is_kept_for_a_pod_whose_own_node_another_pod_took(
    made_for: str, expected: dict[str, str]
) -> None:
    """And not for one that waits for the pods that kube-scheduler evicts there."""
    claim = NodeClaim.decode(
        {"metadata": {"name": "busy", "annotations": {PODS: made_for}}, "status": {"providerID": PROVIDER_ID}}
    )
    full = Node.decode({**node("busy").wire(), "spec": {"providerID": PROVIDER_ID}})
    waiting = pod("a", "1", nominated="busy")
    occupancy = NodeOccupancy(
        nodes=[node("n1"), full],
        infos={waiting.key: pod_info(waiting)},
        bound=[pod_info(pod("b", "1500m", spec={"nodeName": "busy"}))],
    )
    assert usable_soon([managed(node("n1"))], caches([waiting], [claim]), occupancy) == expected


def shrinking(actual: str) -> Pod:
    """A pod on the node, which wants one CPU less than it has until the kubelet has resized it."""
    size = {"name": "main", "allocatedResources": {"cpu": actual}, "resources": {"requests": {"cpu": actual}}}
    body = pod("shrinks", "500m", spec={"nodeName": "n1"}).wire()
    return Pod.decode({**body, "status": {"phase": "Running", "containerStatuses": [size]}})


@pytest.mark.covers("FLT-38")
@pytest.mark.parametrize(("actual", "expected"), [("1500m", ""), ("500m", "default/a")])
def test_a_node_has_room_for_its_pod_once_another_has_shrunk(actual: str, expected: str) -> None:
    meta = {"name": "n1", "annotations": {PODS: "default/a"}}
    conditions = [{"type": INITIALIZED_CONDITION, "status": "True"}]
    claim = NodeClaim.decode({"metadata": meta, "status": {"conditions": conditions}})
    on_node = ManagedNode(claim=claim, pool=POOL, node=node("n1"), pods=(shrinking(actual),))
    assert nominated(on_node, {"default/a": pod("a", "1")}.get, NOW) == expected


@pytest.mark.covers("FLT-38")
@pytest.mark.parametrize(("actual", "expected"), [("1500m", {}), ("500m", {"n1": "default/a"})])
def test_a_pod_that_shrinks_takes_its_size_from_a_node_that_is_kept(
    actual: str, expected: dict[str, str]
) -> None:
    waiting = pod("a", "1")
    occupancy = NodeOccupancy(
        nodes=[node("n1")], infos={waiting.key: pod_info(waiting)}, bound=[pod_info(shrinking(actual))]
    )
    assert usable_soon([managed(node("n1"))], caches([waiting], []), occupancy) == expected


NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENDS = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/kept"]}


def conditioned(*conditions: tuple[str, str, datetime], **meta: Any) -> NodeClaim:
    """A claim with an initialized node and these conditions: type, status and since when."""
    every = [(names.INITIALIZED_CONDITION, "True", NOW), *conditions]
    written = [
        {"type": type_, "status": status, "lastTransitionTime": f"{since:%Y-%m-%dT%H:%M:%SZ}"}
        for type_, status, since in every
    ]
    return NodeClaim.decode({"metadata": {"name": "n1", **meta}, "status": {"conditions": written}})


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    ("changed", "ready"),
    [
        ({}, True),
        ({"node": None}, False),
        # A Node of the claim that nobody can read may hold pods.
        ({"unreadable": True}, False),
        ({"replacement": conditioned()}, False),
        ({"node": Node.decode({"metadata": {"name": "n1", **ENDS}})}, False),
        ({"claim": conditioned(**ENDS)}, False),
        # EC2 does not list the instance: it is ended, or comes back.
        ({"claim": conditioned((names.INSTANCE_LISTED, "False", NOW))}, False),
        ({"claim": conditioned((names.INSTANCE_LISTED, "True", NOW))}, True),
        ({"claim": conditioned((names.DISRUPTION_REASON, "False", NOW))}, False),
        ({"claim": conditioned((names.DISRUPTION_REASON, "False", NOW - RETRY))}, True),
        (
            {"claim": conditioned((names.DISRUPTION_REASON, "False", NOW - RETRY + timedelta(seconds=1)))},
            False,
        ),
    ],
)
def test_only_a_known_node_in_no_other_disruption_may_be_disrupted(
    changed: dict[str, Any], ready: bool
) -> None:
    whole = ManagedNode(claim=conditioned(), pool=POOL, node=node("n1"))
    assert ready_to_go(replace(whole, **changed), NOW) is ready


@pytest.mark.parametrize("replaced", ["r-0/old", "r-1/gone,r-0/old"])
@pytest.mark.parametrize(("uid", "awaits"), [("old", True), ("another-of-that-name", False)])
def test_replacement_awaits_the_pods_of_the_claims_that_it_replaces(
    uid: str, awaits: bool, replaced: str
) -> None:
    now = datetime(2026, 11, 23, tzinfo=UTC)
    claims = Cache(NodeClaim)
    claims.apply("ADDED", {"metadata": {"name": "r-0", "uid": uid, "resourceVersion": "1"}})
    at = (now - timedelta(hours=1)).isoformat()
    first, _, others = replaced.partition(",")
    annotations = {names.REPLACES: first, names.REPLACES_ALSO: others}
    replacement = NodeClaim.decode(
        {
            "metadata": {"name": "new", "uid": "new", "annotations": annotations},
            "status": {
                "lastPodEventTime": at,
                "conditions": [{"type": INITIALIZED_CONDITION, "status": "True", "lastTransitionTime": at}],
            },
        }
    )
    assert awaits_pods(replacement, claims, now) is awaits
