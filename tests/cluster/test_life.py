"""A claim's life: launched, joined, ready, drained, ended; the state in EC2 and Kubernetes at each step."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition, is_true
from broker.kube.client import Request
from broker.kube.errors import from_status
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack

FINALIZER = names.TERMINATION_FINALIZER
SCRATCH = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def node_of(stack: Stack, name: str) -> Node:
    return stack.get(Node, stack.get(NodeClaim, name).status.node_name)


@pytest.mark.covers("KRP-23")
def test_finalizer_is_on_the_claim_before_the_call_to_ec2(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    seen: list[tuple[str, ...]] = []
    stack.before_launch(lambda: seen.append(stack.get(NodeClaim, "c-0").metadata.finalizers))
    stack.claim()
    stack.start()
    stack.until_launched("c-0")
    assert seen == [(FINALIZER,)]


@pytest.mark.covers("KRP-23")
def test_without_its_finalizer_nothing_is_launched(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.claim(capacity=(ON_DEMAND,))
    stack.tap.lose(lambda r: r.method == "PATCH" and r.path.endswith("/nodeclaims/c-0"))
    stack.start()
    stack.passes()
    assert stack.calls("CreateFleet") == 0
    stack.tap.heal()
    stack.until_launched("c-0")
    assert stack.calls("CreateFleet") == 1


@pytest.mark.covers("KRP-23", "KRP-33")
def test_claim_shows_the_launched_instance(stack: Stack) -> None:
    odcr = stack.aws.odcr("g5.12xlarge")
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim(types=("g5.12xlarge",), labels={"example.com/team": "training"})
    stack.until_launched("c-0")
    stack.until_shown("c-0")
    claim, instance = stack.get(NodeClaim, "c-0"), stack.instance("c-0")
    assert claim.status.provider_id == f"aws:///{A}/{instance['InstanceId']}"
    assert claim.status.image_id == instance["ImageId"]
    assert claim.status.capacity["cpu"] == "48"
    assert claim.status.capacity["nvidia.com/gpu"] == "4"
    assert claim.status.allocatable["nvidia.com/gpu"] == "4"
    assert claim.status.allocatable["cpu"] != claim.status.capacity["cpu"]
    labels = claim.labels
    assert labels["example.com/team"] == "training"
    assert labels[names.INSTANCE_TYPE] == "g5.12xlarge"
    assert labels[names.ZONE] == A
    assert labels[names.ZONE_ID] == instance["Placement"]["AvailabilityZoneId"]
    assert labels[names.CAPACITY_TYPE] == RESERVED
    assert labels[names.RESERVATION_ID] == odcr
    assert labels[names.RESERVATION_TYPE] == "default"
    assert labels[names.RESERVATION_INTERRUPTIBLE] == "false"
    assert FINALIZER in claim.metadata.finalizers


@pytest.mark.covers("KRP-23")
def test_it_is_launched_then_registered_then_initialized(stack: Stack) -> None:
    stack.node_class(preference="none", zones=(A,))
    stack.start(kubelets=False)
    stack.claim(
        capacity=(ON_DEMAND,),
        labels={"example.com/team": "training"},
        annotations={"example.com/note": "hands off"},
        taints=[{"key": "example.com/gpu", "value": "true", "effect": "NoSchedule"}],
        startupTaints=[{"key": "example.com/starting", "effect": "NoExecute"}],
    )
    stack.until_launched("c-0")
    stack.until_shown("c-0")
    waits = stack.until(
        lambda: stack.claim_condition("c-0", names.REGISTERED_CONDITION), "a word on registration"
    )
    assert waits is not None and (waits.status, waits.reason) == ("Unknown", "NodeNotFound")
    assert stack.get(NodeClaim, "c-0").status.provider_id in waits.message

    stack.kubelets.step()
    stack.until(lambda: is_true(stack.get(NodeClaim, "c-0"), names.REGISTERED_CONDITION), "registered")
    claim, node = stack.get(NodeClaim, "c-0"), node_of(stack, "c-0")
    assert claim.status.node_name == node.name
    assert FINALIZER in node.metadata.finalizers
    [owner] = node.metadata.owner_references
    assert (owner.kind, owner.name, owner.uid) == ("NodeClaim", "c-0", claim.uid)
    assert node.labels[names.REGISTERED] == "true"
    assert node.annotations["example.com/note"] == "hands off"
    assert {key: node.labels[key] for key in claim.labels} == claim.labels
    assert {(t.key, t.value, t.effect) for t in node.spec.taints} >= {
        ("example.com/gpu", "true", "NoSchedule"),
        ("example.com/starting", "", "NoExecute"),
    }
    assert names.UNREGISTERED_TAINT not in {t.key for t in node.spec.taints}
    assert names.INITIALIZED not in node.labels

    stack.kubelets.step()  # ready
    stack.until(
        lambda: (
            (c := stack.claim_condition("c-0", names.INITIALIZED_CONDITION))
            and c.reason == "StartupTaintsExist"
        ),
        "it waits for its startup taint",
    )
    kept = [t.wire() for t in node_of(stack, "c-0").spec.taints if t.key != "example.com/starting"]
    stack.edit(Node, node.name, {"spec": {"taints": kept}})
    stack.until_ready("c-0")
    assert node_of(stack, "c-0").labels[names.INITIALIZED] == "true"
    assert [e.reason for e in stack.events("c-0") if e.type == "Normal"].count("Initialized") <= 1
    steps = [condition(stack.get(NodeClaim, "c-0").status.conditions, t) for t in ("Launched", "Registered")]
    assert all(step is not None and step.observed_generation == 1 for step in steps)


@pytest.mark.covers("KRP-23")
def test_two_nodes_of_one_instance_are_reported_and_neither_is_taken(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start(kubelets=False)
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_launched("c-0")
    provider_id = stack.get(NodeClaim, "c-0").status.provider_id
    stack.stop()
    for name in ("n-1", "n-2"):
        stack.client.create(Node.KIND, {"metadata": {"name": name}, "spec": {"providerID": provider_id}})
    stack.start(kubelets=False)
    condition = stack.until(
        lambda: (c := stack.claim_condition("c-0", names.REGISTERED_CONDITION)) and c.status == "False" and c,
        "Registered=False",
    )
    assert condition and condition.reason == "MultipleNodesFound" and "n-1, n-2" in condition.message
    stack.delete(Node, "n-2")
    stack.until(lambda: is_true(stack.get(NodeClaim, "c-0"), names.REGISTERED_CONDITION), "registered")
    assert stack.get(NodeClaim, "c-0").status.node_name == "n-1"


@pytest.mark.covers("KRP-23")
def test_claim_without_a_node_ends_with_its_instance(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start(kubelets=False)
    began = stack.clock.monotonic()
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_launched("c-0")
    stack.until(lambda: stack.find(NodeClaim, "c-0") is None, "c-0 gone", step=60)
    assert stack.clock.monotonic() - began >= 15 * 60
    stack.until(lambda: not stack.aws.instances(), "the instance terminated")
    stack.until_event("c-0", "RegistrationTimeout")


@pytest.mark.covers("KRP-23")
@pytest.mark.parametrize("budgets", [[0], [1, 1]], ids=["spent", "several"])
def test_delete_drains_then_terminates_then_lets_go(stack: Stack, budgets: list[int]) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim()
    stack.until_ready("c-0")
    node = node_of(stack, "c-0")
    stack.pod("guarded", node=node.name, labels={"app": "db"})
    stack.pod("others", node=node.name)
    stack.pod("daemon", node=node.name, tolerations=[{"operator": "Exists"}])
    for number, allowed in enumerate(budgets):
        stack.budget(f"db-{number}", app="db", allowed=allowed)
    stack.until(lambda: stack.find(Pod, "guarded", namespace="default"), "the pod")
    stack.delete(NodeClaim, "c-0")

    condition = stack.until(
        lambda: (c := stack.claim_condition("c-0", names.DRAINED)) and "1 pod left" in c.message and c,
        "draining",
    )
    assert condition and "guarded" in condition.message
    stack.until_event("c-0", "EvictionBlocked")
    assert stack.find(Pod, "others", namespace="default") is None
    taints = {(t.key, t.effect) for t in node_of(stack, "c-0").spec.taints}
    assert (names.DISRUPTED_TAINT, "NoSchedule") in taints
    assert len(stack.aws.instances()) == 1
    assert FINALIZER in stack.get(NodeClaim, "c-0").metadata.finalizers

    stack.delete(Pod, "guarded", namespace="default")
    stack.until_gone(NodeClaim, "c-0")
    assert not stack.aws.instances()
    stack.until_gone(Node, node.name)
    assert stack.aws.free(odcr) == 1
    assert stack.find(Pod, "daemon", namespace="default") is not None


@pytest.mark.covers("KRP-23")
@pytest.mark.parametrize("status", [400, 403])
def test_a_pod_whose_eviction_a_webhook_refuses_holds_up_the_drain_alone(stack: Stack, status: int) -> None:
    stack.node_class(preference="none")
    stack.start()
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_ready("c-0")
    for name in ("a-guarded", "others"):
        stack.pod(name, node=node_of(stack, "c-0").name)

    def refuse(_: Request) -> None:
        raise from_status({"message": "the webhook denied the request: the shard moves"}, code=status)

    stack.tap.on(lambda request: request.path.endswith("/a-guarded/eviction"), refuse, times=-1)
    stack.delete(NodeClaim, "c-0")
    stack.until(lambda: stack.find(Pod, "others", namespace="default") is None, "the other pod goes")
    stack.until_event("c-0", "EvictionBlocked", text="the shard moves")
    left = "1 pod left"
    drained = stack.until(
        lambda: (c := stack.claim_condition("c-0", names.DRAINED)) and left in c.message and c, "draining"
    )
    assert drained and "default/a-guarded first" in drained.message
    assert len(stack.aws.instances()) == 1
    stack.tap.heal()
    stack.until_gone(NodeClaim, "c-0")


@pytest.mark.covers("KRP-23")
def test_a_refused_step_is_told_on_the_claim_and_holds_up_no_other(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    for name in ("c-0", "c-1"):
        stack.claim(name, capacity=(ON_DEMAND,))
        stack.until_ready(name)
    closed = f"/nodes/{node_of(stack, 'c-0').name}"

    def refuse(_: Request) -> None:
        raise from_status({"message": "the webhook denied the request: no taints"}, code=403)

    stack.tap.on(
        lambda r: r.method == "PATCH" and r.path.endswith((closed, "/nodeclaims/c-2")), refuse, times=-1
    )
    stack.delete(NodeClaim, "c-0")
    stack.delete(NodeClaim, "c-1")
    stack.until_gone(NodeClaim, "c-1")
    stack.until_event("c-0", "StepRefused", text="no taints")
    stack.claim("c-2", capacity=(ON_DEMAND,))
    stack.claim("c-3", capacity=(ON_DEMAND,))
    stack.until_ready("c-3")
    assert "no taints" in stack.until_waiting("c-2", "LaunchNotRecorded").message
    stack.tap.heal()
    stack.until_gone(NodeClaim, "c-0")
    stack.until_ready("c-2")


@pytest.mark.covers("KRP-23")
def test_a_termination_grace_period_ends_the_drain(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    stack.claim(capacity=(ON_DEMAND,), terminationGracePeriod="10m")
    stack.until_ready("c-0")
    stack.pod("guarded", node=node_of(stack, "c-0").name, labels={"app": "db"})
    stack.budget("db", app="db")
    stack.delete(NodeClaim, "c-0")
    stack.until_event("c-0", "EvictionBlocked")
    stack.advance(5 * 60)
    stack.passes()
    assert len(stack.aws.instances()) == 1
    stack.advance(6 * 60)
    stack.until_gone(NodeClaim, "c-0")
    assert not stack.aws.instances()


@pytest.mark.covers("KRP-23")
@pytest.mark.parametrize("detached", [True, False])
def test_instance_ends_once_the_volumes_of_its_pods_are_detached(stack: Stack, detached: bool) -> None:
    """Else the pod's next node waits for its volume: after six minutes Kubernetes detaches it in any case."""
    stack.node_class(preference="none")
    stack.start()
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_ready("c-0")
    node = node_of(stack, "c-0").name

    def attached(*volumes: str) -> None:
        names_ = [{"name": f"kubernetes.io/csi/ebs.csi.aws.com^{volume}"} for volume in volumes]
        body = {"status": {"volumesAttached": names_}}
        stack.client.patch(Node.KIND, node, body, subresource="status")

    stack.pod(
        "agent",
        node=node,
        tolerations=[{"operator": "Exists"}],
        volumes=[
            {"name": "own", "persistentVolumeClaim": {"claimName": "logs"}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": SCRATCH}}},
        ],
    )
    attached("vol-logs", "vol-scratch", "vol-db")
    stack.passes()
    stack.delete(NodeClaim, "c-0")
    stack.until(
        lambda: (
            getattr(stack.claim_condition("c-0", names.VOLUMES_DETACHED), "message", "")
            == f"1 volume is attached to node {node}"
        ),
        "the claim waits for the volume that its pods left behind",
    )
    stack.advance(5 * 60)
    stack.passes()
    assert len(stack.aws.instances()) == 1
    if detached:
        attached("vol-logs", "vol-scratch")
    else:
        stack.advance(61)
    stack.until_gone(NodeClaim, "c-0")
    assert not stack.aws.instances()


@pytest.mark.covers("KRP-23")
def test_a_protected_pod_gets_its_own_grace_before_the_drain_ends(stack: Stack) -> None:
    """As Karpenter's documentation of terminationGracePeriod promises: such a pod can still save its work."""
    stack.node_class(preference="none")
    stack.start()
    stack.claim(capacity=(ON_DEMAND,), terminationGracePeriod="10m")
    stack.until_ready("c-0")
    stack.pod("training", node=node_of(stack, "c-0").name, terminationGracePeriodSeconds=120)
    stack.kubelets.stop()  # the pod takes its time to end
    protected = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: "true"}}}
    stack.client.patch(Pod.KIND, "training", protected, namespace="default")
    stack.passes()
    stack.delete(NodeClaim, "c-0")
    waits = "default/training carries karpenter.sh/do-not-disrupt"
    stack.until(lambda: waits in getattr(stack.claim_condition("c-0", names.DRAINED), "message", ""), "waits")
    stack.advance(7 * 60)
    stack.passes()
    assert not stack.get(Pod, "training", namespace="default").deleting
    stack.advance(70)
    stack.until(
        lambda: stack.get(Pod, "training", namespace="default").deleting,
        "the pod is evicted two minutes before the end",
    )
    assert len(stack.aws.instances()) == 1


@pytest.mark.covers("KRP-23")
def test_the_finalizer_stays_while_ec2_refuses_to_terminate(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_ready("c-0")
    stack.control.fault(action="TerminateInstances", code="UnauthorizedOperation", status=403, times=-1)
    stack.delete(NodeClaim, "c-0")
    stack.until(lambda: stack.calls("TerminateInstances") >= 2, "it is tried again")
    assert FINALIZER in stack.get(NodeClaim, "c-0").metadata.finalizers
    assert len(stack.aws.instances()) == 1
    stack.control.clear_faults()
    stack.until_gone(NodeClaim, "c-0")
    assert not stack.aws.instances()


@pytest.mark.covers("KRP-23")
def test_a_deleted_node_takes_its_claim_and_instance_along(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_ready("c-0")
    node = node_of(stack, "c-0").name
    stack.delete(Node, node)
    stack.until_gone(NodeClaim, "c-0")
    stack.until_gone(Node, node)
    assert not stack.aws.instances()


@pytest.mark.covers("KRP-23")
def test_an_instance_that_ends_by_itself_takes_its_claim_along(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_ready("c-0")
    stack.kubelets.stop()  # otherwise the Node may go first, and the claim with it
    with capture_logs() as logs:
        stack.aws.ec2.terminate_instances(InstanceIds=[stack.get(NodeClaim, "c-0").instance_id])
        stack.advance(61)
        stack.until_gone(NodeClaim, "c-0")
        lines = stack.until(
            lambda: [entry for entry in [*logs] if entry["event"] == "claim ends: its instance is gone"],
            "it is logged",
        )
    event = stack.until_event("c-0", "InstanceGone")
    assert "ended in EC2, and not by the broker" in event.message
    why = "EC2 lists it as ended: Client.UserInitiatedShutdown: User initiated shutdown"
    assert [(entry["claim"], entry["why"]) for entry in lines] == [("c-0", why)]


@pytest.mark.covers("KRP-23")
@pytest.mark.both_servers
def test_pods_on_a_node_without_instance_hold_nothing_up(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_ready("c-0")
    claim, node = stack.get(NodeClaim, "c-0"), node_of(stack, "c-0")
    stack.kubelets.stop()
    stack.pod("guarded", node=node.name, labels={"app": "db"})
    stack.budget("db", app="db")
    stack.aws.ec2.terminate_instances(InstanceIds=[claim.instance_id])
    lost = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "no heartbeat"}
    stack.edit(Node, node.name, {"status": {"conditions": [lost]}}, subresource="status")
    stack.delete(NodeClaim, "c-0")
    stack.until_gone(NodeClaim, "c-0")
    stack.until_gone(Node, node.name)


@pytest.mark.covers("KRP-23")
def test_a_claim_deleted_while_it_is_launched_leaves_nothing_behind(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.before_launch(lambda: stack.delete(NodeClaim, "c-0"))
    stack.claim(capacity=(ON_DEMAND,))
    stack.start()
    stack.until_gone(NodeClaim, "c-0")
    stack.until(lambda: not stack.aws.instances(), "its instance terminated")
    assert stack.calls("CreateFleet") == 1
    stack.until(lambda: not stack.all(Node), "its node gone")


@pytest.mark.covers("KRP-23")
def test_a_claim_deleted_while_it_waits_goes_at_once(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.aws.rival(odcr)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim()
    stack.until_waiting("c-0", "AllReservationsFull")
    stack.delete(NodeClaim, "c-0")
    stack.until_gone(NodeClaim, "c-0")
    assert stack.calls("CreateFleet") == 0


@pytest.mark.covers("KRP-23")
@pytest.mark.both_servers
def test_a_restarted_broker_drains_before_it_terminates(stack: Stack) -> None:
    """Until the broker knows nodes and pods, a terminating claim looks like one without a node."""
    stack.node_class(preference="none")
    stack.start()
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_ready("c-0")
    stack.pod("guarded", node=node_of(stack, "c-0").name, labels={"app": "db"})
    stack.budget("db", app="db")
    stack.stop()
    stack.delete(NodeClaim, "c-0")

    def slow(request: Request) -> bool:
        return request.method == "GET" and request.path in ("/api/v1/pods", "/api/v1/nodes")

    stack.tap.lose(slow)
    stack.start()
    stack.until(lambda: stack.tap.lost >= 4, "pods and nodes requested")
    assert stack.calls("TerminateInstances") == 0
    stack.tap.heal()
    stack.until_event("c-0", "EvictionBlocked")
    assert stack.calls("TerminateInstances") == 0
    assert len(stack.aws.instances()) == 1
    stack.delete(Pod, "guarded", namespace="default")
    stack.until_gone(NodeClaim, "c-0")
    assert not stack.aws.instances()


@pytest.mark.covers("KRP-23")
def test_an_instance_that_ec2_does_not_show_yet_does_not_outlive_its_claim(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    stack.control.lag(3600.0)
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_launched("c-0")
    instance = stack.get(NodeClaim, "c-0").instance_id
    stack.delete(NodeClaim, "c-0")
    stack.until(lambda: stack.calls("TerminateInstances"), "an end requested", step=0.5)
    assert stack.get(NodeClaim, "c-0").deleting
    stack.control.lag(0.0)
    stack.until(lambda: stack.find(NodeClaim, "c-0") is None, "c-0 gone", step=0.5)
    assert stack.aws.instance(instance)["State"]["Name"] == "terminated"
