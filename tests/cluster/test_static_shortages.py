"""Static pools that cannot have their nodes: no claim is made in vain, and the pool says what is missing."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from tests.cluster import objects
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_static_pools import FOLLOWS, own, quiet, settled, static_pool

TYPE = "m5.large"
MET = "ReplicasMet"


@pytest.mark.covers("FUL-30", "FUL-31")
@pytest.mark.parametrize("following", [True, False])
def test_minimum_of_values_that_no_slot_meets_makes_no_claim(stack: Stack, following: bool) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.node_class("web", id_=odcr)
    body = objects.node_pool("web", node_class="web")
    body["spec"]["template"]["spec"]["requirements"] = [
        {"key": names.CAPACITY_TYPE, "operator": "In", "values": [RESERVED]},
        {"key": names.INSTANCE_TYPE, "operator": "In", "values": [TYPE]},
        {"key": "karpenter.k8s.aws/instance-family", "operator": "Exists", "minValues": 2},
    ]
    if following:
        body["metadata"]["annotations"] = FOLLOWS
    else:
        body["spec"]["replicas"] = 2
    stack.client.create(NodePool.KIND, body)
    stack.start()
    stack.until(lambda: stack.condition(NodePool, "web", MET), "a number", step=1.0)
    uids = set[str]()
    for _ in range(12):
        quiet(stack, 10)
        uids |= {claim.uid for claim in own(stack)}
    shown = stack.condition(NodePool, "web", MET)
    assert not uids and shown is not None and (shown.status, shown.reason) == ("False", "NodesMissing")
    assert "0 of 2 nodes" in shown.message and "minValues" in shown.message


@pytest.mark.covers("FUL-30")
def test_claims_that_ec2_refuses_are_missing_nodes_until_they_have_an_instance(stack: Stack) -> None:
    stack.node_class("web", preference="none", zones=(A,))
    stack.control.pool(instance_type=TYPE, zone=A, size=1)
    static_pool(stack, 2, kinds=(ON_DEMAND,))
    stack.start()

    def missing() -> str:
        shown = stack.condition(NodePool, "web", MET)
        return shown.message if shown is not None and shown.reason == "NodesMissing" else ""

    stack.until(lambda: "1 of 2 nodes" in missing(), "a node is missing", step=2.0)
    assert "InsufficientInstanceCapacity" in missing()
    quiet(stack, 60)
    assert len(own(stack)) == 2 and len(stack.all(NodeClaim)) == 2 and "1 of 2 nodes" in missing()
    stack.control.pool(instance_type=TYPE, zone=A, size=5)
    settled(stack, 2)
    stack.until(lambda: not missing(), "all nodes are there", step=2.0)
