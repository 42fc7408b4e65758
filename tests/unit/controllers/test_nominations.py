"""Which nominated pods need no machine: kube-scheduler makes room for them."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.controllers.nominations import preempting

ENDING = {"deletionTimestamp": "2026-11-23T10:00:00Z"}


def pod(name: str, *, on: str = "", nominated: str = "", **metadata: str) -> Pod:
    body = {"metadata": {"name": name, "namespace": "default", **metadata}, "spec": {"nodeName": on}}
    return Pod.decode({**body, "status": {"nominatedNodeName": nominated}})


CLAIM = NodeClaim.decode(
    {
        "metadata": {"name": "c-0", "annotations": {names.PODS: "default/made-for"}},
        "spec": {},
        "status": {"providerID": "aws:///us-east-1a/i-1"},
    }
)
NODES = [
    Node.decode({"metadata": {"name": "own"}, "spec": {"providerID": "aws:///us-east-1a/i-1"}}),
    Node.decode({"metadata": {"name": "other"}}),
]


@pytest.mark.covers("KRP-35")
@pytest.mark.parametrize(
    ("waiting", "beside", "evicts"),
    [
        (pod("free"), [], False),
        (pod("made-for", nominated="own"), [], False),
        (pod("made-for", nominated="own"), [pod("ends", on="own", **ENDING)], True),
        (pod("made-for", nominated="own"), [pod("ends", on="other", **ENDING)], False),
        (pod("stranger", nominated="own"), [], True),
        (pod("stranger", nominated="other"), [], True),
        (pod("stranger", nominated="gone"), [], False),
        (pod("stranger", nominated="unread"), [], True),
    ],
)
def test_a_pod_waits_for_an_eviction_unless_its_node_is_its_own_or_gone(
    waiting: Pod, beside: list[Pod], evicts: bool
) -> None:
    keys = preempting([waiting, *beside], NODES, [CLAIM], unread=["unread"])
    assert keys == ({waiting.key} if evicts else frozenset())
