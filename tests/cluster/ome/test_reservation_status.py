"""The status of a reservation: from Creating to its end, on nodes that come and go."""

from __future__ import annotations

from datetime import timedelta

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import RESERVATION_CONDITIONS, CapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.kube.client import Request
from broker.kube.errors import Forbidden
from broker.oncall.metrics import REGISTRY
from tests.cluster.account import ACCOUNT, A
from tests.cluster.ome.dedicated import TYPE, World
from tests.cluster.ome.reserved import (
    GPU,
    HELD,
    KIND,
    RESOURCES,
    Seen,
    amounts,
    cordon,
    finalizers,
    flavor,
    flavors_alone,
    machine,
    printed,
    raw_condition,
    reservation_status,
    reserve,
    spec,
    until_known,
    until_state,
)
from tests.cluster.stack import Stack
from tests.cluster.taps import status_of
from tests.cluster.test_rest import tick


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"namespace": "default", "reservation": "training", **labels})


def eight(stack: Stack) -> None:
    """Eight nodes of one flavor."""
    flavors_alone(stack)
    flavor(stack, "h100")
    for number in range(8):
        machine(stack, f"n-{number}", "h100")


@pytest.mark.covers(
    "OME-016", "OME-017", "OME-018", "OME-020", "OME-021", "OME-022", "OME-023", "OME-024", "OME-026",
    "OME-027", "OME-029", "OME-031", "OME-090", "OME-092", "OME-093",
)  # fmt: skip
def test_from_creating_to_its_end(stack: Stack) -> None:
    eight(stack)
    seen = Seen(stack)
    reserve(stack)
    # Long enough that the reservation does not fail, whatever it lacks meanwhile.
    stack.start(kubelets=False, reservation_steady_seconds=30.0, reservation_creating_seconds=86400.0)
    status = until_state(stack, "Active")
    assert amounts(status, "capacity") == amounts(status, "allocatable") == RESOURCES
    assert status["lifecycleDetail"] == "Active"
    conditions = {condition["type"]: condition["status"] for condition in status["conditions"]}
    assert conditions == dict.fromkeys(RESERVATION_CONDITIONS, "True")
    assert sample("capacity_reservation_total", flavor="h100", resource="memory") == 16 * 2**40
    assert sample("capacity_reservation_total", flavor="h100", resource="cpu") == 1024
    stack.until(lambda: sample("capacity_reservation_lifecycle_state", state="Active") == 1, "its state")
    assert sample("capacity_reservation_lifecycle_state", state="Failed") == 0

    began = stack.clock.now()
    cordon(stack, "n-3")
    out = {GPU: "56", "memory": "14Ti", "cpu": "896"}
    stack.until(lambda: amounts(reservation_status(stack), "allocatable") == out, "one node is out", step=10)
    assert stack.clock.now() - began >= timedelta(seconds=30), "it has lasted"
    status = reservation_status(stack)
    assert amounts(status, "capacity") == RESOURCES
    assert status["capacityReservationLifecycleState"] == "Active"
    assert raw_condition(status, "ResourcesSufficient")["reason"] == "HardwareUnavailable"
    assert "n-3 is cordoned" in status["lifecycleDetail"]
    cordon(stack, "n-3", out=False)
    stack.until(lambda: amounts(reservation_status(stack), "allocatable") == RESOURCES, "it is back", step=10)

    has = {GPU: "8"}
    container = {"name": "main", "image": "i", "resources": {"requests": has, "limits": has}}
    stack.pod("stranger", node="n-5", containers=[container])
    stack.until(
        lambda: raw_condition(reservation_status(stack), "ResourcesSufficient")["reason"] == "HardwareInUse",
        "others use it",
        step=10,
    )
    status = reservation_status(stack)
    assert "8 of 64 nvidia.com/gpu are used by others: pods on n-5 draw from" in status["lifecycleDetail"]
    assert amounts(status, "free")[GPU] == "56" and amounts(status, "allocatable") == RESOURCES
    stack.client.delete(Pod.KIND, "stranger", namespace="default")
    stack.until(lambda: reservation_status(stack)["lifecycleDetail"] == "Active", "they are gone", step=10)

    more = spec(quotas={**RESOURCES, GPU: "72"})
    stack.client.patch(KIND, "training", {"spec": more}, namespace="default")
    status = until_state(stack, "Updating")
    assert raw_condition(status, "Ready")["status"] == "True"
    machine(stack, "n-8", "h100")
    until_state(stack, "Active", step=5)

    assert finalizers(stack) == (HELD,)
    stack.client.delete(KIND, "training", namespace="default")
    stack.until(
        lambda: stack.find(CapacityReservation, "training", namespace="default") is None, "it is gone"
    )
    assert seen.states["training"] == ["Creating", "Active", "Updating", "Active", "Deleting"]
    stack.until(lambda: sample("capacity_reservation_lifecycle_state", state="Deleting") is None, "no series")
    assert sample("capacity_reservation_total", flavor="h100", resource="cpu") is None
    assert sample("capacity_reservation_lifecycle_state", state="Active") is None


@pytest.mark.covers("OME-019", "OME-030", "OME-052", "OME-067", "OME-068", "OME-083", "OME-085", "OME-099")
def test_missing_capacity_fails_in_time_and_recovers_by_itself(stack: Stack) -> None:
    flavors_alone(stack)
    flavor(stack, "h100")
    flavor(stack, "twin", {"example.com/sort": "h100"})
    for number in range(8):
        machine(stack, f"n-{number}", "h100")
    reserve(stack, priorityClassName="nobody")
    stack.start(kubelets=False, reservation_creating_seconds=600.0, reservation_updating_seconds=600.0)
    status = until_known(stack)
    assert status["capacityReservationLifecycleState"] == "Creating"
    assert "there are 0 of 64 nvidia.com/gpu" in status["lifecycleDetail"]
    assert raw_condition(status, "Ready")["reason"] == "InsufficientCapacity"
    assert raw_condition(status, "WorkloadsHealthy")["reason"] == "PriorityClassNotFound"
    lost = {"resource": GPU, "why": "several flavors"}
    stack.until(
        lambda: REGISTRY.get_sample_value("capacity_reservation_unattributed", lost) == 64,
        "usage that counts in no reservation",
    )
    until_state(stack, "Failed", step=60)
    stack.until_event("training", "Failed", kind="CapacityReservation", text="0 of 64")
    # Another spec is waited for the full time, however long the wait for the last one was.
    stack.client.patch(KIND, "training", {"spec": {"priorityClassName": "somebody"}}, namespace="default")
    until_state(stack, "Updating")
    stack.until(
        lambda: (
            raw_condition(reservation_status(stack), "ResourcesProvisioned")["reason"]
            == "InsufficientCapacity"
        ),
        "it waits",
    )
    tick(stack)
    assert reservation_status(stack)["capacityReservationLifecycleState"] == "Updating"
    stack.client.delete(ResourceFlavor.KIND, "twin")
    status = until_state(stack, "Active", step=5)
    assert raw_condition(status, "ResourcesSufficient")["status"] == "True"
    stack.until_event("training", "Active", kind="CapacityReservation")
    # A flavor in use stays until Kueue removes its finalizer.
    held = {"metadata": {"finalizers": ["kueue.x-k8s.io/resource-in-use"]}}
    stack.client.patch(ResourceFlavor.KIND, "h100", held)
    stack.client.delete(ResourceFlavor.KIND, "h100")
    stack.until(lambda: stack.get(ResourceFlavor, "h100").deleting, "the flavor is deleted")
    tick(stack)
    assert reservation_status(stack)["capacityReservationLifecycleState"] == "Active"
    stack.client.patch(ResourceFlavor.KIND, "h100", {"metadata": {"finalizers": None}})
    status = until_state(stack, "Failed")
    assert raw_condition(status, "Ready")["reason"] == "FlavorNotFound"


@pytest.mark.covers("OME-033", "OME-045", "OME-008", "OME-084", "OME-086", "OME-096", "OME-098")
@pytest.mark.both_servers
def test_two_of_one_flavor_labels_and_columns(stack: Stack) -> None:
    eight(stack)
    reserve(stack, "older", labels={"cost-tier": "spot"}, cohort="teams", priorityClassName="")
    stack.start(kubelets=False)
    until_state(stack, "Active", "older")
    reserve(stack, "younger", labels={"cohort": "mine"}, cohort="teams", allowBorrowing=False, borrow="8")
    status = until_known(stack, "younger")
    assert amounts(reservation_status(stack, "older"), "allocatable") == RESOURCES
    assert amounts(status, "allocatable") == {GPU: "0", "memory": "0", "cpu": "0"}
    assert raw_condition(status, "ResourcesSufficient")["status"] == "False"
    assert "borrowingLimit 8 is 0" in raw_condition(status, "SpecNormalized")["message"]

    older = stack.get(CapacityReservation, "older", namespace="default")
    assert older.labels == {"cost-tier": "spot", "cohort": "teams"}
    assert stack.get(CapacityReservation, "younger", namespace="default").labels == {"cohort": "mine"}
    written = stack.client.get(KIND, "younger", namespace="default")["spec"]
    assert written == spec(cohort="teams", allowBorrowing=False, borrow="8")
    listed, _ = stack.client.list(KIND, label_selector="cohort=teams")
    assert [document["metadata"]["name"] for document in listed] == ["older"]
    row = printed(stack, KIND)
    assert row | {"Age": ""} == {
        "Name": "older",
        "State": "Active",
        "Ready": "True",
        "Cohort": "teams",
        "GPU-Total": 64,
        "GPU-Allocated": 0,
        "Age": "",
        "Borrowed": 0,
        "Allocatable": 64,
        "DACs": 0,
        "PriorityClass": "",
        "Detail": "Active",
    }
    # The cohort changes, and so does the label that the broker set.
    stack.client.patch(KIND, "older", {"spec": {"cohort": "others"}}, namespace="default")
    stack.until(
        lambda: stack.get(CapacityReservation, "older", namespace="default").labels["cohort"] == "others",
        "the label follows",
    )


def quiet(stack: Stack) -> None:
    """Returns when the work in progress is done."""

    def nothing() -> bool:
        before = len(stack.tap.writes())
        for _ in range(3):
            tick(stack)
        return len(stack.tap.writes()) == before

    stack.until(nothing, "no writes")


@pytest.mark.covers("OME-025", "OME-097")
def test_at_rest_and_after_a_restart_nothing_is_written(stack: Stack) -> None:
    eight(stack)
    reserve(stack, cohort="teams")
    reserve(stack, "unlucky", labels={"cohort": "mine"}, cohort="teams")
    stack.start(kubelets=False, poll_seconds=30.0)
    until_state(stack, "Active")
    until_state(stack, "Failed", "unlucky", step=60)
    quiet(stack)
    stack.tap.forget()
    for _ in range(5):
        tick(stack)
    assert not stack.tap.writes()
    versions = [
        stack.get(CapacityReservation, name, namespace="default").metadata.resource_version
        for name in ("training", "unlucky")
    ]
    stack.stop()
    stack.start(kubelets=False)
    for _ in range(5):
        tick(stack)
    assert versions == [
        stack.get(CapacityReservation, name, namespace="default").metadata.resource_version
        for name in ("training", "unlucky")
    ]


@pytest.mark.covers("CAP-06", "CAP-08", "OME-016", "OME-056", "OME-061", "OME-062", "OME-085")
def test_capacity_of_ec2_s_reservations_used_by_a_cluster_and_given_back(stack: Stack) -> None:
    world = World(stack, 2, training=3)
    world.reserve("training")
    stack.start(reservation_creating_seconds=86400.0, adopt_by_annotation="default")
    status = until_known(stack)
    assert status["capacityReservationLifecycleState"] == "Creating"
    assert "there are 16 of 24 nvidia.com/gpu" in status["lifecycleDetail"]
    # A reservation that another account shares begins later: it is shown, and waited for.
    shared = stack.control.reservation(
        InstanceType=TYPE,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=A,
        InstanceCount=1,
        owner_id="999999999999",
        shared_with=[ACCOUNT],
    )["CapacityReservationId"]
    stack.control.set_reservation(shared, state="pending")
    adopted = {"metadata": {"annotations": {names.ADOPT_IDS: shared}}}
    stack.client.patch(KIND, "training", adopted, namespace="default")
    stack.until(
        lambda: raw_condition(reservation_status(stack), "Ready").get("reason") == "CloudReservationPending",
        "it is waited for",
        step=5,
    )
    cloud = {odcr["id"]: odcr for odcr in reservation_status(stack)["cloudReservations"]}
    assert cloud[shared]["ownerID"] == "999999999999" and cloud[shared]["state"] == "pending"
    assert cloud[world.odcr]["ownerID"] == ACCOUNT and cloud[world.odcr]["total"] == 2
    stack.control.set_reservation(shared, state="active")
    status = until_state(stack, "Active")
    assert amounts(status, "capacity") == amounts(status, "allocatable") == {GPU: "24"}

    world.cluster("one", 2, "training")
    world.until("one", "ACTIVE")
    usage = [{"name": "h100", "resources": [{"name": GPU, "total": "16"}]}]
    stack.until(
        lambda: reservation_status(stack).get("associationUsages") == [{"name": "one", "usage": usage}],
        "its users",
    )
    stack.until(lambda: amounts(reservation_status(stack), "free") == {GPU: "8"}, "the rest")
    assert reservation_status(stack)["summary"] == {
        "gpuTotal": 24, "gpuAllocated": 16, "gpuBorrowed": 0, "gpuAllocatable": 24, "dacs": 1
    }  # fmt: skip

    # The quota drops below the usage: it is reported, and no claim is evicted.
    stack.client.patch(KIND, "training", {"spec": spec(quotas={GPU: "8"})}, namespace="default")
    stack.until(
        lambda: (
            raw_condition(reservation_status(stack), "ResourcesSufficient").get("reason") == "QuotaExceeded"
        ),
        "too much is used",
    )
    status = until_state(stack, "Updating")
    assert "16 of nvidia.com/gpu in h100 used, 8 more than it may" in status["lifecycleDetail"]
    assert raw_condition(status, "Ready")["status"] == "True"
    assert status["associationUsages"] == [{"name": "one", "usage": usage}]
    assert world.state_text("one").startswith("ACTIVE")
    stack.client.patch(KIND, "training", {"spec": spec(quotas={GPU: "24"})}, namespace="default")
    until_state(stack, "Active")

    stack.client.delete(KIND, "training", namespace="default")
    status = until_state(stack, "Deleting")
    assert finalizers(stack) == (HELD,)
    ends = "delete it (kubectl delete dedicatedaicluster one)"
    stack.until(
        lambda: ends in reservation_status(stack)["lifecycleDetail"],
        "the rest is named, and its end",
    )
    stack.delete(DedicatedAICluster, "one")
    stack.until(
        lambda: stack.find(CapacityReservation, "training", namespace="default") is None, "it is gone"
    )
    # The broker changes no reservation that it did not make.
    assert stack.aws.reservation(world.odcr)["State"] == "active"


@pytest.mark.covers("OME-021")
def test_reservation_deleted_during_a_status_write_waits_for_its_users(stack: Stack) -> None:
    world = World(stack, 2, training=2)
    world.reserve("training")
    stack.start()
    until_state(stack, "Active")
    world.cluster("one", 1, "training")
    world.until("one", "ACTIVE")
    stack.until(lambda: reservation_status(stack).get("associationUsages"), "its users")

    def meanwhile(_: Request) -> None:
        stack.client.delete(KIND, "training", namespace="default")

    stack.tap.on(status_of(KIND.plural), meanwhile)
    stack.client.patch(KIND, "training", {"spec": spec(quotas={GPU: "8"})}, namespace="default")
    status = until_state(stack, "Deleting")
    assert "DedicatedAICluster one" in status["lifecycleDetail"]
    assert HELD in finalizers(stack)


@pytest.mark.covers("OME-021")
def test_a_refused_write_is_told_on_the_reservation_and_holds_up_no_other(stack: Stack) -> None:
    def refuse(_: Request) -> None:
        raise Forbidden(403, "Forbidden", "the webhook denied the request: label it")

    refused = KIND.path(namespace="default", name="training")
    stack.tap.on(
        lambda request: request.path.startswith(refused) and request.method == "PATCH", refuse, times=-1
    )
    eight(stack)
    reserve(stack)
    reserve(stack, name="other")
    stack.start()
    stack.until(lambda: reservation_status(stack, "other"), "the other is served")
    stack.until_event("training", "StepRefused", kind="CapacityReservation", text="label it")
    assert not reservation_status(stack)
    stack.tap.heal()
    stack.until(lambda: reservation_status(stack), "it is served once it may be")


@pytest.mark.covers("OME-019")
def test_misspelt_flavor_is_named_with_the_nearest_one(stack: Stack) -> None:
    flavors_alone(stack)
    flavor(stack, "h100")
    reserve(stack, flavor="h10")
    stack.start(kubelets=False)
    detail = until_known(stack)["lifecycleDetail"]
    assert "no ResourceFlavor h10:" in detail and detail.endswith("; the nearest name is h100")


@pytest.mark.covers("OME-019")
def test_misspelt_resource_fails_the_reservation_with_the_field_and_the_remedy(stack: Stack) -> None:
    flavors_alone(stack)
    flavor(stack, "h100")
    reserve(stack, quotas={"nvidia.com/gpus": "8"})
    stack.start(kubelets=False)
    status = until_state(stack, "Failed")
    assert (
        "spec.resourceGroups[0].coveredResources: no instance has 'nvidia.com/gpus': write nvidia.com/gpu"
        in status["lifecycleDetail"]
    )
    reserve(stack, "shares", quotas={"nvidia.com/gpu.shared": "8"})  # as device plugins name it
    until_state(stack, "Active", "shares")
