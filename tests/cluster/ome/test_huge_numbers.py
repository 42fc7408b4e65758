"""The largest numbers that a user can type, in every field with a number, beside a claim that needs one
slot."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.kueue import ResourceFlavor
from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.kube.errors import ApiError
from broker.kube.panics import PANICS
from tests.cluster.everything import GPU, bodies, put
from tests.cluster.ome.dedicated import World
from tests.cluster.stack import Stack
from tests.kueue.definitions import install, ready

Json = dict[str, Any]
HUGE = (8_000_000, 2**31 - 1, 2**63 - 1)
TEXTS = ("8000000", "9223372036854775807", "999999999999999999", "2540400h", '{"flavors": {"h100": 8000000}}')
SLOTS = 4  # in all
MOST = 2 * 64 + 2 * SLOTS  # claims at a time of two clusters that request more than exists, and a few more
ROUNDS = 12  # passes, each of which may write each object once


def _numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        if child is not True and child is not False and str(child)[:1].isdigit():
            yield (*path, key)
        else:
            yield from _numbers(child, (*path, key))


def _with(body: Json, path: tuple[Any, ...], number: int) -> Json:
    changed = copy.deepcopy(body)
    parent: Any = changed
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = number if isinstance(parent[path[-1]], int) else str(number)
    return changed


def _bodies(stack: Stack) -> dict[type[Object], Json]:
    """Bodies with these numbers; optional numbers are left out."""
    changed = bodies(stack)
    for body in changed.values():
        for group in body.get("spec", {}).get("resourceGroups", ()):
            for flavor in group["flavors"]:
                flavor["resources"][0] |= {"borrowingLimit": "8"}
    changed[NodeClaim]["spec"] |= {"terminationGracePeriod": "1h", "expireAfter": "1h"}
    changed[NodeClaim]["spec"]["resources"]["requests"] |= {GPU: "8", "memory": "8Gi"}
    changed[NodePool]["spec"] |= {"weight": 8, "limits": {"cpu": "8", GPU: "8"}}
    for model in (DedicatedAICluster, DedicatedAIClusterProfile):
        changed[model]["spec"] |= {"count": 8}
    return changed


def _everything(stack: Stack) -> Iterator[tuple[type[Object], Json]]:
    for model, body in _bodies(stack).items():
        for path in _numbers(body):
            if path[0] != "metadata":
                for number in HUGE:
                    yield model, _with(body, path, number)
        for key in names.ANNOTATIONS.get(model.KIND.kind, ()):
            for text in TEXTS:
                changed = copy.deepcopy(body)
                changed["metadata"].setdefault("annotations", {})[key] = text
                yield model, changed


def _bugs() -> float:
    samples = [sample for metric in PANICS.collect() for sample in metric.samples]
    return sum(sample.value for sample in samples if sample.name.endswith("_total"))


@pytest.mark.covers("SAF-59")
@pytest.mark.parametrize("stack", ["embedded"], indirect=True)
def test_work_is_bounded_by_the_existing_slots_for_any_requested_numbers(stack: Stack) -> None:
    install(stack.client)
    stack.until(lambda: ready(stack.client, "v1beta2"), "Kueue's kinds are served")
    stack.node_class("good", id_=stack.aws.odcr(count=SLOTS))
    bugs = _bugs()
    broker = stack.start(kubelets=False)
    stack.start_scheduler()
    kinds = _bodies(stack)
    put(stack, ResourceFlavor, kinds[ResourceFlavor], "h100")
    put(stack, CapacityReservation, kinds[CapacityReservation], "training")
    created: Counter[str] = Counter()
    for at, (model, body) in enumerate(_everything(stack)):
        try:
            put(stack, model, body, f"huge-{at}")
            created[model.KIND.kind] += 1
        except ApiError as error:
            assert error.status < 500, f"{model.__name__}: {error}"
    assert created["DedicatedAICluster"] and created["CapacityReservation"] and created["Workload"], created
    stack.claim("beside", node_class="good")
    stack.until_launched("beside")
    stack.passes()
    writes, calls = len(stack.tap.log), sum(stack.control.calls().values())
    for _ in range(ROUNDS):
        stack.advance(5.0)
        stack.passes(1)
    stack.claim("after", node_class="good")
    stack.until_launched("after")
    objects = sum(created.values())
    assert len(stack.tap.log) - writes <= ROUNDS * (objects + 20)
    assert sum(stack.control.calls().values()) - calls <= ROUNDS * 40
    assert len(stack.aws.instances()) <= SLOTS
    assert all(broker.ready().values())
    assert _bugs() == bugs


@pytest.mark.covers("SAF-59")
@pytest.mark.parametrize("instances", [1_000_000, (2**63 - 8) // 8])
@pytest.mark.both_servers
def test_cluster_of_any_size_takes_the_existing_slots_and_holds_up_no_other(
    stack: Stack, instances: int
) -> None:
    world = World(stack, SLOTS, training=instances)
    world.reserve("training", borrow="9223372036854775807")
    stack.node_class("other", id_=stack.aws.odcr(count=2))
    world.cluster("endless", instances, "training")
    world.profile("whole", 8)
    world.cluster("counted", 0, "training", profile="whole", count=2**31 - 1)
    stack.start()
    stack.until(lambda: world.running() == SLOTS, "the slots that exist are taken")
    stack.claim("beside", node_class="other")
    stack.until_launched("beside")
    requests, calls = len(stack.tap.log), sum(stack.control.calls().values())
    for _ in range(ROUNDS):
        stack.advance(5.0)
        stack.passes(1)
    assert len(stack.all(NodeClaim)) <= MOST
    assert len(stack.tap.log) - requests <= ROUNDS * MOST
    assert sum(stack.control.calls().values()) - calls <= ROUNDS * 40
    stack.claim("after", node_class="other")
    stack.until_launched("after")
    assert world.running() == SLOTS + 2
