"""One object never blocks the others, whatever its kind and wherever the broker fails on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from broker.apis import names
from broker.apis.coordination import Lease
from broker.apis.core import Event, Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import ResourceFlavor
from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers import reservation_reads
from broker.controllers.launch import launcher
from broker.controllers.lifecycle.registration import REGISTRATION_TIMEOUT
from broker.controllers.nodeclass import controller as nodeclass
from broker.controllers.nodereservation import occupancy
from broker.controllers.provisioning import provisioner
from broker.controllers.scheduler import view
from broker.kube import cache, lean
from broker.kube.errors import ApiError
from broker.kube.manager import LEFT_OUT, REASON
from broker.reservations.spec import JudgedSpecs
from tests.cluster import poison
from tests.cluster.everything import bodies, pod_groups, put, unserved
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import SETTINGS, Stack
from tests.cluster.test_losses import RELIST, vanish

UNDECODABLE, POISON = "undecodable", "poison"
# Each place where one object is judged or translated for a pass over many.
TRANSLATIONS: Mapping[tuple[Any, str], tuple[type[Object], ...]] = {
    (launcher, "planned"): (NodeClaim,),
    (nodeclass, "launch_class"): (EC2NodeClass,),
    (occupancy, "node_info"): (Node,),
    (provisioner, "served"): (NodePool,),
    (view, "node_info"): (Node,),
    (view, "pod_info"): (Pod,),
    (JudgedSpecs, "of"): (CapacityReservation, ClusterCapacityReservation),
    (reservation_reads, "held"): (DedicatedAICluster,),
}


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that cannot be decoded or translated, as their names state."""

    def decode(model: type[Object], raw: Mapping[str, Any]) -> Object:
        if raw["metadata"]["name"] == UNDECODABLE:
            raise RecursionError("maximum recursion depth exceeded")
        return lean.decode(model, raw)

    def failing(translate: Callable[..., Any]) -> Callable[..., Any]:
        def translated(*args: Any, **more: Any) -> Any:
            if any(isinstance(arg, Object) and arg.name == POISON for arg in args):
                raise RuntimeError("poison")
            return translate(*args, **more)

        return translated

    monkeypatch.setattr(cache, "decode", decode)
    for where, name in TRANSLATIONS:
        monkeypatch.setattr(where, name, failing(getattr(where, name)))


@pytest.fixture
def pod_groups_served(stack: Stack) -> Iterator[None]:
    with pod_groups(stack):
        yield


@pytest.mark.covers("SAF-50")
@pytest.mark.usefixtures("kueue", "pod_groups_served")
@pytest.mark.both_servers
def test_an_object_that_fails_anywhere_is_left_out_and_reported_and_the_others_go_on(
    stack: Stack, hostile: None
) -> None:
    odcr = stack.aws.odcr(count=4)
    stack.node_class("good", id_=odcr)
    broker, scheduler = stack.start(kubelets=False), stack.start_scheduler()
    stack.claim("before", node_class="good")
    stack.until_launched("before")

    kinds = bodies(stack)
    watched = {informer.cache.model for part in (broker, scheduler) for informer in part.informers}
    assert {model.__name__ for model in watched} - {model.__name__ for model in kinds} == {
        "CustomResourceDefinition"
    }
    kinds = {model: body for model, body in kinds.items() if model not in unserved(stack)}
    put(stack, ResourceFlavor, kinds[ResourceFlavor], "h100")
    put(stack, CapacityReservation, kinds[CapacityReservation], "training")
    for model, body in kinds.items():
        healthy = ("healthy",) if model in (Node, DedicatedAICluster) else ()
        for name in (*healthy, UNDECODABLE, POISON):
            try:
                put(stack, model, body, name)
            except ApiError as error:
                raise AssertionError(f"{model.__name__}: {error}") from error

    def reported(name: str) -> set[str]:
        return {
            event.involved_object.kind
            for event in stack.all(Event)
            if event.reason == REASON and event.involved_object.name == name
        }

    everything = {model.KIND.kind for model in kinds if model is not Lease}  # read by its name
    read = {model.KIND.kind for models in TRANSLATIONS.values() for model in models}
    stack.until(lambda: reported(UNDECODABLE) == everything, "the undecodable are reported")
    stack.until(lambda: read <= reported(POISON), "the poison is reported", step=1.0)
    stack.claim("beside", node_class="good")
    stack.until_launched("beside")
    assert all(broker.ready().values())
    assert left_out(NodeClaim) >= 1

    stack.stop()
    fresh = stack.start(kubelets=False)
    stack.start_scheduler()
    stack.claim("after", node_class="good")
    stack.until_launched("after")
    assert all(fresh.ready().values())
    assert len(stack.aws.instances()) == 3


def left_out(model: type[Object]) -> int:
    return int(LEFT_OUT.labels(model.KIND.resource, "pass")._value.get())


def make_odd(stack: Stack, node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the Node cannot be decoded, while it has this annotation."""

    def decode(model: type[Object], raw: Mapping[str, Any]) -> Object:
        if model is Node and raw["metadata"].get("annotations", {}).get("test") == "odd":
            raise RecursionError("poison")
        return lean.decode(model, raw)

    monkeypatch.setattr(cache, "decode", decode)
    stack.edit(Node, node, {"metadata": {"annotations": {"test": "odd"}}})


@pytest.fixture(params=["pass", "decoding"])
def leave_out(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Stack, Node], None]:
    """Leaves out a Node, as after a pass that failed on it or after a failed decoding."""

    def by_pass(stack: Stack, node: Node) -> None:
        broker = stack.broker
        assert broker is not None
        poison.leave_out(stack, broker.read.nodes.cache, Node, node.name)

    def by_decoding(stack: Stack, node: Node) -> None:
        make_odd(stack, node.name, monkeypatch)
        stack.until_event(node.name, REASON, kind="Node")

    return by_pass if request.param == "pass" else by_decoding


def alone(stack: Stack, **more: Any) -> Node:
    """The Node of a claim c-0; from now on it is not written."""
    stack.node_class(preference="none")
    stack.start()
    stack.claim("c-0", capacity=(ON_DEMAND,), **more)
    stack.until_ready("c-0")
    stack.until_shown("c-0")
    name = stack.get(NodeClaim, "c-0").status.node_name
    stack.until(lambda: names.CAPACITY_TYPE in stack.get(Node, name).labels, "the Node has its labels")
    stack.kubelets.stop()
    return stack.get(Node, name)


def reason(stack: Stack, type_: str) -> str:
    condition = stack.claim_condition("c-0", type_)
    return condition.reason if condition is not None else ""


def test_claim_with_a_left_out_node_is_terminated_only_once_it_can_be_drained(
    stack: Stack, leave_out: Callable[[Stack, Node], None]
) -> None:
    node = alone(stack)
    stack.budget("all", app="kept")
    stack.pod("kept", node=node.name, labels={"app": "kept"})
    leave_out(stack, node)
    stack.delete(NodeClaim, "c-0")
    stack.until(
        lambda: reason(stack, names.DRAINED) == "NodeLeftOut", "its condition has the reason of the wait"
    )
    stack.advance(5.0)
    stack.passes()
    condition = stack.claim_condition("c-0", names.DRAINED)
    assert condition is not None and node.name in condition.message and "poison" in condition.message
    assert stack.calls("TerminateInstances") == 0
    stack.edit(Node, node.name, {"metadata": {"annotations": {"test": "mended"}}})
    stack.until(lambda: reason(stack, names.DRAINED) == "Draining", "it is drained", step=2.0)
    assert stack.calls("TerminateInstances") == 0
    stack.delete(Pod, "kept", namespace="default")
    stack.until(lambda: stack.find(NodeClaim, "c-0") is None, "it ends", step=2.0)
    assert not stack.aws.instances()


def test_grace_period_bounds_the_wait_for_a_node_that_is_left_out(
    stack: Stack, leave_out: Callable[[Stack, Node], None]
) -> None:
    node = alone(stack, terminationGracePeriod="1m")
    leave_out(stack, node)
    stack.delete(NodeClaim, "c-0")
    stack.until(
        lambda: reason(stack, names.DRAINED) == "NodeLeftOut", "its condition has the reason of the wait"
    )
    assert stack.calls("TerminateInstances") == 0
    stack.advance(61.0)
    stack.until(lambda: stack.find(NodeClaim, "c-0") is None, "it ends", step=2.0)
    assert not stack.aws.instances()


def test_claim_that_ec2_does_not_list_is_kept_while_its_node_is_left_out(
    stack: Stack, leave_out: Callable[[Stack, Node], None]
) -> None:
    node = alone(stack)
    leave_out(stack, node)
    vanish(stack)
    assert not stack.get(NodeClaim, "c-0").deleting
    assert reason(stack, names.INSTANCE_LISTED) == "NodeLeftOut"
    assert stack.calls("TerminateInstances") == 0
    stack.edit(Node, node.name, {"metadata": {"annotations": {"test": "mended"}}})
    stack.advance(RELIST)
    stack.until(lambda: reason(stack, names.INSTANCE_LISTED) == "NodeReady", "the Node is Ready")


def test_claim_is_kept_at_the_registration_timeout_while_its_node_is_left_out(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(model: type[Object], raw: Mapping[str, Any]) -> Object:
        if model is Node and raw["metadata"].get("annotations", {}).get("test") != "mended":
            raise RecursionError("poison")
        return lean.decode(model, raw)

    monkeypatch.setattr(cache, "decode", decode)
    stack.node_class(preference="none")
    stack.start()
    stack.claim("c-0", capacity=(ON_DEMAND,))
    stack.until(lambda: reason(stack, names.REGISTERED_CONDITION) == "NodeLeftOut", "it is kept", step=60.0)
    (node,) = stack.all(Node)
    condition = stack.claim_condition("c-0", names.REGISTERED_CONDITION)
    assert condition is not None and node.name in condition.message and "poison" in condition.message
    stack.advance(REGISTRATION_TIMEOUT.total_seconds() + 60.0)
    stack.passes()
    assert not stack.get(NodeClaim, "c-0").deleting and stack.calls("TerminateInstances") == 0
    stack.edit(Node, node.name, {"metadata": {"annotations": {"test": "mended"}}})
    stack.until_ready("c-0")


def test_instance_waits_for_the_claim_that_is_left_out_while_it_is_launched(stack: Stack) -> None:
    stack.node_class(preference="none")
    broker = stack.start(kubelets=False)

    def leave_out() -> None:
        broker.read.claims.cache.leave_out(stack.get(NodeClaim, "c-0"), "poison")

    stack.after_launch(leave_out)
    stack.claim("c-0", capacity=(ON_DEMAND,))
    stack.until_event("c-0", REASON, kind="NodeClaim")
    for _ in range(4):
        stack.advance(SETTINGS.orphan_grace_seconds)
        stack.passes(1)
    assert len(stack.aws.instances()) == 1 and stack.calls("TerminateInstances") == 0
    stack.edit(NodeClaim, "c-0", {"metadata": {"annotations": {"test": "mended"}}})
    stack.until_launched("c-0")
    assert len(stack.aws.instances()) == 1
