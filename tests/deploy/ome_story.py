"""One life of OME's kinds under the broker: queues, a dedicated cluster, the webhook's objects.

Nothing is asserted here but that it happens: the callers compare its requests with the rights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from broker.admission.certificates import UnusableCertificates, read
from broker.admission.registration import NAME, SECRET
from broker.admission.webhook import EVERY, Webhook, WebhookService
from broker.apis.admission import Secret, ValidatingWebhookConfiguration
from broker.apis.kueue import AdmissionCheck, Workload
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.kube.client import Client
from broker.kube.errors import NotFound
from broker.reservations.kueue_checks import CHECK
from tests.cluster.clocks import MovableClock
from tests.cluster.ome import bought
from tests.cluster.ome.dedicated import World
from tests.cluster.ome.reserved import GPU, spec
from tests.cluster.stack import Stack
from tests.deploy import helm
from tests.kueue.definitions import uninstall
from tests.kueue.played import Kueue


@contextmanager
def kueue(stack: Stack) -> Iterator[World]:
    """With Kueue's kinds and one reserved instance; they go again: the real server keeps definitions."""
    try:
        yield World(stack, 1, kueue=True, training=1)
    finally:
        stack.until(lambda: uninstall(stack.client), "Kueue is uninstalled")


@contextmanager
def reviewing(stack: Stack, client: Client) -> Iterator[MovableClock]:
    """The webhook beside the broker, registered with the API server, on a clock of its own."""
    clock = MovableClock()
    webhook = Webhook(
        client,
        WebhookService(namespace=helm.NAMESPACE, service=helm.RELEASE, host="127.0.0.1", port=0, url=True),
        default_cohort="",
        strict=False,
        clock=clock,
    )
    webhook.start()
    try:
        stack.until(lambda: registered(stack), "the webhook is registered")
        yield clock
    finally:
        webhook.close()


def registered(stack: Stack) -> bool:
    try:
        stack.client.get(ValidatingWebhookConfiguration.KIND, NAME)
    except NotFound:
        return False
    return True


def story(world: World, webhook: MovableClock) -> None:
    stack, played = world.stack, Kueue(world.stack.tap.inner, now=world.stack.clock.now)
    world.profile("whole", 8)
    world.reserve("training")
    whole = {"metadata": {"name": "whole"}, "spec": spec(quotas={GPU: "8"})}
    stack.client.create(ClusterCapacityReservation.KIND, whole)
    stack.until(lambda: played.queue("default--training"), "the queue of the reservation")
    stack.until(lambda: played.queue("whole"), "the queue of the cluster's")

    world.cluster("one", 0, "training", profile="whole", count=1)
    (workload,) = stack.until(lambda: stack.all(Workload), "the cluster's Workload")
    played.reserves(workload.name, "default--training", {"h100": {GPU: "8"}}, pods=8)
    stack.until(lambda: played.decides(workload.name) == "admitted", "the broker reports that it is there")
    stack.until(lambda: world.claims("one"), "the cluster's claim")

    # Another one requests more than exists, and is sent back for a while.
    pod = {"containers": [{"name": "c", "image": "i", "resources": {"requests": {GPU: "8"}}}]}
    workload_spec = {
        "queueName": "training",
        "podSets": [{"name": "main", "count": 2, "template": {"spec": pod}}],
    }
    stack.client.create(
        Workload.KIND, {"metadata": {"name": "late", "namespace": "default"}, "spec": workload_spec}
    )
    played.reserves("late", "default--training", {"h100": {GPU: "16"}}, pods=2)
    stack.until(lambda: played.decides("late") == "evicted", "the broker reports that there is none")
    stack.delete(Workload, "late", namespace="default")

    stack.delete(DedicatedAICluster, "one")
    stack.until_gone(DedicatedAICluster, "one")
    stack.delete(ClusterCapacityReservation, "whole")
    stack.until_gone(ClusterCapacityReservation, "whole")
    stack.delete(CapacityReservation, "training", namespace="default")
    stack.until(
        lambda: stack.find(CapacityReservation, "training", namespace="default") is None, "it is gone"
    )
    stack.until(
        lambda: stack.find(AdmissionCheck, CHECK) is None, "no queue uses the check, so the check goes"
    )

    bought.create_reservation(stack, 1, name="bought", annotations=bought.CANCEL)
    shared = {"metadata": {"name": "shared", "annotations": bought.CANCEL}, "spec": spec(quotas={GPU: "8"})}
    stack.client.create(ClusterCapacityReservation.KIND, shared)
    stack.until(
        lambda: len(bought.broker_odcrs(stack.aws.ec2)) == 2, "a reservation of each kind is bought for"
    )
    stack.delete(ClusterCapacityReservation, "shared")
    stack.until_gone(ClusterCapacityReservation, "shared")
    stack.delete(CapacityReservation, "bought", namespace="default")
    stack.until(
        lambda: stack.find(CapacityReservation, "bought", namespace="default") is None, "both are given back"
    )

    # By hand: a CRD that cannot be served is made anew, and API servers get an event.
    stack.client.patch(Secret.KIND, SECRET, {"data": {"tls.key": "bm8="}}, namespace=helm.NAMESPACE)
    webhook.advance(EVERY)
    stack.until(lambda: served(stack), "the certificates are made anew")


def served(stack: Stack) -> bool:
    try:
        read(stack.client.get(Secret.KIND, SECRET, namespace=helm.NAMESPACE)["data"])
    except UnusableCertificates:
        return False
    return True
