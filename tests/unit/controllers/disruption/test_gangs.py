"""Which claims of gangs may move into reservations: all homes of a gang together, or none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.capacity.returning import ReturnCandidate
from broker.controllers.disruption.gangs import running_gangs
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.controllers.nodereservation.occupancy import NodeOccupancy

POOL = NodePool.decode({"metadata": {"name": "any"}})


def claim(name: str, gang: str = "", *, pods: str = "") -> NodeClaim:
    annotations = {key: text for key, text in ((names.GANG, gang), (names.PODS, pods)) if text}
    return NodeClaim.decode({"metadata": {"name": name, "uid": name, "annotations": annotations}})


def pod(node: str, gang: str) -> Pod:
    meta = {"name": f"p-{node}", "namespace": "n", "annotations": {names.GANG: gang} if gang else {}}
    return Pod.decode({"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": "Running"}})


@pytest.mark.covers("KRP-36")
@pytest.mark.parametrize(
    ("claims", "pods", "movable", "moves"),
    [
        ([claim("a", "g"), claim("b", "g")], [], "ab", "ab"),
        ([claim("a", "g"), claim("b", "g")], [], "a", ""),
        ([claim("a"), claim("b")], [pod("a", "g"), pod("b", "g")], "ab", "ab"),
        ([claim("a"), claim("b")], [pod("a", "g"), pod("b", "g")], "a", ""),
        ([claim("a")], [pod("a", "g"), pod("elsewhere", "g")], "a", ""),
        ([claim("a", "n/g.0a1b2c3d"), claim("b", "n/g.0a1b2c3d")], [pod("a", "g"), pod("b", "g")], "b", ""),
        ([claim("a"), claim("b")], [pod("a", ""), pod("b", "g")], "ab", "ab"),
        ([claim("a", "g", pods="n/p-b"), claim("b")], [pod("a", ""), pod("b", "g")], "a", "a"),
        ([claim("a", "g", pods="n/p"), claim("b", "g", pods="n/q")], [], "a", ""),
        ([claim("a", "g"), claim("b", "g")], [pod("a", ""), pod("b", "")], "a", ""),
    ],
    ids=[
        "all claims",
        "a claim that cannot move",
        "pods on other claims",
        "a pod that cannot move",
        "a pod on a node of no pool",
        "after an earlier move",
        "one alone",
        "made for a pod of the gang, and another pod came",
        "made for pods that are still to come",
        "a gang of claims with pods without a mark",
    ],
)
def test_a_gang_moves_only_with_all_its_nodes(
    claims: list[NodeClaim], pods: list[Pod], movable: str, moves: str
) -> None:
    nodes = [
        ManagedNode(claim=claim_, pool=POOL, node=Node.decode({"metadata": {"name": claim_.name}}))
        for claim_ in claims
    ]
    now = datetime(2026, 11, 23, tzinfo=UTC)
    snapshot = DisruptionSnapshot(now=now, nodes=tuple(nodes), occupancy=NodeOccupancy(pods=pods))
    gangs = running_gangs(snapshot, claims)
    candidates = [
        ReturnCandidate(
            uid=uid, name=uid, pool="any", saving=1.0, slots=("cr",), gang=min(gangs.of.get(uid, {""}))
        )
        for uid in movable
    ]
    assert {candidate.uid for candidate in gangs.whole(candidates)} == set(moves)


def test_shared_nodes_of_a_gang_expire_alone() -> None:
    claims = [claim(name) for name in "abcd"]
    nodes = tuple(
        ManagedNode(claim=claim_, pool=POOL, node=Node.decode({"metadata": {"name": claim_.name}}))
        for claim_ in claims
    )
    pods = [pod("a", "g"), pod("b", "g"), pod("c", "g"), pod("c", ""), pod("d", "g"), pod("d", "h")]
    snapshot = DisruptionSnapshot(
        now=datetime(2026, 11, 23, tzinfo=UTC), nodes=nodes, occupancy=NodeOccupancy(pods=pods)
    )
    gangs = running_gangs(snapshot, claims)
    assert gangs.exclusive_hosts("a") == {"a", "b"}
    assert gangs.unit("a") == {"a", "b", "c", "d"}
