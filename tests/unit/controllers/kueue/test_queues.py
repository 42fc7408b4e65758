"""A reservation's objects in Kueue under edits, crashes and foreign objects: one reconcile after another."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from broker.apis import crds, names
from broker.apis.core import Event
from broker.apis.kueue import (
    ACTIVE,
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    Namespace,
    PriorityClass,
    ResourceFlavor,
    WorkloadPriorityClass,
)
from broker.apis.meta import condition
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.capacityreservation.related_objects import (
    queue_state,
    remaining_queues,
)
from broker.controllers.kueue.check import AdmissionCheckReconciler, names_check
from broker.controllers.kueue.queues import QueueController
from broker.controllers.kueue.render import CONTROLLER
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.client import Client
from broker.kube.errors import ApiError, Forbidden, Invalid, NotFound, Unavailable, WebhookFailed
from broker.kube.events import Recorder
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_checks import CHECK
from broker.reservations.kueue_objects import mark, owner_of, queue_name
from broker.reservations.ownership import ReservationProblem
from local.in_process import InProcessTransport
from local.kube import Cluster
from providers.names import MANAGED_BY, MANAGER
from tests.cluster.taps import Tap
from tests.kueue.definitions import install
from tests.kueue.played import Kueue
from tests.support.clock import FakeClock
from tests.support.dependencies import dependencies

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
KEY, QUEUE, TEAM = "team/gpu", "team--gpu", ReservationKey("team", "gpu")
OME = [body for body in crds.load() if body["spec"]["group"] == "ome.io"]
QUOTA = {"name": GPU, "nominalQuota": "16"}
SPEC: Json = {
    "resourceGroups": [{"coveredResources": [GPU], "flavors": [{"name": "h100", "resources": [QUOTA]}]}]
}

# Invalid: a flavor in two groups.
TWICE = [SPEC["resourceGroups"][0], SPEC["resourceGroups"][0] | {"coveredResources": [GPU]}]


class World:
    """One reservation on the embedded API server; `reconcile` reads and reconciles."""

    def __init__(self) -> None:
        transport = InProcessTransport(Cluster())
        self.client = Client(transport, field_manager="test")
        self.tap = Tap(transport)
        for body in OME:
            self.client.create(crds.KIND, body)
        install(self.client)
        self.kueue = Kueue(transport)
        self.client.create(Namespace.KIND, {"metadata": {"name": "team"}})
        self.start()

    def start(self) -> None:
        """Starts a broker that has only the API server's state."""
        client = Client(self.tap)
        clock = FakeClock()
        self.reads = ReservationReads(client, clock=clock)
        self.recorder = Recorder(client, "test", clock)
        shared = dependencies(client, clock, reads=self.reads, recorder=self.recorder)
        self.check = AdmissionCheckReconciler(shared)
        self.controller = QueueController(shared, self.check)

    def reported(self, reserved: ReservationKey = TEAM) -> tuple[ReservationProblem, ...]:
        return self.reads.snapshot().queue_problems.get(reserved, ())

    def reserve(self, **more: Any) -> None:
        meta = {"name": "gpu", "namespace": "team", "finalizers": ["test/held"]}
        self.client.create(CapacityReservation.KIND, {"metadata": meta, "spec": SPEC | more})

    def edit(self, body: Json) -> None:
        self.client.patch(CapacityReservation.KIND, "gpu", body, namespace="team")

    def flavor(self) -> None:
        self.client.create(ResourceFlavor.KIND, {"metadata": {"name": "h100"}, "spec": {}})

    def read_all(self) -> None:
        for informer in self.reads.named.values():
            informer.read()

    def reconcile(self) -> None:
        self.read_all()
        self.check.keep(used=True)
        self.controller.reconcile(KEY)

    def writes(self) -> int:
        return len(self.tap.writes())

    def at_rest(self) -> bool:
        """Whether another pass writes nothing."""
        before = self.writes()
        self.reconcile()
        return self.writes() == before

    def queue(self) -> ClusterQueue:
        queue = self.kueue.queue(QUEUE)
        assert queue is not None
        return queue

    def spec(self) -> Json:
        spec_: Json = self.kueue.raw(ClusterQueue, QUEUE)["spec"]
        return spec_

    def local(self) -> LocalQueue:
        return LocalQueue.decode(self.kueue.raw(LocalQueue, "gpu", "team"))

    def events(self) -> dict[str, str]:
        """The last message of each reason."""
        self.recorder.flush()
        return {event["reason"]: event["message"] for event in self.client.list(Event.KIND)[0]}

    def problems(self) -> list[str]:
        return [problem.reason for problem in self.reported()]


@pytest.fixture
def world() -> World:
    return World()


def test_a_queue_with_an_old_name_is_replaced(
    world: World,
) -> None:
    world.reserve()
    world.reconcile()
    meta = {"name": "named-before", **mark(TEAM)}
    world.client.create(ClusterQueue.KIND, {"metadata": meta, "spec": world.spec()})
    world.client.create(ClusterQueue.KIND, {"metadata": {"name": "somebodys"}, "spec": world.spec()})
    world.reconcile()
    remaining, _ = world.client.list(ClusterQueue.KIND)
    assert sorted(queue["metadata"]["name"] for queue in remaining) == ["somebodys", QUEUE]
    assert world.at_rest()


@pytest.mark.covers("OME-097")
def test_a_new_broker_writes_only_differences(world: World) -> None:
    world.reserve(cohort="ai", allowBorrowing=True)
    world.reconcile()
    assert world.spec()["cohortName"] == "ai"
    assert world.at_rest()
    world.kueue.takes(QUEUE)
    world.kueue.judges(QUEUE)
    world.start()
    assert world.at_rest()


@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5, 6])
def test_a_crash_after_any_write_is_recovered(world: World, lost: int) -> None:
    world.reserve(cohort="ai")
    left = iter(range(lost - 1))

    def chosen(request: Any) -> bool:
        return request.method not in ("GET", "HEAD") and next(left, None) is None

    world.tap.lose(chosen, times=1)
    try:
        world.reconcile()
    except Unavailable:
        world.start()
    world.tap.heal()
    # Until it is complete, the queue admits only workloads that the reservation allows.
    queue = world.kueue.queue(QUEUE)
    assert queue is None or queue.spec.stop_policy == "Hold" or queue.spec.namespace_selector is not None
    world.reconcile()
    assert world.queue().spec.stop_policy == "None"
    assert world.local().spec.stop_policy == "None"
    assert world.at_rest()


@pytest.mark.covers("OME-082")
def test_manual_edits_are_reverted_and_foreign_checks_stay(world: World) -> None:
    world.reserve()
    world.reconcile()
    edits: Json = {"cohortName": "theirs", "stopPolicy": "HoldAndDrain"}
    edits["admissionChecksStrategy"] = {"admissionChecks": [{"name": CHECK}, {"name": "theirs"}]}
    world.client.patch(ClusterQueue.KIND, QUEUE, {"spec": edits})
    world.reconcile()
    spec = world.spec()
    assert "cohortName" not in spec and spec["stopPolicy"] == "None"
    assert [check["name"] for check in spec["admissionChecksStrategy"]["admissionChecks"]] == [
        CHECK,
        "theirs",
    ]
    assert world.at_rest()
    assert world.events() == {
        "EditReverted": f"ClusterQueue {QUEUE} was edited by hand and is again as the reservation has it: "
        "spec.stopPolicy was HoldAndDrain and is None; to stop admitting, run kubectl annotate -n team "
        "capacityreservations gpu capacity-broker.io/stop-policy=HoldAndDrain"
    }


@pytest.mark.parametrize(
    ("chosen", "stops", "problems"),
    [
        ("None", "None", []),
        ("Hold", "Hold", ["QueueStopped"]),
        ("HoldAndDrain", "HoldAndDrain", ["QueueStopped"]),
        ("HoldAndDrain\n", "HoldAndDrain", ["QueueStopped"]),
        ("hold", "Hold", ["InvalidAnnotation", "QueueStopped"]),
    ],
)
def test_a_queue_is_held_by_an_annotation_of_its_reservation(
    world: World, chosen: str, stops: str, problems: list[str]
) -> None:
    world.flavor()
    world.reserve()
    world.reconcile()
    world.edit({"metadata": {"annotations": {names.STOP_POLICY: chosen}}})
    world.reconcile()
    assert (world.spec()["stopPolicy"], world.problems()) == (stops, problems)
    assert world.at_rest()
    # Kueue reports that it is stopped, and the reservation itself has no problem.
    assert world.kueue.judges(QUEUE) == ("Stopped" if problems else "Ready")
    world.read_all()
    assert (state := queue_state(world.reads, TEAM, world.reads.snapshot())) is not None and state.active
    assert set(world.events()) == set(problems), "a change of the annotation is no hand edit"
    world.edit({"metadata": {"annotations": {names.STOP_POLICY: None}}})
    world.reconcile()
    assert (world.spec()["stopPolicy"], world.problems()) == ("None", [])


@pytest.mark.covers("OME-034", "OME-037")
def test_leaving_a_cohort_removes_its_limits(world: World) -> None:
    world.reserve(cohort="ai")
    world.reconcile()
    (quota,) = world.spec()["resourceGroups"][0]["flavors"][0]["resources"]
    assert quota["borrowingLimit"] == "0"
    world.edit({"spec": {"cohort": None}})
    world.reconcile()
    (quota,) = world.spec()["resourceGroups"][0]["flavors"][0]["resources"]
    assert "cohortName" not in world.spec() and quota == QUOTA
    assert "cohort" not in world.queue().labels
    assert world.at_rest()


def test_an_invalid_spec_holds_the_unchanged_queue(world: World) -> None:
    world.reserve()
    world.reconcile()
    groups = world.spec()["resourceGroups"]
    world.edit({"spec": {"resourceGroups": TWICE}})
    world.reconcile()
    assert world.spec()["stopPolicy"] == "Hold"
    assert world.spec()["resourceGroups"] == groups
    assert world.at_rest()
    world.edit({"spec": SPEC})
    world.reconcile()
    assert world.spec()["stopPolicy"] == "None"


def test_a_local_queue_to_another_cluster_queue_is_recreated(world: World) -> None:
    world.reserve()
    world.reconcile()
    raw = world.kueue.raw(LocalQueue, "gpu", "team")
    meta = {key: raw["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
    world.client.delete(LocalQueue.KIND, "gpu", namespace="team")
    world.client.create(LocalQueue.KIND, {"metadata": meta, "spec": {"clusterQueue": "elsewhere"}})
    world.reconcile()
    assert world.local().spec.cluster_queue == QUEUE
    assert world.at_rest()


@pytest.mark.covers("OME-082")
def test_a_foreign_local_queue_is_left_unchanged(world: World) -> None:
    body = {"metadata": {"name": "gpu", "namespace": "team"}, "spec": {"clusterQueue": "theirs"}}
    world.client.create(LocalQueue.KIND, body)
    world.reserve()
    world.reconcile()
    assert world.local().spec.cluster_queue == "theirs"
    assert world.problems() == ["ObjectConflict"]
    assert world.queue().spec.stop_policy == "None"
    world.edit({"metadata": {"finalizers": None}})
    world.client.delete(CapacityReservation.KIND, "gpu", namespace="team")
    world.reconcile()
    assert world.local().spec.cluster_queue == "theirs"
    assert world.kueue.queue(QUEUE) is None
    assert world.problems() == []


@pytest.mark.covers("OME-043", "OME-079", "OME-082")
def test_a_shared_reservation_has_a_queue_in_each_annotated_namespace(world: World) -> None:
    world.reserve()
    world.reconcile()
    world.client.patch(Namespace.KIND, "team", {"metadata": {"annotations": {names.DRAWS_FROM: "gpu"}}})
    for name, drawn in (("red", "gpu"), ("green", "gpu"), ("blue", "gpu"), ("other", "gpus")):
        meta = {"name": name, "annotations": {names.DRAWS_FROM: drawn}}
        world.client.create(Namespace.KIND, {"metadata": meta})
    world.client.create(ClusterCapacityReservation.KIND, {"metadata": {"name": "gpu"}, "spec": SPEC})
    shared = ReservationKey("", "gpu")

    def queues() -> dict[str, ReservationKey | None]:
        world.reconcile()
        world.controller.reconcile("gpu")
        locals_ = [LocalQueue.decode(raw) for raw in world.client.list(LocalQueue.KIND)[0]]
        return {local.namespace: owner_of(local) for local in locals_}

    # In `team` the reservation of that namespace, which uses the name, keeps it.
    assert queues() == {"team": TEAM, "red": shared, "green": shared, "blue": shared}
    assert [problem.reason for problem in world.reported(shared)] == ["ObjectConflict"]
    assert world.local().spec.cluster_queue == QUEUE and world.problems() == []
    world.client.patch(Namespace.KIND, "red", {"metadata": {"annotations": None}})
    world.client.delete(Namespace.KIND, "blue")  # which waits for its content
    assert queues() == {"team": TEAM, "green": shared}
    before = world.writes()
    assert queues() == {"team": TEAM, "green": shared} and world.writes() == before


def test_similar_names_give_different_queues(world: World) -> None:
    world.client.create(Namespace.KIND, {"metadata": {"name": "team--x"}})
    world.reserve()
    other = {"name": "x--gpu", "namespace": "team"}
    world.client.create(CapacityReservation.KIND, {"metadata": other, "spec": SPEC})
    third = {"name": "gpu", "namespace": "team--x"}
    world.client.create(CapacityReservation.KIND, {"metadata": third, "spec": SPEC})
    world.reconcile()
    world.controller.reconcile("team/x--gpu")
    world.controller.reconcile("team--x/gpu")
    owners = [
        ReservationKey("team", "gpu"),
        ReservationKey("team", "x--gpu"),
        ReservationKey("team--x", "gpu"),
    ]
    assert [world.reported(owner) for owner in owners] == [()] * 3
    queues = [world.kueue.queue(queue_name(owner)) for owner in owners]
    assert [owner_of(queue) if queue else None for queue in queues] == owners
    assert next(queue.name for queue in queues if queue) == "team--gpu"
    # The only ClusterCapacityReservation with the name of another's queue.
    assert ReservationKey("", "team--gpu").queue.startswith("team--gpu-")


@pytest.mark.parametrize(
    ("policy", "deletion", "more", "stop"),
    [
        ("Manage", "Retain", {}, "Hold"),
        ("Manage", "Cancel", {}, "HoldAndDrain"),
        ("Manage", "Cancel\n", {}, "HoldAndDrain"),
        ("Observe", "Cancel", {}, "Hold"),
        # The broker cancels no instances until the annotation is corrected, so the workloads run on.
        ("Manage", "Cancel", {names.END_DATE: "tomorrow"}, "Hold"),
        ("Manage", "Cancel", {f"{names.END_DATE}s": "2027-01-31T00:00:00Z"}, "Hold"),
    ],
)
@pytest.mark.covers("OME-021")
def test_a_deleted_reservation_deletes_its_queues(
    world: World, policy: str, deletion: str, more: dict[str, str], stop: str
) -> None:
    world.reserve()
    annotations = {names.RESERVATION_POLICY: policy, names.DELETION_POLICY: deletion} | more
    world.edit({"metadata": {"annotations": annotations}})
    world.reconcile()
    world.kueue.takes(QUEUE)
    held: Json = {"metadata": {"finalizers": ["test/held"]}}
    world.client.patch(LocalQueue.KIND, "gpu", held, namespace="team")
    world.client.delete(CapacityReservation.KIND, "gpu", namespace="team")
    world.reconcile()
    queue = world.queue()
    assert queue.deleting and queue.spec.stop_policy == stop
    assert world.at_rest()
    assert remaining_queues(world.reads, TEAM) == [f"ClusterQueue {QUEUE}", "LocalQueue team/gpu"]
    world.client.patch(LocalQueue.KIND, "gpu", {"metadata": {"finalizers": None}}, namespace="team")
    world.read_all()
    assert remaining_queues(world.reads, TEAM) == [f"ClusterQueue {QUEUE}"]
    # If it is created again under the same name, it waits for the old queue's end.
    world.edit({"metadata": {"finalizers": None}})
    world.reserve()
    world.reconcile()
    assert world.problems() == ["QueueTerminating"]
    world.kueue.releases(QUEUE)
    world.reconcile()
    assert world.queue().spec.stop_policy == "None"
    assert world.problems() == []


def test_a_terminating_namespace_of_a_used_reservation(world: World) -> None:
    world.reserve()
    world.reconcile()
    world.kueue.takes(QUEUE)
    world.client.delete(Namespace.KIND, "team")
    # A namespace's content ends in any order, and no object can be created there any more.
    world.client.delete(LocalQueue.KIND, "gpu", namespace="team")
    world.reconcile()
    (problem,) = world.reported()
    assert problem.reason == "QueueRefused" and "because it is being terminated" in problem.message
    assert not world.queue().deleting
    world.client.delete(CapacityReservation.KIND, "gpu", namespace="team")
    world.reconcile()
    assert world.queue().deleting and world.queue().spec.stop_policy == "Hold"
    assert world.problems() == [] and world.at_rest()
    assert remaining_queues(world.reads, TEAM) == [f"ClusterQueue {QUEUE}"]
    world.kueue.releases(QUEUE)
    world.reconcile()
    assert remaining_queues(world.reads, TEAM) == [] and world.kueue.queue(QUEUE) is None


def test_a_deleted_reservation_does_not_drain_while_a_dedicated_cluster_holds_its_quota(
    world: World,
) -> None:
    world.reserve()
    annotations = {names.RESERVATION_POLICY: "Manage", names.DELETION_POLICY: "Cancel"}
    world.edit({"metadata": {"annotations": annotations}})
    world.reconcile()
    world.kueue.takes(QUEUE)
    spec = {"capacityReservationId": KEY, "resources": {"requests": {GPU: 8}}}
    world.client.create(DedicatedAICluster.KIND, {"metadata": {"name": "one"}, "spec": spec})
    held = {"reservation": KEY, "reservedAt": "2026-01-01T00:00:00Z", "flavors": []}
    body: Json = {"status": {"admission": held}}
    world.client.patch(DedicatedAICluster.KIND, "one", body, subresource="status")
    world.client.delete(CapacityReservation.KIND, "gpu", namespace="team")
    world.reconcile()
    assert world.queue().deleting and world.queue().spec.stop_policy == "Hold"
    world.client.delete(DedicatedAICluster.KIND, "one")
    world.reconcile()
    assert world.queue().spec.stop_policy == "HoldAndDrain"


def test_the_check_stays_until_the_last_queue_that_names_it_is_gone(world: World) -> None:
    world.reserve()
    world.reconcile()
    world.kueue.takes(QUEUE)
    world.edit({"metadata": {"finalizers": None}})
    world.client.delete(CapacityReservation.KIND, "gpu", namespace="team")
    world.reconcile()
    world.check.keep(used=False)
    check = AdmissionCheck.decode(world.kueue.raw(AdmissionCheck, CHECK))
    assert world.queue().deleting and not check.deleting
    world.kueue.releases(QUEUE)
    world.read_all()
    world.check.keep(used=False)
    with pytest.raises(NotFound):
        world.client.get(AdmissionCheck.KIND, CHECK)


def test_a_terminating_check_stays_in_the_queue_and_is_reported(world: World) -> None:
    world.reserve()
    world.read_all()
    world.check.keep(used=True)
    world.client.patch(AdmissionCheck.KIND, CHECK, {"metadata": {"finalizers": ["kueue.x-k8s.io/in-use"]}})
    world.client.delete(AdmissionCheck.KIND, CHECK)
    world.reconcile()
    assert names_check(world.queue())
    assert world.problems() == ["AdmissionCheckTerminating"]
    assert world.at_rest()


@pytest.mark.covers("SAF-75")
def test_a_terminating_check_of_another_controller_is_no_conflict(world: World) -> None:
    meta = {"name": CHECK, "finalizers": ["kueue.x-k8s.io/in-use"]}
    body = {"metadata": meta, "spec": {"controllerName": "somebody.else/check"}}
    world.client.create(AdmissionCheck.KIND, body)
    world.client.delete(AdmissionCheck.KIND, CHECK)
    world.reserve()
    world.reconcile()
    assert world.problems() == ["AdmissionCheckTerminating"]
    world.client.patch(AdmissionCheck.KIND, CHECK, {"metadata": {"finalizers": None}})
    world.reconcile()
    assert world.problems() == [] and names_check(world.queue())


MARKED = mark(TEAM)
OTHERS = mark(ReservationKey("other", "gpu"))


@pytest.mark.covers("SAF-75")
@pytest.mark.parametrize(
    ("labels", "annotations", "reason", "words"),
    [
        ({}, MARKED["annotations"], "QueueMarkRemoved", f"label {{}} {MANAGED_BY}={MANAGER}"),
        (
            {MANAGED_BY: "helm"},
            MARKED["annotations"],
            "QueueMarkRemoved",
            f"label {{}} {MANAGED_BY}={MANAGER}",
        ),
        (MARKED["labels"], {}, "QueueMarkRemoved", f"annotate {{}} {names.TAG_RESERVATION}=team/gpu"),
        ({}, {}, "ObjectConflict", "not made by the broker"),
        (MARKED["labels"], OTHERS["annotations"], "ObjectConflict", "made for other/gpu"),
        ({}, OTHERS["annotations"], "ObjectConflict", "not made by the broker"),
    ],
)
@pytest.mark.parametrize(
    ("model", "kubectl"),
    [(ClusterQueue, f"clusterqueues {QUEUE}"), (LocalQueue, "localqueues gpu -n team")],
)
def test_a_queue_that_lost_its_mark_is_not_reported_as_foreign(
    world: World,
    model: type[ClusterQueue | LocalQueue],
    kubectl: str,
    labels: Json,
    annotations: Json,
    reason: str,
    words: str,
) -> None:
    name, namespace = (QUEUE, None) if model is ClusterQueue else ("gpu", "team")
    world.reserve()
    world.reconcile()
    marks = {
        "labels": {MANAGED_BY: labels.get(MANAGED_BY)},
        "annotations": {names.TAG_RESERVATION: annotations.get(names.TAG_RESERVATION)},
    }
    world.client.patch(model.KIND, name, {"metadata": marks}, namespace=namespace)
    world.reconcile()
    (problem,) = world.reported()
    assert (problem.reason, words.format(kubectl) in problem.message) == (reason, True), problem.message
    assert world.at_rest()
    # Follows the advice in the message.
    world.client.patch(model.KIND, name, {"metadata": MARKED}, namespace=namespace)
    world.reconcile()
    assert world.problems() == []


@pytest.mark.covers("SAF-75")
def test_a_terminating_foreign_queue_is_waited_for(world: World) -> None:
    meta = {"name": QUEUE, "finalizers": ["kueue.x-k8s.io/resource-in-use"]}
    world.client.create(ClusterQueue.KIND, {"metadata": meta, "spec": {}})
    world.client.delete(ClusterQueue.KIND, QUEUE)
    world.reserve()
    world.reconcile()
    assert world.problems() == ["QueueTerminating"]
    world.kueue.releases(QUEUE)
    world.reconcile()
    assert world.problems() == [] and owner_of(world.queue()) == TEAM


WEBHOOK = 'failed calling webhook "vclusterqueue.kb.io": connection refused'


@pytest.mark.covers("SAF-75")
@pytest.mark.parametrize(
    ("error", "reason", "again"),
    [
        (WebhookFailed(500, "InternalError", WEBHOOK), "KueueUnavailable", 30.0),
        (
            NotFound(404, "NotFound", "the server could not find the requested resource"),
            "KueueUnavailable",
            30.0,
        ),
        (Forbidden(403, "Forbidden", "admission webhook denied the request: no"), "QueueRefused", 300.0),
        (Invalid(422, "Invalid", "spec.resourceGroups: Too many"), "QueueRefused", 300.0),
    ],
)
@pytest.mark.parametrize("kind", ["clusterqueues", "localqueues", "admissionchecks"])
def test_the_reservation_reports_a_refusal_of_kueue(
    world: World, kind: str, error: ApiError, reason: str, again: float
) -> None:
    def fails(_: Any) -> None:
        raise error

    world.tap.on(lambda request: request.method == "POST" and kind in request.path, fails, times=-1)
    world.reserve()
    world.read_all()
    with suppress(ApiError):
        world.check.keep(used=True)
    waits = world.controller.reconcile(KEY)
    (problem,) = world.reported()
    assert (problem.reason, error.message in problem.message) == (reason, True), problem.message
    assert waits is not None and waits.requeue_after == again
    assert world.events()[reason] == problem.message
    world.tap.heal()
    world.reconcile()
    assert world.problems() == []


@pytest.mark.covers("SAF-75")
def test_a_refused_write_to_a_held_queue_is_reported(world: World) -> None:
    world.reserve()
    world.reconcile()
    world.edit({"spec": {"resourceGroups": TWICE}})

    def fails(_: Any) -> None:
        raise WebhookFailed(500, "InternalError", WEBHOOK)

    world.tap.on(lambda request: request.method == "PATCH", fails, times=-1)
    world.reconcile()
    assert world.problems() == ["KueueUnavailable"]
    world.tap.heal()
    world.reconcile()
    assert world.problems() == [] and world.spec()["stopPolicy"] == "Hold"


def test_no_queue_names_the_check_of_another_controller(world: World) -> None:
    body = {"metadata": {"name": CHECK}, "spec": {"controllerName": "somebody.else/check"}}
    world.client.create(AdmissionCheck.KIND, body)
    world.reserve()
    world.reconcile()
    assert "admissionChecksStrategy" not in world.spec()
    assert world.problems() == ["ObjectConflict"]
    check = AdmissionCheck.decode(world.kueue.raw(AdmissionCheck, CHECK))
    assert check.spec.controller_name == "somebody.else/check" and not check.status.conditions


def test_a_queue_is_created_only_after_the_check_is_active(world: World) -> None:
    world.reserve()
    world.read_all()
    world.controller.reconcile(KEY)
    assert world.kueue.queue(QUEUE) is None
    world.reconcile()
    assert world.kueue.judges(QUEUE) == "FlavorNotFound"  # and not AdmissionCheckInactive
    check = AdmissionCheck.decode(world.kueue.raw(AdmissionCheck, CHECK))
    active = condition(check.status.conditions, ACTIVE)
    assert check.spec.controller_name == CONTROLLER and active is not None and active.status == "True"
    # If another client sets it to False, the broker corrects it.
    status = {"status": {"conditions": [{**active.wire(), "status": "False"}]}}
    world.client.patch(AdmissionCheck.KIND, CHECK, status, subresource="status")
    world.reconcile()
    check = AdmissionCheck.decode(world.kueue.raw(AdmissionCheck, CHECK))
    active = condition(check.status.conditions, ACTIVE)
    assert active is not None and active.status == "True"


@pytest.mark.parametrize(
    ("chosen", "checks", "problems"),
    [("Off", False, []), ("Off\n", False, []), ("Hold", True, []), ("never", True, ["InvalidAnnotation"])],
)
def test_the_admission_annotation_sets_the_check(
    world: World, chosen: str, checks: bool, problems: list[str]
) -> None:
    world.reserve()
    world.edit({"metadata": {"annotations": {names.ADMISSION: chosen}}})
    world.reconcile()
    assert ("admissionChecksStrategy" in world.spec()) is checks
    assert world.problems() == problems
    world.edit({"metadata": {"annotations": {names.ADMISSION: "Off"}}})
    world.reconcile()
    assert "admissionChecksStrategy" not in world.spec()


def test_a_cycle_of_cohorts_is_reported(world: World) -> None:
    for name, parent in (("ai", "all"), ("all", "ai")):
        world.client.create(Cohort.KIND, {"metadata": {"name": name}, "spec": {"parentName": parent}})
    world.reserve(cohort="ai")
    world.reconcile()
    (problem,) = world.reported()
    assert problem.reason == "CohortCycle" and "ai in all in ai" in problem.message


@pytest.mark.covers("OME-010")
def test_a_refusal_of_kueue_is_reported_in_its_words_until_it_accepts(world: World) -> None:
    """The limits of a ClusterQueue differ between Kueue's versions."""
    definition = world.client.get(crds.KIND, "clusterqueues.kueue.x-k8s.io")
    for version in definition["spec"]["versions"]:
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        spec["resourceGroups"]["items"]["properties"]["flavors"]["maxItems"] = 1
    world.client.update(crds.KIND, definition)
    world.reserve()
    world.reconcile()
    twice = {**SPEC["resourceGroups"][0]}
    twice["flavors"] = [{"name": name, "resources": [QUOTA]} for name in ("h100", "h200")]
    world.edit({"spec": {"resourceGroups": [twice]}})
    for _ in range(2):
        world.reconcile()
        (problem,) = world.reported()
        assert problem.reason == "QueueRefused" and "Too many: 2" in problem.message
        assert [flavor.name for flavor in world.queue().spec.resource_groups[0].flavors] == ["h100"]
    world.recorder.flush()
    events = [Event.decode(raw) for raw in world.client.list(Event.KIND)[0]]
    assert {event.reason for event in events} == {"QueueRefused"}  # and no event blames a manual edit
    world.edit({"spec": SPEC})
    world.reconcile()
    assert world.reported() == () and world.at_rest()


def test_a_workload_priority_class_precedes_a_priority_class(world: World) -> None:
    for model, name, value in (
        (PriorityClass, "both", 1),
        (WorkloadPriorityClass, "both", 2),
        (PriorityClass, "pods", 3),
    ):
        world.client.create(model.KIND, {"metadata": {"name": name}, "value": value})
    world.read_all()
    assert [world.reads.priority(name) for name in ("both", "pods", "none")] == [2, 3, None]


def test_without_kueue_nothing_is_written_and_the_reads_are_synced() -> None:
    cluster = Cluster()
    client = Client(InProcessTransport(cluster), field_manager="test")
    for body in OME:
        client.create(crds.KIND, body)
    tap = Tap(InProcessTransport(cluster))
    reads = ReservationReads(Client(tap), clock=FakeClock())
    for informer in reads.named.values():
        with suppress(NotFound):
            informer.read()
    assert reads.synced() and reads.cluster_queues.missing
    assert not reads.kueue and not remaining_queues(reads, TEAM) and reads.snapshot().workload_holders == {}
