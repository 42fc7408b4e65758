"""Reservations in Kueue, end to end: the real broker on one side, a played Kueue on the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from broker.apis import names
from broker.apis.admission import ValidatingWebhookConfiguration
from broker.apis.core import ResourceQuota
from broker.apis.kueue import (
    ACTIVE,
    ADMITTED,
    AdmissionCheck,
    ClusterQueue,
    LocalQueue,
    Namespace,
    ResourceFlavor,
    Workload,
)
from broker.apis.meta import condition
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.app import Broker
from broker.controllers.capacityreservation.related_objects import queue_state, remaining_queues
from broker.controllers.kueue.render import CONTROLLER
from broker.kube.errors import NotFound
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_checks import CHECK, WAITS
from broker.reservations.ownership import ReservationProblem
from providers.names import MANAGED_BY
from tests.cluster.stack import Stack
from tests.kueue.definitions import install, ready, uninstall
from tests.kueue.played import Kueue

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
TYPE = "p5.48xlarge"
TEAM = ReservationKey("team", "gpu")
QUEUE = "team--gpu"
WEBHOOK = "vclusterqueue.kb.io"
QUEUES = (QUEUE, "team--second")


def spec(nominal: str = "16", flavor: str = "h100", **more: Any) -> Json:
    quota = {"name": GPU, "nominalQuota": nominal}
    flavors = [{"name": flavor, "resources": [quota]}]
    return {"resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}], **more}


def present(broker: Broker) -> bool:
    return broker.reads.kueue


def problems(broker: Broker) -> tuple[ReservationProblem, ...]:
    return broker.reads.snapshot().queue_problems.get(TEAM, ())


def queue_status(broker: Broker) -> tuple[bool, str]:
    """Whether the team's queue is active, with the reason."""
    state = queue_state(broker.reads, TEAM, broker.reads.snapshot())
    assert state is not None
    return state.active, state.reason


def odcr_of_the_team(stack: Stack, *, count: int = 1) -> str:
    """An EC2 reservation for the team, not made by the broker."""
    tags = [{"Key": names.TAG_RESERVATION, "Value": str(TEAM)}]
    marks = [{"ResourceType": "capacity-reservation", "Tags": tags}]
    return stack.aws.odcr(TYPE, count=count, TagSpecifications=marks)


def false_message(stack: Stack, type_: str, reason: str, name: str = "gpu") -> str:
    """The message of a condition that is False for this reason; empty otherwise."""
    raw = stack.client.get(CapacityReservation.KIND, name, namespace="team")
    refusal = condition(CapacityReservation.decode(raw).status.conditions, type_)
    return (
        refusal.message
        if refusal is not None and (refusal.status, refusal.reason) == ("False", reason)
        else ""
    )


def kept_out(stack: Stack, reason: str, name: str = "gpu") -> str:
    """The message that workloads cannot queue for a reservation, if this is the reason; empty otherwise."""
    return false_message(stack, "WorkloadsHealthy", reason, name)


class World:
    """A team's reservation of H100s, and Kueue."""

    def __init__(self, stack: Stack, served: Sequence[str] = ("v1beta2", "v1beta1")) -> None:
        self.stack = stack
        self.client = stack.client
        install(self.client, served=served)
        self.kueue = Kueue(stack.tap.inner, version=served[0], now=stack.clock.now)
        stack.until(lambda: ready(self.client, served[0]), "Kueue's kinds are served")

    def namespace(self, name: str, **annotations: str) -> None:
        self.client.create(Namespace.KIND, {"metadata": {"name": name, "annotations": annotations}})

    def flavor(self, name: str = "h100") -> None:
        labels = {names.INSTANCE_TYPE: TYPE, names.ZONE: "us-east-1a"}
        self.client.create(
            self.kueue.kind(ResourceFlavor), {"metadata": {"name": name}, "spec": {"nodeLabels": labels}}
        )

    def reserve(
        self, name: str = "gpu", namespace: str = "team", *, body: Json | None = None, **meta: Any
    ) -> None:
        self.client.create(
            CapacityReservation.KIND,
            {"metadata": {"name": name, "namespace": namespace, **meta}, "spec": body or spec()},
        )

    def workload(self, name: str, *, gpus: int = 8, pods: int = 1) -> None:
        """A job's workload; Kueue has reserved its quota."""
        self.job(name, gpus=gpus, pods=pods)
        usage = {"h100": {GPU: str(gpus * pods)}}
        self.kueue.reserves(name, QUEUE, usage, namespace="team", pods=pods)

    def job(self, name: str, *, gpus: int = 8, pods: int = 1) -> None:
        pod = {"containers": [{"name": "c", "image": "i", "resources": {"requests": {GPU: str(gpus)}}}]}
        self.client.create(
            self.kueue.kind(Workload),
            {
                "metadata": {"name": name, "namespace": "team"},
                "spec": {
                    "queueName": "gpu",
                    "podSets": [{"name": "main", "count": pods, "template": {"spec": pod}}],
                },
            },
        )

    def until_admitted(self, *names: str) -> None:
        """Kueue and the broker act until these workloads are admitted; time is not moved."""

        def admitted() -> bool:
            self.kueue.turns(namespace="team")
            return all(self.is_true(name, ADMITTED) for name in names)

        self.stack.until(admitted, f"{', '.join(names)} admitted")

    def is_true(self, name: str, type_: str) -> bool:
        status = condition(self.kueue.workload(name, "team").status.conditions, type_)
        return status is not None and status.status == "True"

    def parked(self, name: str) -> bool:
        """Whether the workload waits without quota until the broker lets Kueue queue it again, and reports
        the reason."""
        status = self.kueue.workload(name, "team").status
        waits = status.requeue_state is not None and status.requeue_state.requeue_at is not None
        waits_for_check = any(check.message.startswith(WAITS) for check in status.admission_checks)
        return waits and waits_for_check and status.admission is None

    def find(self, model: type[Any], name: str, namespace: str | None = None) -> Any:
        try:
            return model.decode(self.kueue.raw(model, name, namespace))
        except NotFound:
            return None

    def until_queue(self, name: str = QUEUE) -> ClusterQueue:
        def created() -> ClusterQueue | None:
            queue = self.kueue.queue(name)
            return queue if queue is not None and queue.spec.stop_policy == "None" else None

        queue = self.stack.until(created, f"ClusterQueue {name}")
        assert queue is not None
        return queue

    def until_state(self, name: str, *states: str) -> Any:
        """The broker's check state of the workload."""

        def reached() -> Any:
            checks = self.kueue.workload(name, "team").status.admission_checks
            return next((check for check in checks if check.name == CHECK and check.state in states), None)

        return self.stack.until(reached, f"the check of {name} is {' or '.join(states)}")


@pytest.mark.covers("OME-079", "OME-080", "OME-082")
@pytest.mark.parametrize("served", [("v1beta2",), ("v1beta1",), ("v1beta2", "v1beta1")], ids="+".join)
@pytest.mark.both_servers
def test_a_reservation_is_queues_in_whichever_version_is_served(
    stack: Stack, served: tuple[str, ...]
) -> None:
    world = World(stack, served)
    world.namespace("team")
    world.flavor()
    limited = spec(cohort="ai", allowBorrowing=True)
    limited["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = "8"
    world.reserve(body=limited)
    stack.start(kubelets=False)
    queue = world.until_queue()
    assert queue.spec.cohort_name == "ai"
    raw = world.kueue.raw(ClusterQueue, QUEUE)["spec"]
    assert raw["cohort" if served[0] == "v1beta1" else "cohortName"] == "ai"
    (quota,) = raw["resourceGroups"][0]["flavors"][0]["resources"]
    assert quota == {"name": GPU, "nominalQuota": "16", "borrowingLimit": "8"}
    assert raw["namespaceSelector"]["matchExpressions"][0]["values"] == ["team"]
    local = stack.until(lambda: world.find(LocalQueue, "gpu", "team"), "LocalQueue gpu")
    assert local.spec.cluster_queue == QUEUE
    check = world.find(AdmissionCheck, CHECK)
    assert check.spec.controller_name == CONTROLLER
    active = condition(check.status.conditions, ACTIVE)
    assert active is not None and active.status == "True"
    # Kueue reports no error, and its own writes cause no repeated writes.
    world.kueue.takes(QUEUE)
    assert world.kueue.judges(QUEUE) == "Ready"
    # A manual edit: more quota than was reserved, and out of the cohort.
    hand = world.kueue.raw(ClusterQueue, QUEUE)["spec"]["resourceGroups"]
    hand[0]["flavors"][0]["resources"][0]["nominalQuota"] = "400"
    world.client.patch(world.kueue.kind(ClusterQueue), QUEUE, {"spec": {"resourceGroups": hand}})

    def reverted() -> bool:
        groups = world.kueue.raw(ClusterQueue, QUEUE)["spec"]["resourceGroups"]
        return bool(groups == raw["resourceGroups"])

    stack.until(reverted, "the hand edit is reverted")


@pytest.mark.covers("OME-082", "OME-097")
def test_foreign_queue_is_left_alone_and_nothing_is_written_at_rest(stack: Stack) -> None:
    world = World(stack)
    world.namespace("team")
    world.flavor()
    foreign: Json = {"metadata": {"name": QUEUE}, "spec": {"namespaceSelector": {}}}
    world.client.create(ClusterQueue.KIND, foreign)
    queued = {"metadata": {"name": "third", "namespace": "team"}, "spec": {"clusterQueue": "theirs"}}
    world.client.create(LocalQueue.KIND, queued)
    world.reserve()
    world.reserve("other")
    world.reserve("third")
    broker = stack.start(kubelets=False)
    event = stack.until_event("gpu", "ObjectConflict", kind="CapacityReservation")
    assert QUEUE in event.message
    world.until_queue("team--other")

    def finished() -> bool:
        queue = world.find(LocalQueue, "other", "team")
        return queue is not None and queue.spec.stop_policy == "None"

    stack.until(finished, "LocalQueue other, the last object")
    stack.until(
        lambda: kept_out(stack, "ObjectConflict", "third"), "the reservation names the owner of the queue"
    )
    assert world.find(LocalQueue, "gpu", "team") is None
    assert world.kueue.raw(ClusterQueue, QUEUE)["spec"] == foreign["spec"] | {"stopPolicy": "None"}
    assert problems(broker)[0].reason == "ObjectConflict"
    assert queue_status(broker) == (False, "ObjectConflict")

    def writes() -> list[tuple[str, str]]:
        return [write for write in stack.tap.writes() if "kueue" in write[1]]

    before = len(writes())
    for _ in range(3):
        world.kueue.judges("team--other")  # Kueue's status changes, which is no reason to write
        stack.advance(301)
        stack.polls()
    assert len(writes()) == before
    # The name is free: the reservation gets its queue.
    world.client.delete(ClusterQueue.KIND, QUEUE)
    world.until_queue()
    stack.until(lambda: not problems(broker), "no problem is left")


@pytest.mark.covers("OME-083", "OME-099")
def test_kueue_may_come_later_and_a_flavor_too(stack: Stack) -> None:
    stack.client.create(Namespace.KIND, {"metadata": {"name": "team"}})
    stack.client.create(
        CapacityReservation.KIND, {"metadata": {"name": "gpu", "namespace": "team"}, "spec": spec()}
    )
    odcr_of_the_team(stack, count=2)
    broker = stack.start(kubelets=False)
    stack.until(broker.reads.synced, "missing kinds are known to be missing")
    assert not present(broker)
    world = World(stack)
    stack.until(lambda: world.find(ClusterQueue, QUEUE), "ClusterQueue after Kueue came", step=10)
    world.until_queue()
    assert present(broker)
    assert world.kueue.judges(QUEUE) == "FlavorNotFound"
    stack.until(lambda: queue_status(broker)[1] == "FlavorNotFound", "the broker reads it")

    def reported() -> bool:
        status = stack.get(CapacityReservation, "gpu", namespace="team").status
        ready = condition(status.conditions, "Ready")
        if ready is not None and ready.reason == "FlavorNotFound":
            assert status.capacity_reservation_lifecycle_state != "Active"
        return ready is not None and (ready.status, ready.reason) == ("False", "FlavorNotFound")

    stack.until(reported, "the reservation reports that it is not ready, and the reason")
    world.flavor()
    world.kueue.judges(QUEUE)
    stack.until(lambda: queue_status(broker)[0], "the queue is active")

    def active() -> bool:
        status = stack.get(CapacityReservation, "gpu", namespace="team").status
        return status.capacity_reservation_lifecycle_state == "Active"

    stack.until(active, "the reservation is active")

    def named(flavor: str) -> bool:
        queue = world.kueue.queue(QUEUE)
        return queue is not None and queue.spec.resource_groups[0].flavors[0].name == flavor

    def uses(flavor: str) -> None:
        groups = {"resourceGroups": spec(flavor=flavor)["resourceGroups"]}
        world.client.patch(CapacityReservation.KIND, "gpu", {"spec": groups}, namespace="team")
        stack.until(lambda: named(flavor), f"the queue names {flavor}")

    # A deleted flavor remains while a queue names it, so its deletion has no effect yet.
    kind = world.kueue.kind(ResourceFlavor)
    world.kueue.keeps_flavors()
    world.client.delete(kind, "h100")
    world.kueue.keeps_flavors()
    assert world.find(ResourceFlavor, "h100").deleting
    stack.until(
        lambda: any(flavor.deleting for flavor in broker.reads.flavors.cache.list()),
        "the broker reads it",
    )
    stack.polls()
    assert world.kueue.judges(QUEUE) == "Ready"
    assert queue_status(broker)[0] and active()
    # No queue names the flavor any more: it goes, and only a reservation that names it again misses it.
    world.flavor("h200")
    uses("h200")
    world.kueue.keeps_flavors()
    assert world.find(ResourceFlavor, "h100") is None
    assert world.kueue.judges(QUEUE) == "Ready"
    stack.until(active, "the reservation is active in its new flavor")
    uses("h100")
    assert world.kueue.judges(QUEUE) == "FlavorNotFound"
    stack.until(reported, "the reservation reports that its flavor is gone")


JOBS = 40
KUEUES_OWN = 0.07  # seconds of CPU that Kueue itself spends on a job


@pytest.mark.covers("SAF-76")
def test_an_admitted_workload_takes_one_write_and_no_more_cpu_than_in_kueue(stack: Stack) -> None:
    world = World(stack)
    world.namespace("team")
    world.flavor()
    world.reserve(body=spec(str(JOBS)))
    odcr_of_the_team(stack, count=JOBS // 8)
    broker = stack.start(kubelets=False)
    world.until_queue()
    stack.until(lambda: broker.reads.snapshot().odcrs.owned.of(TEAM), "the broker knows of the instances")
    world.kueue.judges(QUEUE)
    stack.until(lambda: state(stack) == "Active", "the reservation is active")

    def writes(path: str) -> int:
        return sum(path in write[1] for write in stack.tap.writes())

    workload_writes, status_writes = writes("/workloads/"), writes("/capacityreservations/")
    began, started = time.process_time(), time.monotonic()
    for number in range(JOBS):  # one after another, so that no batch hides the cost
        world.workload(f"j-{number}", gpus=1)
        world.until_state(f"j-{number}", "Ready")
        assert world.kueue.decides(f"j-{number}", namespace="team") == "admitted"
        counts = {"pendingWorkloads": 0, "reservingWorkloads": number + 1, "admittedWorkloads": number + 1}
        world.kueue.client.patch(ClusterQueue.KIND, QUEUE, {"status": counts}, subresource="status")
    stack.until(lambda: used(stack) == JOBS, "the reservation counts them all")
    # The CPU is that of the whole process: the API server, the played Kueue and the broker.
    assert (time.process_time() - began) / JOBS < KUEUES_OWN
    assert writes("/workloads/") - workload_writes == JOBS
    # The reservation's status is written at intervals, not for each workload.
    assert writes("/capacityreservations/") - status_writes <= 2 * (time.monotonic() - started) + 2
    assert problems(broker) == ()


def state(stack: Stack) -> str:
    raw = stack.client.get(CapacityReservation.KIND, "gpu", namespace="team")
    return str(raw.get("status", {}).get("capacityReservationLifecycleState", ""))


def used(stack: Stack) -> int:
    raw = stack.client.get(CapacityReservation.KIND, "gpu", namespace="team")
    return int(raw["status"]["summary"]["gpuAllocated"])


@pytest.mark.covers("SAF-75")
@pytest.mark.both_servers
def test_reservation_names_the_objects_that_kueue_refuses_and_the_reason(stack: Stack) -> None:
    world = World(stack)
    world.namespace("team")
    rule = {"apiGroups": ["kueue.x-k8s.io"], "apiVersions": ["*"], "resources": ["clusterqueues"]}
    world.client.create(
        ValidatingWebhookConfiguration.KIND,
        {
            "metadata": {"name": WEBHOOK},
            "webhooks": [
                {
                    "name": WEBHOOK,
                    "clientConfig": {"url": "https://127.0.0.1:1/validate"},
                    "rules": [{**rule, "operations": ["CREATE", "UPDATE"], "scope": "*"}],
                    "failurePolicy": "Fail",
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                }
            ],
        },
    )
    try:
        world.reserve()
        stack.start(kubelets=False)
        stack.until(lambda: WEBHOOK in kept_out(stack, "KueueUnavailable"), "the webhook is named")
    finally:
        world.client.delete(ValidatingWebhookConfiguration.KIND, WEBHOOK)
    stack.until(lambda: world.kueue.queue(QUEUE), "the queue is made once it answers", step=5)
    world.until_queue()
    # A missing flavor.
    assert world.kueue.judges(QUEUE) == "FlavorNotFound"
    stack.until(
        lambda: "ResourceFlavor h100" in false_message(stack, "Ready", "FlavorNotFound"),
        "the flavor is named",
    )
    world.flavor()
    world.kueue.judges(QUEUE)
    stack.until(lambda: not false_message(stack, "Ready", "FlavorNotFound"), "it is there")
    # A queue that the broker made, and that lost its label, is still the broker's.
    meta: Json = {"metadata": {"labels": {MANAGED_BY: None}}}
    world.client.patch(ClusterQueue.KIND, QUEUE, meta)
    message = stack.until(lambda: kept_out(stack, "QueueMarkRemoved"), "the lost label is named")
    assert f"kubectl label clusterqueues {QUEUE} {MANAGED_BY}=capacity-broker" in message
    meta["metadata"]["labels"][MANAGED_BY] = "capacity-broker"
    world.client.patch(ClusterQueue.KIND, QUEUE, meta)
    stack.until(lambda: not kept_out(stack, "QueueMarkRemoved"), "it is back")
    # A check that is being deleted is used all the same.
    world.client.patch(AdmissionCheck.KIND, CHECK, {"metadata": {"finalizers": ["kueue.x-k8s.io/in-use"]}})
    world.client.delete(AdmissionCheck.KIND, CHECK)
    stack.until_event("gpu", "AdmissionCheckTerminating", kind="CapacityReservation")
    assert not kept_out(stack, "ObjectConflict") and world.kueue.judges(QUEUE) == "Ready"
    # Kueue is uninstalled and installed again.
    stack.until(lambda: uninstall(stack.client), "Kueue is uninstalled")
    message = stack.until(lambda: kept_out(stack, "KueueRemoved"), "its removal is named", step=5)
    assert QUEUE in message
    install(stack.client)
    stack.until(lambda: ready(stack.client, "v1beta2"), "Kueue is installed again")
    stack.until(lambda: world.kueue.queue(QUEUE), "the queue is made anew", step=5)
    stack.until(lambda: not kept_out(stack, "KueueRemoved"), "nothing keeps workloads out")


@pytest.mark.covers("SAF-71")
@pytest.mark.both_servers
def test_a_reservation_that_a_resource_quota_refuses_holds_its_queue(stack: Stack) -> None:
    world = World(stack)
    world.namespace("team")
    world.flavor()
    world.reserve()
    world.reserve("second", body=spec("8"))
    odcr_of_the_team(stack, count=2)
    stack.start(kubelets=False)
    world.until_queue()
    world.until_queue("team--second")
    world.workload("runs")
    world.until_admitted("runs")

    def stops() -> dict[str, str]:
        return {name: str(world.kueue.raw(ClusterQueue, name)["spec"]["stopPolicy"]) for name in QUEUES}

    def allows(gpus: int) -> None:
        world.client.patch(ResourceQuota.KIND, "few", {"spec": {"hard": {GPU: str(gpus)}}}, namespace="team")

    quota = {"metadata": {"name": "few", "namespace": "team"}, "spec": {"hard": {GPU: "16"}}}
    world.client.create(ResourceQuota.KIND, quota)
    stack.until(lambda: stops() == {QUEUE: "None", "team--second": "Hold"}, "the younger one is refused")
    allows(8)
    stack.until(lambda: stops() == {QUEUE: "Hold", "team--second": "None"}, "each is judged by the rest")
    why = stack.until(
        lambda: false_message(stack, "Ready", "QuotaExceeded"), "the reservation reports the reason"
    )
    assert "ResourceQuota few" in why
    assert world.is_true("runs", ADMITTED) and not world.is_true("runs", "Evicted")
    world.job("waits")
    world.kueue.turns(namespace="team")
    assert world.kueue.workload("waits", "team").status.admission is None
    allows(24)
    stack.until(lambda: set(stops().values()) == {"None"}, "both admit again")
    world.until_admitted("waits")
    # A deleted reservation leaves its quota to another.
    allows(16)
    stack.until(lambda: stops()["team--second"] == "Hold", "the younger one is refused again")
    world.kueue.finishes("runs", namespace="team")
    world.kueue.finishes("waits", namespace="team")
    stack.delete(CapacityReservation, "gpu", namespace="team")
    world.until_queue("team--second")


@pytest.mark.covers("OME-021")
@pytest.mark.both_servers
def test_queues_of_a_deleted_reservation_go_once_no_workload_holds_their_quota(stack: Stack) -> None:
    world = World(stack)
    world.namespace("team")
    world.flavor()
    world.reserve()
    broker = stack.start(kubelets=False)
    world.until_queue()
    world.kueue.takes(QUEUE)
    stack.delete(CapacityReservation, "gpu", namespace="team")
    stack.until(lambda: world.find(LocalQueue, "gpu", "team") is None, "the LocalQueue goes")

    def leaves() -> bool:
        queue = world.kueue.queue(QUEUE)
        return queue is not None and queue.deleting and queue.spec.stop_policy == "Hold"

    stack.until(leaves, "the ClusterQueue admits no new workload, and waits")
    assert remaining_queues(broker.reads, TEAM)
    world.kueue.releases(QUEUE)
    stack.until(lambda: not remaining_queues(broker.reads, TEAM), "nothing is left of it")
    assert world.kueue.queue(QUEUE) is None
    stack.until(
        lambda: world.find(AdmissionCheck, CHECK) is None, "no queue uses the check, so the check goes"
    )


@pytest.mark.covers("OME-043", "OME-079")
@pytest.mark.both_servers
def test_cluster_wide_reservation_is_for_the_namespaces_that_name_it(stack: Stack) -> None:
    world = World(stack)
    world.namespace("red", **{names.DRAWS_FROM: "shared"})
    world.namespace("green")
    stack.client.create(ClusterCapacityReservation.KIND, {"metadata": {"name": "shared"}, "spec": spec()})
    stack.start(kubelets=False)
    queue = world.until_queue("shared")
    owner = stack.get(ClusterCapacityReservation, "shared")
    assert [owner_reference.uid for owner_reference in queue.metadata.owner_references] == [owner.uid]
    stack.until(lambda: world.find(LocalQueue, "shared", "red"), "a LocalQueue in red")
    assert world.find(LocalQueue, "shared", "green") is None
    stack.edit(Namespace, "green", {"metadata": {"annotations": {names.DRAWS_FROM: "shared"}}})
    stack.edit(Namespace, "red", {"metadata": {"annotations": {names.DRAWS_FROM: None}}})
    stack.until(lambda: world.find(LocalQueue, "shared", "green"), "a LocalQueue in green")
    stack.until(lambda: world.find(LocalQueue, "shared", "red") is None, "none in red")

    def selects() -> bool:
        chosen = world.kueue.raw(ClusterQueue, "shared")["spec"]["namespaceSelector"]
        return bool(chosen["matchExpressions"][0]["values"] == ["green"])

    stack.until(selects, "the queue admits only namespace green")


@pytest.mark.covers("OME-033", "OME-056", "OME-057")
@pytest.mark.both_servers
def test_a_workload_is_admitted_once_its_reserved_instances_are_there(stack: Stack) -> None:
    world = World(stack)
    world.namespace("team")
    world.flavor()
    world.reserve()
    odcr = odcr_of_the_team(stack)
    broker = stack.start(kubelets=False)
    world.until_queue()
    world.kueue.takes(QUEUE)

    def counted() -> int:
        """The number of the team's instances that the broker knows."""
        return sum(
            odcr.total for odcrs in broker.reads.snapshot().odcrs.owned.of(TEAM).values() for odcr in odcrs
        )

    stack.until(lambda: counted() == 1, "the broker knows of the instance")
    world.workload("first")
    check = world.until_state("first", "Ready", "Retry")
    assert check.state == "Ready", check.message
    (update,) = check.pod_set_updates
    assert update.name == "main"
    assert update.node_selector == {names.CAPACITY_TYPE: "reserved", names.RESERVATION_ID: odcr}
    assert world.kueue.decides("first", namespace="team") == "admitted"
    # The one instance is taken: the next workload is rejected, and returns its quota.
    world.workload("second")
    check = world.until_state("second", "Ready", "Retry")
    assert (check.state, check.requeue_after_seconds) == ("Retry", None)
    assert "h100" in check.message
    assert world.kueue.decides("second", namespace="team") == "evicted"
    world.kueue.stops("second", namespace="team")
    # Quota is reserved, admitted or not; Kueue took back the second workload's.
    stack.until(
        lambda: len(broker.reads.snapshot().workload_holders.get(TEAM, ())) == 1,
        "one workload holds quota",
    )
    (holder,) = broker.reads.snapshot().workload_holders.get(TEAM, ())
    assert (holder.kind, holder.name, holder.usage) == ("Workload", "team/first", {("h100", GPU): 8})
    # One more instance is added.
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=2)
    stack.until(lambda: counted() == 2, "the broker knows of the second instance")
    world.until_admitted("second")


@pytest.mark.covers("SAF-70")
@pytest.mark.parametrize("served", [("v1beta2",), ("v1beta1",)], ids="+".join)
def test_a_workload_that_waits_for_instances_blocks_no_other(stack: Stack, served: tuple[str, ...]) -> None:
    world = World(stack, served)
    world.namespace("team")
    world.flavor()
    world.reserve(body=spec("24"))
    odcr_of_the_team(stack, count=2)
    broker = stack.start(kubelets=False)
    world.until_queue()
    stack.until(lambda: broker.reads.snapshot().odcrs.owned.of(TEAM), "the broker knows of the instances")
    world.job("a-first")
    world.until_admitted("a-first")
    # Quota for two more instances, of which only one exists: the big job is rejected, and the small one gets
    # it.
    world.job("b-big", pods=2)

    def waits() -> bool:
        world.kueue.turns(namespace="team")
        return world.parked("b-big")

    stack.until(waits, "the big job waits")
    assert world.kueue.counts(QUEUE) == {("h100", GPU): 8}
    assert "flavor h100" in world.kueue.workload("b-big", "team").status.admission_checks[0].message
    world.job("c-small")
    world.until_admitted("c-small")
    written = len(stack.tap.writes())
    world.kueue.turns(namespace="team")
    assert world.parked("b-big")
    # The big job has no more instances: it is left alone until both instances are free.
    world.kueue.finishes("a-first", namespace="team")
    stack.polls(2)
    assert world.parked("b-big")
    assert not [write for write in stack.tap.writes()[written:] if "b-big" in write[1]]
    began = stack.clock.now()
    world.kueue.finishes("c-small", namespace="team")
    world.until_admitted("b-big")
    assert (stack.clock.now() - began).total_seconds() < 30  # although its back-off was longer
    assert world.kueue.counts(QUEUE) == {("h100", GPU): 16}
