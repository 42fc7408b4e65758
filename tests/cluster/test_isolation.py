"""One object never blocks the others, whatever its kind and wherever the broker fails on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import cycle
from typing import Any

import pytest

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.coordination import Lease
from broker.apis.core import Event, Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import ResourceFlavor
from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.lifecycle.registration import REGISTRATION_TIMEOUT
from broker.kube import cache, controller, lean, singleton
from broker.kube.controller import ReconcileOutcome, Result, attempt
from broker.kube.errors import ApiError
from broker.kube.isolation import LEFT_OUT, REASON
from broker.kube.singleton import Singleton
from tests.cluster.everything import bodies, pod_groups, put, unserved
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import SETTINGS, Stack
from tests.cluster.test_losses import RELIST, vanish

# The part of every Object that a cache and an event need.
OPEN = frozenset({"metadata", "name", "namespace", "uid", "key", "labels", "deleting", "KIND", "wire"})
UNDECODABLE, POISON = "undecodable", "poison"
# Kinds that passes read here; the others are read for one object at a time, or if an object refers to them.
READ: tuple[type[Object], ...] = (
    NodeClaim,
    EC2NodeClass,
    NodePool,
    Node,
    CapacityReservation,
    ClusterCapacityReservation,
    DedicatedAICluster,
    ResourceFlavor,
    OnDemandCapacityReservation,
)


@lru_cache
def _poisoned(model: type[Object]) -> type[Object]:
    """Objects of the kind that raise as soon as a pass judges or translates them.

    The threads that fill the caches read them as any other object.
    """

    def read(self: Object, name: str) -> Any:
        if name in OPEN or name.startswith("__") or threading.current_thread().name.startswith("watch "):
            return model.__getattribute__(self, name)
        raise RuntimeError(f"poison: {name}")

    return type(model.__name__, (model,), {"__getattribute__": read})


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that cannot be decoded or are poisoned, as their names state."""

    def decode(model: type[Object], raw: Mapping[str, Any]) -> Object:
        name = raw["metadata"]["name"]
        if name == UNDECODABLE:
            raise RecursionError("maximum recursion depth exceeded")
        decoded = lean.decode(model, raw)
        if name == POISON:
            object.__setattr__(decoded, "__class__", _poisoned(model))
        return decoded

    monkeypatch.setattr(cache, "decode", decode)


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
    watched = {informer.cache._model for part in (broker, scheduler) for informer in part.informers}
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
    read = {model.KIND.kind for model in READ}
    stack.until(lambda: reported(UNDECODABLE) == everything, "the undecodable are reported")
    # A watch handler that fails wakes no pass: the next one at its time reads the object.
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


WAYS = ("judged", "translated", "beside")


def convert(text: str) -> int:
    """A converter that supports only text."""
    raise RecursionError(f"{text[:1]}... has no end")


def translate(texts: Sequence[str]) -> list[int]:
    return [*map(convert, texts)]


class Walk:
    """Makes each pass read all objects before its own work, and fail on the selected ones. It fails while
    the object is judged, while a value made of it is translated, or while other objects are in scope too."""

    def __init__(self) -> None:
        self.caches: Mapping[str, Sequence[cache.Cache[Any]]] = {}  # by pass
        self.fails: dict[tuple[str, str], tuple[str, str]] = {}  # object → the pass that fails, and how

    def attempt(self, name: str, work: Callable[[], Result | None], **more: Any) -> ReconcileOutcome:
        def reads_first() -> Result | None:
            self.read(name)
            return work()

        return attempt(name, reads_first, **more)

    def read(self, name: str) -> None:
        texts: list[str] = []
        before: Object | None = None
        for object_ in [
            value for informer_cache in self.caches.get(name, ()) for value in informer_cache.list()
        ]:
            pass_, way = self.fails.get((object_.KIND.kind, object_.name), ("", ""))
            if pass_ != name:
                way = ""
            if way == "judged":
                raise RuntimeError(f"cannot judge a {object_.KIND.kind}")
            if way == "beside":
                text, other = object_.key, before
                convert(text)
                assert other is not object_
            if way == "translated":
                texts.append(object_.key)
            before = object_
        translate(texts)


@pytest.mark.covers("SAF-50")
@pytest.mark.usefixtures("kueue", "pod_groups_served")
def test_no_pass_has_a_path_around_the_guard_whatever_kind_it_fails_on(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.node_class("good", id_=stack.aws.odcr(count=2))
    walk = Walk()
    monkeypatch.setattr(singleton, "attempt", walk.attempt)
    monkeypatch.setattr(controller, "attempt", walk.attempt)
    parts = (stack.start(kubelets=False), stack.start_scheduler())
    stack.claim("before", node_class="good")
    stack.until_launched("before")
    walk.caches = {
        loop.name: [informer.cache for informer in part.informers] for part in parts for loop in part.loops
    }
    passes = cycle(sorted(walk.caches))
    failures = {
        (model, f"{way}-{model.__name__.lower()}"): way
        for model in bodies(stack)
        if model is not Lease  # read by its name
        for way in WAYS
    }
    assert len(failures) >= 2 * len(walk.caches)
    before = {model: left_out(model) for model, _ in failures}
    for (model, name), way in failures.items():
        reads = (name for name in passes if any(cache._model is model for cache in walk.caches[name]))
        walk.fails[model.KIND.kind, name] = next(reads), way
        put(stack, model, bodies(stack)[model], name)

    def reported() -> set[tuple[str, str]]:
        for loop in (loop for part in parts for loop in part.loops):
            waiting: Any = loop.batcher if isinstance(loop, Singleton) else loop.queue
            waiting.add("nothing" if loop.name != "annotations" else ("NodeClaim", "nothing"))
        return {
            (event.involved_object.kind, event.involved_object.name)
            for event in stack.all(Event)
            if event.reason == REASON
        }

    expected = {(model.KIND.kind, name) for model, name in failures}
    stack.until(lambda: expected <= reported(), "each is reported", step=1.0)
    assert reported() == expected
    few = {model.__name__ for model, count in before.items() if left_out(model) - count < len(WAYS)}
    assert few == set()
    stack.claim("beside", node_class="good")
    stack.until_launched("beside")


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
        stack.until(
            lambda: broker.isolation.leave_out(stack.get(Node, node.name), "poison"), "the Node is left out"
        )

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
    stack.kubelets.stop()
    return stack.get(Node, stack.get(NodeClaim, "c-0").status.node_name)


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
        broker.isolation.leave_out(stack.get(NodeClaim, "c-0"), "poison")

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
