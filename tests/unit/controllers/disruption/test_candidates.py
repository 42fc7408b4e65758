"""Empty nodes that waiting pods are about to take."""

from __future__ import annotations

from typing import Any

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.disruption.candidates import usable_soon
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.occupancy import NodeOccupancy
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


def kept(pods: list[Pod], *names: str) -> dict[str, str]:
    """The nodes of these that are kept, and for which pods. Another node, `busy`, is no candidate."""
    nodes = [node(name) for name in names]
    infos = {waiting.key: pod_info(waiting) for waiting in pods}
    occupancy = NodeOccupancy(nodes=[*nodes, node("busy")], infos=infos)
    return usable_soon(map(managed, nodes), pods, occupancy)


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
