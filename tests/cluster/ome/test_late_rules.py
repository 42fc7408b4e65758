"""What a person takes back is taken back, also while the watch of its kind is late."""

from __future__ import annotations

import threading

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.kueue import ADMITTED, OF_WORKLOAD, ResourceFlavor
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.kube.client import Request
from tests.cluster import objects
from tests.cluster.account import A, B
from tests.cluster.ome.bought import CANCEL, broker_odcrs, create_reservation, flavored, sizes
from tests.cluster.ome.dedicated import World
from tests.cluster.ome.reserved import GPU, flavors_alone
from tests.cluster.ome.test_kueue_promises import Case
from tests.cluster.stack import PATIENCE, Stack
from tests.cluster.taps import deletions_of
from tests.cluster.test_disruption import later

CLUSTERS = DedicatedAICluster.KIND.path()


def test_cluster_that_gets_its_size_back_keeps_its_instances(stack: Stack) -> None:
    world = World(stack, 2, training=2)
    world.reserve("training")
    world.cluster("one", 2, "training")
    clusters = stack.tap.slow(CLUSTERS)
    stack.start()
    world.until("one", "ACTIVE")
    before = {claim.name for claim in world.claims("one")}
    stack.tap.lose(deletions_of("nodeclaims"))
    world.resize("one", 1)
    stack.until(lambda: stack.tap.lost, "the broker tries to end an instance", step=1.0)
    clusters.clear()
    world.resize("one", 2)
    later(stack, 5)  # an attempt that is under way read the size before
    stack.tap.heal()
    later(stack, 30)
    assert {claim.name for claim in world.claims("one")} == before
    clusters.set()
    world.until("one", "ACTIVE")
    later(stack, 10)
    assert {claim.name for claim in world.claims("one")} == before


def test_outdated_claim_of_a_cluster_that_is_launched_meanwhile_stays(stack: Stack) -> None:
    world = World(stack, 1, training=1)
    stack.node_class("other", id_=world.odcr)
    world.reserve("training")
    outdated, ends = threading.Event(), threading.Event()

    def changed() -> None:
        """EC2 has launched it, and the broker does not know yet."""
        if not outdated.is_set():
            stack.edit(DedicatedAICluster, "one", {"metadata": {"annotations": {names.NODE_CLASS: "other"}}})
            outdated.set()
            ends.wait(PATIENCE)

    def launched(_: Request) -> None:
        ends.set()
        stack.until_launched(*(claim.name for claim in world.claims("one")))

    stack.start()
    stack.after_launch(changed)
    stack.tap.on(deletions_of("nodeclaims"), launched)
    world.cluster("one", 1, "training")
    stack.until(ends.is_set, "the broker tries to replace it", step=1.0)
    world.until("one", "ACTIVE")
    later(stack, 10)
    assert [claim.name.rpartition("-")[2] for claim in world.claims("one")] == ["0"]
    assert stack.calls("TerminateInstances") == 0


def test_reservation_whose_flavor_gets_its_zone_back_keeps_its_instances(stack: Stack) -> None:
    flavors_alone(stack)
    flavored(stack)
    flavors = stack.tap.slow(ResourceFlavor.KIND.path())
    stack.start(buy_dollars=1000.0)
    create_reservation(stack, 2, annotations=CANCEL)
    stack.until(lambda: sizes(stack.aws.ec2) == {A: 2}, "two instances are reserved")
    stack.polls(3)
    (before,) = broker_odcrs(stack.aws.ec2)
    # Nothing is bought while the API server does not answer.
    stack.tap.lose(lambda r: r.path == CapacityReservation.KIND.path(namespace="default"))
    zone = {"spec": {"nodeLabels": {names.ZONE: B}}}
    stack.client.patch(ResourceFlavor.KIND, "h100", zone)
    stack.until(lambda: stack.tap.lost, "the broker tries to buy", step=1.0)
    flavors.clear()
    zone["spec"]["nodeLabels"][names.ZONE] = A
    stack.client.patch(ResourceFlavor.KIND, "h100", zone)
    stack.tap.heal()
    later(stack, 30)
    assert [odcr["CapacityReservationId"] for odcr in broker_odcrs(stack.aws.ec2)] == [
        before["CapacityReservationId"]
    ]
    flavors.set()
    later(stack, 30)
    assert sizes(stack.aws.ec2) == {A: 2} and stack.calls("CreateCapacityReservation") == 1


def test_workload_whose_pod_is_bound_meanwhile_stays_admitted(stack: Stack) -> None:
    pods = stack.tap.slow(Pod.KIND.path())
    world = Case(stack, "quota-13")
    world.until_state(world.submit("workload", {GPU: "8"}), "Ready")
    world.until_admitted("w")
    pods.clear()
    pod = objects.pod("runs", node="of-a-person")
    pod["metadata"] |= {"namespace": "team", "annotations": {OF_WORKLOAD: "w"}}
    stack.client.create(Pod.KIND, pod)
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=world.odcr)

    def turns() -> None:
        for _ in range(6):
            stack.advance(10.0)
            stack.polls()
            world.kueue.turns(namespace="team")

    turns()
    assert world.is_true("w", ADMITTED)
    pods.set()
    turns()
    assert world.is_true("w", ADMITTED)
