"""The end of a claim that gets its instance during the pass: the instance is not forgotten."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.claim_caches import BY_INSTANCE, ClaimCaches, by_instance
from broker.controllers.lifecycle.termination import Termination
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.context import ControllerContext
from broker.kube.events import Recorder
from local.in_process import InProcessTransport
from tests.support.clock import FakeClock
from tests.support.definitions import defined


@pytest.mark.covers("KRP-23", "KRP-25")
def test_a_claim_that_gets_an_instance_meanwhile_keeps_its_finalizer() -> None:
    """The launch loop writes the providerID between the read of the claim and the removal of its
    finalizer."""
    client, clock = Client(InProcessTransport(defined())), FakeClock()
    spec = {
        "nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": "gpu"},
        "requirements": [],
    }
    metadata = {"name": "c-0", "finalizers": [names.TERMINATION_FINALIZER]}
    client.create(NodeClaim.KIND, {"metadata": metadata, "spec": spec})
    client.delete(NodeClaim.KIND, "c-0")
    stale = NodeClaim.decode(client.get(NodeClaim.KIND, "c-0"))
    launched = {"status": {"providerID": "aws:///us-east-1a/i-1"}}
    client.patch(NodeClaim.KIND, "c-0", launched, subresource="status")

    nodes: Cache[Node] = Cache(Node, indexes={BY_INSTANCE: by_instance})
    termination = Termination(
        ControllerContext(client=client, recorder=Recorder(client, "test", clock), clock=clock),
        ClaimCaches(claims=Cache(NodeClaim), nodes=nodes, pods=Cache(Pod), pools=Cache(NodePool), owns=bool),
        cast(Any, None),  # without an instance, EC2 is not called
        cast(Any, None),
        launching=lambda _uid: False,
        freed=lambda: None,
        undecided=lambda _claim, _now: False,
    )
    termination.reconcile(stale)

    kept = NodeClaim.decode(client.get(NodeClaim.KIND, "c-0"))
    assert kept.metadata.finalizers == (names.TERMINATION_FINALIZER,)
