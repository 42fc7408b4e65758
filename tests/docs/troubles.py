"""The trouble of each alert, made by the broker in a cluster: the commands of the alert's runbook show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, NamedTuple

import pytest
from structlog.testing import capture_logs

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import ConfigMap, Event, Node
from broker.apis.crds import KIND as CRD
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.capacityreservation import facts
from broker.controllers.lifecycle.losses import MASS_LOSS
from broker.kube import identity
from broker.kube.errors import NotFound
from broker.kube.manager import REASON as LEFT_OUT
from broker.oncall.metrics import REGISTRY
from broker.oncall.pod_reports import FAILED
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.bought import create_reservation, flavored
from tests.cluster.ome.dedicated import World
from tests.cluster.ome.reserved import (
    GPU,
    KIND,
    flavors_alone,
    machine,
    reservation_status,
    reserve,
    until_state,
)
from tests.cluster.stack import Stack
from tests.cluster.test_full_reservation import drift
from tests.cluster.test_losses import ready, vanish
from tests.cluster.test_outage import refuse
from tests.cluster.test_prometheus import led
from tests.cluster.test_provisioning import capacity, pods, start
from tests.cluster.test_provisioning import pool as team
from tests.cluster.test_standing import nodes, replicas
from tests.cluster.test_trial import DRY
from tests.cluster.test_unused_nodes import rounds, unused_round

SHORT, THROTTLED = "InsufficientInstanceCapacity", "RequestLimitExceeded"
NOT_LEADING: Final = "not leading: region is 'us-west-2' and was 'us-east-1'"
PANIC: Final = "panic: an unexpected exception in the broker"
NEXT: Final = "the next attempt is at"
DENIED: Final = (
    "You are not authorized to perform this operation. "
    "User: arn:aws:sts::123456789012:assumed-role/broker/1 is not authorized to perform: "
    "iam:PassRole on resource: arn:aws:iam::123456789012:role/blue-node because no identity-based policy "
    "allows the iam:PassRole action"
)


class Trouble(NamedTuple):
    """The function that makes the trouble, and the words of it that the page's output must have.

    `log` is a line of the broker's log that the page must quote: no command can print it here.
    """

    make: Callable[[Stack], None]
    words: tuple[str, ...]
    leads: bool = False  # whether a replica holds the Lease
    log: str = ""


def aws_throttled(stack: Stack) -> None:
    stack.node_class("training")
    stack.start(kubelets=False)
    stack.control.fault(
        action="CreateFleet", stage="launch", code=THROTTLED, message="Request limit exceeded.", times=-1
    )
    stack.claim("train-0", node_class="training", zones=(A,), capacity=(ON_DEMAND,))
    stack.until_waiting("train-0", THROTTLED)


def claims_waiting(stack: Stack) -> None:
    full = stack.aws.odcr("m5.large", A, 1)
    stack.aws.rival(full)
    stack.node_class("training", id_=full)
    stack.start(kubelets=False)
    stack.claim("train-0", node_class="training", zones=(A,))
    stack.until_waiting("train-0", "AllReservationsFull")


def pods_waiting(stack: Stack) -> None:
    """A pod of a NodePool that takes reservations alone, and its reservation is full."""
    full = stack.aws.odcr("m5.large", A, 1)
    stack.aws.rival(full)
    stack.node_class(id_=full)
    team(stack, template={"requirements": [capacity(RESERVED)]})
    start(stack)
    pods(stack, 1)
    stack.until_event("p-0", FAILED, kind="Pod", text="0 of 1")


def no_leader(stack: Stack) -> None:
    """A replica led and gave the Lease back; a replica of another Region may not lead."""
    stored = {
        "clusterUID": identity.cluster_uid(stack.client),
        "clusterName": stack.settings.cluster_name,
        "accountID": stack.provider().account_id(cached=False),
        "region": stack.settings.region,
    }
    with led(stack):
        identity.pin(stack.client, stored)
    with pytest.raises(identity.IdentityDiffers, match=NOT_LEADING):
        identity.compare(stack.client, {**stored, "region": "us-west-2"})


def launch_forbidden(stack: Stack) -> None:
    stack.node_class("training")
    stack.start(kubelets=False)
    stack.control.fault(
        action="RunInstances",
        code="UnauthorizedOperation",
        status=403,
        message=DENIED,
        match=DRY,
        times=-1,
    )
    stack.until_class(names.LAUNCHABLE, "True", name="training")
    stack.advance(6)
    stack.until_class(names.LAUNCHABLE, "False", name="training", reason="Unauthorized")


def mass_loss(stack: Stack) -> None:
    ready(stack, 4)
    vanish(stack)
    stack.until(lambda: len(stack.all(NodeClaim)) == 4, "only the lost claims remain")


def object_left_out(stack: Stack) -> None:
    """The definition in the cluster is a looser one: it accepts a number in a field of text."""
    name = f"{KIND.plural}.{KIND.group}"
    versions = stack.client.get(CRD, name)["spec"]["versions"]
    for version in versions:
        fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        fields["cohort"] = {"x-kubernetes-preserve-unknown-fields": True}
    stack.client.patch(CRD, name, {"spec": {"versions": versions}})
    stack.start(kubelets=False)
    create_reservation(stack, 1, cohort=5)
    until_left_out(stack)


def panic(stack: Stack) -> None:
    """A pass raises an exception that no code expects, for one reservation."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    flavors_alone(stack)
    flavored(stack)
    with pytest.MonkeyPatch.context() as patch, capture_logs() as logs:
        patch.setattr(facts, "_judgement", fail)
        stack.start(kubelets=False)
        reserve(stack, "training")
        until_left_out(stack)
    assert PANIC in {entry["event"] for entry in logs}


def until_left_out(stack: Stack) -> None:
    stack.until(lambda: any(event.reason == LEFT_OUT for event in stack.all(Event)), "an event names it")


def reservation_ending(stack: Stack) -> None:
    stack.aws.odcr("m5.large", A, 1)
    stack.aws.capacity_block(ends=timedelta(minutes=90))
    stack.start(kubelets=False)
    stack.until(lambda: len(stack.all(OnDemandCapacityReservation)) == 2, "both are mirrored")


def not_described(stack: Stack) -> None:
    stack.node_class("training", id_=stack.aws.odcr("m5.large", A, 1))
    stack.start(kubelets=False)
    stack.until_class(names.RESERVATIONS_RESOLVED, "True", name="training")
    refuse(stack)
    stack.until_class(names.RESERVATIONS_DESCRIBED, "False", name="training")


def shortage(stack: Stack) -> None:
    """Three refusals in a row: `step` counts the repeats."""

    def repeats() -> bool:
        try:
            stored = stack.get(ConfigMap, "capacity-broker-shortages", namespace=identity.NAMESPACE)
        except NotFound:
            return False
        return '"step": "2"' in stored.data["shortages"]

    stack.control.pool(instance_type="m5.large", zone=A, size=0)
    stack.node_class("training")
    stack.start(kubelets=False)
    stack.claim("train-0", node_class="training", zones=(A,), capacity=(ON_DEMAND,))
    stack.until_waiting("train-0", "InsufficientCapacity")
    stack.until(repeats, "the third refusal is stored", step=5.0)


def nodes_unused(stack: Stack) -> None:
    """Three rounds of nodes for pods that are deleted before they get there."""
    stack.node_class(preference="none")
    team(stack, disruption={"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]})
    start(stack)
    for number, prefix in enumerate(("first", "second", "third"), 1):
        unused_round(stack, prefix)
        stack.until(lambda n=number: rounds(stack).startswith(f"{n} "), "the round", step=1.0)  # type: ignore[misc]
        if number == 2:
            stack.advance(60)


def repair_stopped(stack: Stack) -> None:
    """Both nodes of a pool lose their network at once."""
    stack.node_class("web", id_=stack.aws.odcr(count=2))
    stack.node_pool("web", node_class="web")
    stack.start()
    for name in ("web-0", "web-1"):
        stack.claim(name, node_class="web", pool="web")
    stack.until_ready("web-0", "web-1")
    lost = {"type": "NetworkingReady", "status": "False", "reason": "IPAMDNotReady"}
    for node in stack.all(Node):
        listed = [*(item.wire() for item in node.status.conditions), lost]
        stack.edit(Node, node.name, {"status": {"conditions": listed}}, subresource="status")

    def stopped() -> bool:
        condition = stack.condition(NodePool, "web", names.REPAIR_ALLOWED)
        return condition is not None and condition.status == "False"

    stack.until(stopped, "repair stops", step=5.0)


def rollout_stopped(stack: Stack) -> None:
    """EC2 refuses the new image of two nodes of a full reservation."""
    stack.node_class("web", id_=stack.aws.odcr(count=2), zones=(A,))
    stack.node_pool("web", node_class="web")
    required = {"key": names.CAPACITY_TYPE, "operator": "In", "values": [RESERVED]}
    stack.edit(NodePool, "web", {"spec": {"template": {"spec": {"requirements": [required]}}}})
    stack.start()
    nodes(stack, RESERVED, "node-0", "node-1")
    stack.control.fault(
        action="CreateFleet",
        code="Unsupported",
        message="The boot mode of the AMI is not supported by the instance type",
        times=-1,
    )
    drift(stack, "node-0", "node-1")

    def stopped() -> bool:
        replicas(stack, 2)
        shown = stack.condition(NodePool, "web", "NodesReplaced")
        return shown is not None and shown.status == "False"

    stack.until(stopped, "the rollout stops", step=5.0)


def spending_cap_reached(stack: Stack) -> None:
    flavors_alone(stack)
    flavored(stack)
    create_reservation(stack, 3)
    stack.start(kubelets=False, reservation_creating_seconds=1.0, buy_dollars=1.0)
    until_state(stack, "Failed", step=1.0)


def hardware_unattributed(stack: Stack) -> None:
    flavors_alone(stack)
    flavored(stack)
    machine(stack, "gpu-0", "")
    labels = {names.INSTANCE_TYPE: "p5en.48xlarge", names.ZONE: A}
    stack.edit(Node, "gpu-0", {"metadata": {"labels": labels}})
    create_reservation(stack, 1)
    stack.start(kubelets=False)
    lost = {"resource": GPU, "why": "no flavor"}
    stack.until(
        lambda: REGISTRY.get_sample_value("capacity_reservation_unattributed", lost) == 8,
        "accelerators that count in no reservation",
        step=1.0,
    )


def reservation_pending(stack: Stack) -> None:
    stack.control.fault(
        action="CreateCapacityReservation", code=SHORT, message="Insufficient capacity.", times=-1
    )
    flavors_alone(stack)
    flavored(stack)
    create_reservation(stack, 3)
    stack.start(kubelets=False, buy_dollars=1000.0)
    stack.until(
        lambda: NEXT in reservation_status(stack).get("lifecycleDetail", ""),
        "the status has the next attempt",
        step=1.0,
    )


def utilization_high(stack: Stack) -> None:
    world = World(stack, 2, training=2)
    world.reserve("training")
    world.cluster("tenant", 2, "training")
    stack.start()
    world.until("tenant", "ACTIVE")
    until_state(stack, "Active", step=1.0)


# By the name of the alert.
TROUBLES: Final[Mapping[str, Trouble]] = {
    "CapacityBrokerAwsThrottled": Trouble(aws_throttled, (f"training   {THROTTLED}",)),
    "CapacityBrokerClaimsWaiting": Trouble(claims_waiting, ("training   AllReservationsFull", "0 of 1")),
    "CapacityBrokerHasNoLeader": Trouble(
        no_leader, ("HOLDER   RENEWED\n<none>", '"region":"us-east-1"'), log=NOT_LEADING
    ),
    "CapacityBrokerLaunchForbidden": Trouble(
        launch_forbidden, ("LAUNCHABLE\ntraining   <none>      True       False", "lacks iam:PassRole")
    ),
    "CapacityBrokerMassLoss": Trouble(mass_loss, (f"False    {MASS_LOSS}", "EC2 does not list instance")),
    "CapacityBrokerObjectLeftOut": Trouble(object_left_out, ("training   the broker takes", "spec.cohort")),
    "CapacityBrokerPodsWaiting": Trouble(pods_waiting, ("<none>   Unschedulable", "NodePool team", "0 of 1")),
    "CapacityBrokerPanic": Trouble(panic, ("replica-0", "the broker failed on it"), leads=True, log=PANIC),
    "CapacityBrokerReservationEnding": Trouble(
        reservation_ending, ("p5.48xlarge   us-east-1a   active   1       1      2026-11-23T03:00:00Z",)
    ),
    "CapacityBrokerReservationsNotDescribed": Trouble(
        not_described, ("DESCRIBED   RESOLVED   LAUNCHABLE\ntraining   False", "UnauthorizedOperation")
    ),
    "CapacityBrokerShortage": Trouble(shortage, (SHORT, '"step": "2"', "training   InsufficientCapacity")),
    "CapacityBrokerNodesUnused": Trouble(
        nodes_unused, ("3 rounds of nodes", "pod default/third-0, which is gone")
    ),
    "CapacityBrokerRepairStopped": Trouble(
        repair_stopped, ("2 of 2 nodes of NodePool web are broken", "NetworkingReady   IPAMDNotReady")
    ),
    "CapacityBrokerRolloutStopped": Trouble(
        rollout_stopped, ("web    False      LaunchFailed", "web-1a2b3   node-0/")
    ),
    "CapacityBrokerSpendingCapReached": Trouble(spending_cap_reached, ("SpendingCapReached",)),
    "CapacityReservationFailed": Trouble(spending_cap_reached, ("training   Failed", "InsufficientCapacity")),
    "CapacityReservationHardwareUnattributed": Trouble(
        hardware_unattributed, ("p5.48xlarge topology", "gpu-0   8      p5en.48xlarge")
    ),
    "CapacityReservationPending": Trouble(reservation_pending, ("training   Creating", NEXT)),
    "CapacityReservationUtilizationHigh": Trouble(
        utilization_high, ("TOTAL   USED\ndefault     training   Active   16      16", '"name":"tenant"')
    ),
}
