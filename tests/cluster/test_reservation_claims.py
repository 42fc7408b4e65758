"""Room that no node has: a Koordinator reservation gets a claim, and its node gets the hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.koordinator import ALLOCATED, AVAILABLE, PREALLOCATION_REQUIRED, KoordinatorReservation
from tests.cluster import objects
from tests.cluster.objects import RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_mixed_pools import required
from tests.cluster.test_provisioning import claims, pool
from tests.cluster.test_provisioning import start as start_broker


def _container(cpu: str) -> dict[str, Any]:
    return {"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu}}}


def start(stack: Stack) -> None:
    start_broker(stack)
    stack.start_scheduler()


def reserve(stack: Stack, name: str = "kept", *, cpu: str = "1200m", **more: Any) -> None:
    template = {
        "schedulerName": "koord-scheduler",
        "containers": [_container(cpu)],
        **more.pop("template", {}),
    }
    owners = [{"labelSelector": {"matchLabels": {"app": "later"}}}]
    meta = {"name": name, **more.pop("metadata", {})}
    spec = {"template": {"spec": template}, "owners": owners, **more}
    stack.client.create(KoordinatorReservation.KIND, {"metadata": meta, "spec": spec})


def reservation(stack: Stack, name: str = "kept") -> KoordinatorReservation:
    return stack.get(KoordinatorReservation, name)


def owner(stack: Stack) -> Pod:
    pod = objects.pod("owner", labels={"app": "later"}, containers=[_container("1")])
    pod["spec"]["schedulerName"] = "koord-scheduler"
    stack.client.create(Pod.KIND, pod)

    def bound() -> bool:
        return bool(stack.get(Pod, "owner", namespace="default").spec.node_name)

    stack.until(bound, "owner bound", step=0.2)
    return stack.get(Pod, "owner", namespace="default")


@pytest.mark.both_servers
def test_reservation_without_a_node_gets_one_claim_in_a_reserved_slot(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", count=1)
    stack.node_class(id_=odcr)
    pool(stack)
    start(stack)
    reserve(stack)
    stack.until(lambda: reservation(stack).status.phase == AVAILABLE, "the hold", step=0.5)
    stack.until(lambda: claims(stack)[0].status.node_name, "its claim has the node", step=0.5)
    (claim,) = claims(stack)
    assert claim.annotations[names.PODS] == "default/reservation/kept"
    assert stack.reservation_of(claim.name) == odcr
    node = reservation(stack).status.node_name
    assert node == claim.status.node_name
    # Its node stays, though no pod runs there, and its owner takes the room.
    stack.advance(300)
    stack.passes()
    assert [item.name for item in claims(stack)] == [claim.name]
    pod = owner(stack)
    assert pod.spec.node_name == node
    assert json.loads(pod.annotations[ALLOCATED])["name"] == "kept"
    assert len(claims(stack)) == 1


@pytest.mark.both_servers
def test_claim_without_an_instance_goes_with_its_reservation(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    stack.tap.lose(lambda request: request.method == "PATCH" and "/nodeclaims/" in request.path)  # no launch
    start(stack)
    reserve(stack)
    stack.until(lambda: claims(stack), "a claim", step=0.2)
    stack.delete(KoordinatorReservation, "kept")
    stack.tap.heal()
    stack.until(lambda: not stack.all(NodeClaim), "the claim is released", step=0.5)


def wait_for_room(stack: Stack, name: str = "owner", cpu: str = "1") -> None:
    """Creates a pod that a reservation may be for, as its scheduler leaves it without a node."""
    pod = objects.pod(name, labels={"app": "later"}, containers=[_container(cpu)])
    pod["spec"]["schedulerName"] = "koord-scheduler"
    stack.client.create(Pod.KIND, pod)

    def unschedulable() -> bool:
        condition = stack.get(Pod, name, namespace="default").scheduled
        return condition is not None and condition.reason == "Unschedulable"

    stack.until(unschedulable, f"{name} waits", step=0.2)


def test_pod_that_waits_beside_its_reservation_gets_no_machine_of_its_own(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", count=2)
    stack.node_class(id_=odcr)
    start(stack)
    reserve(stack)
    wait_for_room(stack)
    pool(stack)
    assert stack.until_event(
        "owner", "FailedScheduling", kind="Pod", text="Reservation kept keeps room for it"
    )
    stack.until(lambda: stack.get(Pod, "owner", namespace="default").spec.node_name, "owner bound", step=0.5)
    (claim,) = claims(stack)
    assert claim.annotations[names.PODS] == "default/reservation/kept"
    assert stack.get(Pod, "owner", namespace="default").spec.node_name == claim.status.node_name
    stack.advance(300)
    stack.passes()
    assert [item.name for item in claims(stack)] == [claim.name]


@pytest.mark.parametrize(
    "more, cpu",
    [
        pytest.param({"cpu": "900"}, "1", id="no machine holds the reservation"),
        pytest.param({"cpu": "500m"}, "1", id="the reservation is too small for it"),
        pytest.param(
            {"template": {"nodeSelector": {"kubernetes.io/os": "windows"}}}, "1", id="no machine for it"
        ),
    ],
)
def test_pod_that_gets_no_room_from_a_reservation_gets_a_machine(
    stack: Stack, more: dict[str, Any], cpu: str
) -> None:
    stack.node_class(id_=stack.aws.odcr("m5.large", count=2))
    start(stack)
    reserve(stack, **more)
    wait_for_room(stack, cpu=cpu)
    pool(stack)
    stack.until(
        lambda: any("default/owner" in c.annotations[names.PODS] for c in claims(stack)),
        "its claim",
        step=0.5,
    )


def test_pod_does_not_wait_for_a_reservation_whose_claim_ec2_refuses(stack: Stack) -> None:
    for type_ in ("m5.large", "m5.xlarge"):
        stack.control.pool(instance_type=type_, zone="us-east-1a", size=0)
    stack.node_class(preference="none")
    start(stack)
    reserve(stack, template={"nodeSelector": {names.ZONE: "us-east-1a"}})
    wait_for_room(stack)
    pool(stack)

    def elsewhere() -> bool:
        zones = {
            c.labels.get(names.ZONE) for c in claims(stack) if "default/owner" in c.annotations[names.PODS]
        }
        return bool(zones) and "us-east-1a" not in zones

    stack.until(elsewhere, "a machine of its own in another zone", step=1.0)


def test_reservation_that_no_machine_helps_gets_no_claim(stack: Stack) -> None:
    stack.node_class(preference="none")
    pool(stack)
    start(stack)
    reserve(stack, "named", template={"nodeName": "absent"})
    reserve(stack, "invalid", metadata={"annotations": {"node.koordinator.sh/reservation": "{"}})
    takes: Any = {"preAllocation": True, "allocatePolicy": "Restricted", "allocateOnce": False}
    reserve(stack, "takes", metadata={"labels": {PREALLOCATION_REQUIRED: "true"}}, **takes)
    reserve(stack, "unsupported", preAllocation=True)

    def reason(name: str) -> str:
        return next((item.reason for item in reservation(stack, name).status.conditions), "")

    expected = {
        "named": "Unschedulable",
        "invalid": "Invalid",
        "takes": "Unschedulable",
        "unsupported": "Invalid",
    }
    for name, why in expected.items():
        stack.until(lambda n=name, w=why: reason(n) == w, f"{name} {why}", step=0.2)  # type: ignore[misc]
    reserve(stack, "too-large", cpu="900")
    event = stack.until_event(
        "too-large", "FailedScheduling", kind="Reservation", text="Failed to schedule pod"
    )
    assert event
    assert not claims(stack)


@pytest.mark.parametrize(("count", "size"), [(2, 2), (4, 3)])
def test_gang_gets_no_machine_for_its_pod_that_has_kept_room(stack: Stack, count: int, size: int) -> None:
    odcr = stack.aws.odcr("m5.large", count=3)
    stack.node_class(id_=odcr)
    reserved = {"requirements": required(["m5.large"], [RESERVED])}
    pool(stack, template=reserved, disruption={"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]})
    start(stack)
    reserve(stack)
    stack.until(lambda: reservation(stack).status.phase == AVAILABLE, "the hold", step=0.5)
    stack.until_ready(claims(stack)[0].name)
    gang = [f"g-{number}" for number in range(count)]
    for name in gang:
        pod = objects.pod(name, labels={"app": "later"}, containers=[_container("1")])
        pod["metadata"]["annotations"] = {names.GANG: "g", names.GANG_SIZE: str(size)}
        pod["spec"]["schedulerName"] = "koord-scheduler"
        stack.client.create(Pod.KIND, pod)

    def nodes() -> set[str]:
        return {stack.get(Pod, name, namespace="default").spec.node_name for name in gang} - {""}

    stack.until(lambda: len(nodes()) == size, "as many as it needs are bound", step=0.2)
    assert {claim.status.node_name for claim in claims(stack)} == nodes()
    assert stack.aws.free(odcr) == 3 - size
