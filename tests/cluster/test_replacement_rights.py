"""A replacement keeps the reservation that the old claim draws from."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.reserved import reserve
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP
from tests.cluster.test_standing import cluster, nodes


@pytest.mark.covers("FLT-62")
def test_replacement_waits_until_the_reservations_are_read(stack: Stack) -> None:
    """An unread reservation looks like one that does not exist, and the claim would lose its name."""
    cluster(stack, slots=1)
    reserve(stack, "training")
    stack.start()
    nodes(stack, ON_DEMAND, "d-0")
    annotations = {names.DRAWS_FROM: "default/training", names.PODS: "default/a"}
    stack.edit(NodeClaim, "d-0", {"metadata": {"annotations": annotations}})
    stack.until(lambda: names.NODEPOOL_HASH in stack.get(NodeClaim, "d-0").annotations, "a hash", step=STEP)
    stack.stop()
    template = {"spec": {"taints": [{"key": "example.com/new", "effect": "PreferNoSchedule"}]}}
    stack.edit(NodePool, "web", {"spec": {"template": template}})
    stack.tap.lose(lambda request: request.path.endswith("/capacityreservations"))
    broker = stack.start()
    stack.until(lambda: broker.read.synced() and stack.tap.lost > 2, "the others are read", step=STEP)
    stack.tap.heal()

    def replacement() -> NodeClaim | None:
        return next((claim for claim in stack.all(NodeClaim) if names.REPLACES in claim.annotations), None)

    claim = stack.until(replacement, "a replacement", step=STEP)
    assert claim is not None and claim.annotations.get(names.DRAWS_FROM) == "default/training"


def test_no_replacement_is_started_for_a_free_slot_of_another_owner(stack: Stack) -> None:
    own = stack.aws.odcr(count=1)
    tags = [
        {
            "ResourceType": "capacity-reservation",
            "Tags": [{"Key": names.TAG_RESERVATION, "Value": "default/training"}],
        }
    ]
    foreign = stack.aws.odcr(count=1, TagSpecifications=tags)
    stack.node_class("web", group=stack.aws.group(own, foreign), zones=(A,))
    reserve(stack, "training", quotas={"cpu": "2"})
    stack.node_pool("web", node_class="web")
    kinds = {"key": names.CAPACITY_TYPE, "operator": "In", "values": [RESERVED]}
    block = {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]}
    spec = {"disruption": block, "template": {"spec": {"requirements": [kinds]}}}
    first = {"annotations": {names.REPLACE: "launch-first"}}
    stack.edit(NodePool, "web", {"spec": spec, "metadata": first})
    stack.start()
    nodes(stack, RESERVED, "old")
    stack.until(lambda: names.NODEPOOL_HASH in stack.get(NodeClaim, "old").annotations, "a hash", step=STEP)
    template = {"spec": {"requirements": [kinds], "expireAfter": "100h"}}
    stack.edit(NodePool, "web", {"spec": {"template": template}})
    stack.until_event("old", "DisruptionBlocked", text="NodePool web has no machine for its pods now")
    assert [claim.name for claim in stack.all(NodeClaim)] == ["old"]
    assert stack.aws.free(foreign) == 1
