"""Pods of a workload that Kueue admitted run in the slots that the check promised them."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from tests.cluster import objects
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.test_kueue import GPU, TEAM, TYPE, World, odcr_of_the_team
from tests.cluster.stack import Stack
from tests.cluster.test_mixed_pools import required
from tests.cluster.test_provisioning import bound, pool, start


def started(world: World, job: str) -> str:
    """Starts the pod of an admitted job, as Kueue does: with the updates of the check. Returns its name."""
    (update,) = world.until_state(job, "Ready").pod_set_updates
    resources = {"requests": {GPU: "8"}, "limits": {GPU: "8"}}
    body = objects.pod(job, containers=[{"name": "main", "image": "i", "resources": resources}])
    body["metadata"]["annotations"] = update.annotations
    body["spec"]["nodeSelector"] = update.node_selector
    world.client.create(Pod.KIND, body | {"metadata": body["metadata"] | {"namespace": "team"}})
    return job


@pytest.mark.covers("OME-033", "FLT-54")
def test_pods_of_an_admitted_workload_draw_from_the_reservation_of_their_queue(stack: Stack) -> None:
    world = World(stack)
    world.namespace("team")
    world.flavor()
    world.reserve()
    odcr = odcr_of_the_team(stack)
    stack.node_class(id_=odcr)
    pool(stack, template={"requirements": required([TYPE], [RESERVED, ON_DEMAND])})
    start(stack)
    world.until_queue()
    world.workload("train")
    world.until_admitted("train")
    name = started(world, "train")

    def runs() -> str:
        bound(stack, [])
        return stack.get(Pod, name, namespace="team").spec.node_name

    stack.until(runs, "the pod runs", step=0.2)
    (instance,) = stack.aws.instances()
    assert instance["CapacityReservationId"] == odcr
    (claim,) = [item for item in stack.all(NodeClaim) if names.PODS in item.annotations]
    assert claim.annotations[names.DRAWS_FROM] == str(TEAM)
