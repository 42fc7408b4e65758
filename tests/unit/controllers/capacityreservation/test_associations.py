"""A deleted user of any kind leaves the status of its reservation one pass later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis import crds, names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ClusterQueue, Namespace, ResourceFlavor, Workload
from broker.apis.meta import Kind
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.inventory import InventoryCache
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.snapshot import Ec2Reads
from broker.kube.client import Client
from broker.kube.errors import NotFound
from broker.kube.informer import Informer
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_objects import mark
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.wiring.reservations import reservation_status
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.kueue.definitions import definitions, install
from tests.kueue.played import Kueue
from tests.support.caches import claim_caches
from tests.support.clock import FakeClock
from tests.support.dependencies import dependencies

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
MINE = ReservationKey("team", "gpu")
TYPE = "p5.48xlarge"


class World:
    """The reservation loop as the broker wires it, but without threads: a pass is a call."""

    def __init__(self, *, kueue: bool) -> None:
        transport = InProcessTransport(Cluster())
        self.client = Client(transport, field_manager="test")
        for body in crds.load():
            self.client.create(crds.KIND, body)
        if kueue:
            install(self.client)
        else:
            (flavors,) = [
                crd for crd in definitions(("v1beta2",)) if crd["spec"]["names"]["kind"] == "ResourceFlavor"
            ]
            self.client.create(crds.KIND, flavors)
        self.kueue = Kueue(transport)
        clock = FakeClock()
        nothing: Any = SimpleNamespace(reservations=list, instance_types=dict)
        inventory = InventoryCache(nothing, clock=clock, groups=list)
        inventory.refresh()
        self.claims = Informer(self.client, NodeClaim, clock=clock)
        nodes, pods = Informer(self.client, Node, clock=clock), Informer(self.client, Pod, clock=clock)
        self.reads = ReservationReads(self.client, clock=clock, ec2=Ec2Reads(inventory=inventory.snapshot))
        self.throttle, _ = reservation_status(
            dependencies(
                Client(transport),
                clock,
                reads=self.reads,
                caches=claim_caches(self.claims.cache, nodes.cache, pods.cache),
                inventory=inventory,
            )
        )
        self.reads.snapshots.publish(OdcrSnapshot(ownership=Ownership()))
        self.client.create(Namespace.KIND, {"metadata": {"name": "team"}})
        self.client.create(
            ResourceFlavor.KIND,
            {"metadata": {"name": "h100"}, "spec": {"nodeLabels": {names.INSTANCE_TYPE: TYPE}}},
        )
        flavor = {"name": "h100", "resources": [{"name": GPU, "nominalQuota": "16"}]}
        spec = {"resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor]}]}
        self.client.create(
            CapacityReservation.KIND, {"metadata": {"name": "gpu", "namespace": "team"}, "spec": spec}
        )

    def uses(self) -> list[str]:
        """The users of the reservation, after one pass."""
        for informer in (self.claims, *self.reads.named.values()):
            try:
                informer.read()
            except NotFound:
                assert informer.missing
        self.throttle.run()
        raw = self.client.get(CapacityReservation.KIND, "gpu", namespace="team")
        return [usage["name"] for usage in raw["status"].get("associationUsages", ())]

    def begun(self) -> tuple[str, set[str], int]:
        """The state in the first write, the values of its conditions (none is True), and their number."""
        status_ = self.client.get(CapacityReservation.KIND, "gpu", namespace="team")["status"]
        statuses = [condition["status"] for condition in status_["conditions"]]
        return status_["capacityReservationLifecycleState"], {*statuses}, len(statuses)

    def status(self, kind: Kind, name: str, body: Json) -> None:
        self.client.patch(kind, name, {"status": body}, subresource="status")


def dedicated(world: World) -> tuple[Kind, str, str | None]:
    spec = {"capacityReservationId": "team/gpu", "resources": {"requests": {GPU: 8}}}
    world.client.create(DedicatedAICluster.KIND, {"metadata": {"name": "one"}, "spec": spec})
    flavors = [{"name": "h100", "resources": [{"name": GPU, "total": "8"}]}]
    world.status(
        DedicatedAICluster.KIND, "one", {"admission": {"reservation": "team/gpu", "flavors": flavors}}
    )
    return DedicatedAICluster.KIND, "one", None


def queued(world: World) -> tuple[Kind, str, str | None]:
    queue: Json = {"metadata": {"name": MINE.queue, **mark(MINE)}, "spec": {}}
    world.client.create(ClusterQueue.KIND, queue)
    pod = {"containers": [{"name": "c", "image": "i", "resources": {"requests": {GPU: "8"}}}]}
    sets = [{"name": "main", "count": 1, "template": {"spec": pod}}]
    body = {"metadata": {"name": "one", "namespace": "team"}, "spec": {"queueName": "gpu", "podSets": sets}}
    world.client.create(Workload.KIND, body)
    world.kueue.reserves("one", MINE.queue, {"h100": {GPU: "8"}}, namespace="team")
    return Workload.KIND, "one", "team"


def drawing(world: World) -> tuple[Kind, str, str | None]:
    metadata = {
        "name": "one",
        # Its priority was edited after the launch: other objects are not affected.
        "annotations": {names.DRAWS_FROM: "team/gpu", names.PRIORITY: "--5"},
        "labels": {names.INSTANCE_TYPE: TYPE},
    }
    reference = {"group": "capacity-broker.io", "kind": "EC2NodeClass", "name": "gpu"}
    world.client.create(
        NodeClaim.KIND, {"metadata": metadata, "spec": {"nodeClassRef": reference, "requirements": []}}
    )
    world.status(NodeClaim.KIND, "one", {"providerID": "aws:///a/i", "capacity": {GPU: "8"}})
    return NodeClaim.KIND, "one", None


@pytest.mark.covers("OME-056", "OME-061", "OME-067")
@pytest.mark.parametrize(
    ("user", "kueue", "expected"),
    [(dedicated, False, "one"), (queued, True, "team/one"), (drawing, False, "one")],
    ids=["cluster", "workload", "claim"],
)
def test_a_deleted_user_leaves_the_usages_one_pass_later(user: Any, kueue: bool, expected: str) -> None:
    world = World(kueue=kueue)
    assert world.uses() == []
    assert world.begun() == ("Creating", {"False", "Unknown"}, 5)
    kind, name, namespace = user(world)
    assert world.uses() == [expected]
    world.client.delete(kind, name, namespace=namespace)
    assert world.uses() == []
