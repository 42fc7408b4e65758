"""Reserved nodes that stand, and the pods of nodes outside reservations that may move to them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.ome import CapacityReservation
from broker.controllers.disruption.gangs import running_gangs
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.controllers.disruption.standing import StandingNodes
from broker.controllers.disruption.usable import closed_nodes, usable_nodes
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.kube.cache import Cache
from broker.placement.reading import pod_info
from broker.quota.usage import ReservationKey
from broker.reservations.drawing import DrawRights
from broker.text import format_time
from tests.support.caches import claim_caches

pytestmark = pytest.mark.covers("FLT-70")
Json = dict[str, Any]
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
GANG: Json = {names.GANG: "train"}


def pool(**disruption: Any) -> NodePool:
    """A pool that consolidates nodes with pods, unless `disruption` says otherwise."""
    template = {"spec": {"nodeClassRef": {"name": "web"}}}
    return NodePool.decode(
        {"metadata": {"name": "web"}, "spec": {"template": template, "disruption": disruption}}
    )


def true(type_: str) -> Json:
    return {"type": type_, "status": "True", "reason": type_, "lastTransitionTime": format_time(NOW)}


def pod(
    name: str, cpu: str, node: str = "", *, needs: Json | None = None, annotations: Json | None = None
) -> Pod:
    """A pod that runs on the node, or waits for one with the labels that it needs."""
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    return Pod.decode(
        {
            "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": annotations or {}},
            "spec": {
                "containers": [container],
                "nodeSelector": needs or {},
                **({"nodeName": node} if node else {}),
            },
            "status": {"phase": "Running" if node else "Pending"},
        }
    )


def managed(
    name: str,
    kind: str,
    *pods: Pod,
    ready: bool = True,
    conditions: Sequence[str] = (),
    annotations: Json | None = None,
    deleting: bool = False,
    of: NodePool | None = None,
) -> ManagedNode:
    ended = {"deletionTimestamp": format_time(NOW), "finalizers": ["example.com/kept"]} if deleting else {}
    labels = {names.CAPACITY_TYPE: kind} | ({names.RESERVATION_ID: "cr-1"} if kind == "reserved" else {})
    meta = {"name": name, "uid": name, "labels": labels, **ended}
    initialized = [true(names.INITIALIZED_CONDITION), *map(true, conditions)]
    of_claim = {"conditions": initialized, "providerID": f"aws:///us-east-1a/i-{name}"}
    claim = {"metadata": {**meta, "annotations": annotations or {}}, "status": of_claim}
    room = {"cpu": "2", "memory": "8Gi", "pods": "10"}
    status = {"allocatable": room, "conditions": [true(names.READY)] if ready else []}
    node = Node.decode({"metadata": {"name": name}, "status": status})
    return ManagedNode(claim=NodeClaim.decode(claim), pool=of or pool(), node=node, pods=pods)


def reserved(name: str = "r", *pods: Pod, **more: Any) -> ManagedNode:
    return managed(name, "reserved", *pods, **more)


def outside(name: str = "d", *pods: Pod, **more: Any) -> ManagedNode:
    return managed(name, "on-demand", *(pods or (pod(f"app-{name}", "1500m", name),)), **more)


RIGHTS = DrawRights({ReservationKey("default", "team"): CapacityReservation()})


def moves(*nodes: ManagedNode, waiting: Sequence[Pod] = ()) -> list[tuple[str, str]]:
    """The claims that may end, and the hosts of their pods."""
    on_nodes = [item for node in nodes for item in node.pods]
    infos = {item.key: pod_info(item) for item in (*on_nodes, *waiting)}
    occupancy = NodeOccupancy(
        nodes=[node.node for node in nodes if node.node is not None],
        infos=infos,
        pods=on_nodes,
        bound=[infos[item.key] for item in on_nodes],
    )
    snapshot = DisruptionSnapshot(now=NOW, nodes=nodes, occupancy=occupancy)
    claims, pods = Cache(NodeClaim), Cache(Pod)
    claims.replace([node.claim.wire() for node in nodes], 1)
    pods.replace([item.wire() for item in (*on_nodes, *waiting)], 1)
    free = [node for node in nodes if not node.claim.deleting]
    caches = claim_caches(claims, pods=pods)
    usable = usable_nodes(occupancy.nodes, closed_nodes(snapshot, caches))
    standing = StandingNodes(snapshot, occupancy.placement, free, usable, caches, RIGHTS)
    gangs = running_gangs(snapshot, [node.claim for node in nodes])
    return [
        (",".join(node.claim.name for node in move.nodes), ",".join(host.claim.name for host in move.hosts))
        for move in standing.moves(gangs, frozenset())
    ]


def test_pods_move_to_an_empty_reserved_node() -> None:
    assert moves(reserved(), outside()) == [("d", "r")]


TEAM: Json = {names.DRAWS_FROM: "default/team"}
SERVED: Json = {**TEAM, names.PODS: "default/a"}
REFUSED: Json = {**TEAM, names.PODS: "red/b"}
REPLACES: Json = {names.REPLACES: "old/old"}


@pytest.mark.parametrize(
    ("host", "others", "waiting"),
    [
        (reserved(ready=False), [], []),
        (reserved("r", pod("busy", "1", "r")), [], []),
        (reserved(conditions=[names.DRIFTED]), [], []),  # the pods would move again
        (reserved(annotations=REPLACES), [outside("old", deleting=True)], []),  # it awaits those of `old`
        # It was made for a pod that waits for a label, which an agent sets on the node later.
        (
            reserved(annotations={names.PODS: "default/next"}),
            [],
            [pod("next", "1500m", needs={"example.com/gpu": "true"})],
        ),
        (reserved(), [], [pod("next", "1500m")]),  # which a scheduler is about to bind
        (reserved(annotations=TEAM), [], []),  # the slot is of another reservation
    ],
    ids=["not ready", "full", "drifted", "awaits pods", "made for a pod", "fits a pod", "draws"],
)
def test_reserved_node_with_another_future_gets_no_pods(
    host: ManagedNode, others: list[ManagedNode], waiting: list[Pod]
) -> None:
    assert moves(host, outside(), *others, waiting=waiting) == []


@pytest.mark.parametrize(
    ("host", "node", "expected"),
    [
        (SERVED, SERVED, [("d", "r")]),
        (SERVED, REFUSED, []),  # both claims name the owner, and its slot is not for these pods
        (REFUSED, SERVED, []),
        (REFUSED, {}, [("d", "r")]),  # a refused name has no effect
    ],
)
def test_pods_move_only_to_a_node_that_draws_from_the_same_owner(
    host: Json, node: Json, expected: list[tuple[str, str]]
) -> None:
    assert moves(reserved(annotations=host), outside(annotations=node)) == expected


KEEPS: Json = {"consolidationPolicy": "WhenEmpty"}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([outside(of=pool(**KEEPS))], []),
        ([outside(of=pool(**KEEPS), conditions=[names.DRIFTED])], [("d", "r")]),  # it ends in any case
        ([managed("d", "on-demand")], []),  # it ends as an empty node
        ([outside(deleting=True)], []),
        ([outside("d", annotations=GANG), outside("e", annotations=GANG)], []),  # both do not fit
        # The other node of the gang ends already, while its pod drains.
        (
            [
                outside("d", pod("g-0", "500m", "d", annotations=GANG)),
                outside("e", pod("g-1", "500m", "e", annotations=GANG), deleting=True),
            ],
            [("d", "r")],
        ),
        (
            [
                outside("d", pod("g-0", "500m", "d", annotations=GANG)),
                outside("e", pod("g-1", "500m", "e", annotations=GANG)),
            ],
            [("d,e", "r")],  # once
        ),
        # A pod of the gang is on a reserved node, which does not move.
        (
            [
                outside("d", pod("g-0", "500m", "d", annotations=GANG)),
                reserved("s", pod("g-1", "1500m", "s", annotations=GANG)),
            ],
            [],
        ),
    ],
    ids=["policy", "drifted", "empty", "ends", "too large", "rest of a gang", "gang", "gang partly reserved"],
)
def test_nodes_that_may_end_move_whole_gangs(
    nodes: list[ManagedNode], expected: list[tuple[str, str]]
) -> None:
    assert moves(reserved(), *nodes) == expected
