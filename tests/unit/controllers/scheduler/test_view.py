"""The scheduler's view of nodes and pods: after any changes it equals one that is read anew."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.apis.core import Node, Pod
from broker.apis.koordinator import ALLOCATED
from broker.controllers.scheduler.view import SchedulerView
from broker.kube.cache import Cache
from tests.support.clock import FakeClock

Json = dict[str, Any]
NAMES = [f"p-{number}" for number in range(12)]
NODES = ("a", "b", "c")


class World:
    """Two caches and a view of them; each change is an event of a watch."""

    def __init__(self) -> None:
        self.pods, self.nodes, self.clock = Cache(Pod), Cache(Node), FakeClock()
        self.view = self.new()
        self._version = 0

    def new(self) -> SchedulerView:
        return SchedulerView(self.pods, self.nodes, (), self.clock)

    def pod(self, name: str, *, node: str = "", phase: str = "Running", cpu: int = 1, **meta: Any) -> None:
        container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": str(cpu)}}}
        meta = {"name": name, "namespace": "default", "uid": name, **meta}
        spec: Json = {"containers": [container]} | ({"nodeName": node} if node else {})
        self._apply(self.pods, {"metadata": meta, "spec": spec, "status": {"phase": phase}})

    def node(self, name: str, cpu: str = "8", **spec: Any) -> None:
        meta = {"name": name, "uid": name}
        self._apply(self.nodes, {"metadata": meta, "spec": spec, "status": {"allocatable": {"cpu": cpu}}})

    def delete(self, cache: Cache[Any], key: str) -> None:
        if (obj := cache.find(key)) is not None:
            self._version += 1
            meta = {"name": obj.name, "namespace": obj.namespace, "resourceVersion": str(self._version)}
            cache.apply("DELETED", {"metadata": meta})

    def _apply(self, cache: Cache[Any], body: Json) -> None:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        cache.apply("MODIFIED", body)


def shown(view: SchedulerView) -> Json:
    states = view.snapshot.states
    return {
        "nodes": {name: state.node for name, state in states.items()},
        "pods": {name: sorted(pod.uid for pod in state.pods) for name, state in states.items()},
        "used": {name: {k: v for k, v in state.requested.items() if v} for name, state in states.items()},
        "groups": {key: dict(counts) for key, counts in view.snapshot.groups.items()},
        "unbound": sorted(view.unbound),
        "holding": sorted(view.holding),
        "links": view.links,
    }


def change(world: World, rng: random.Random) -> None:
    name, node = rng.choice(NAMES), rng.choice(NODES)
    match rng.randrange(6):
        case 0 | 1:
            hold = {ALLOCATED: '{"uid": "hold"}'} if rng.random() < 0.3 else {}
            phase = rng.choice(("Pending", "Running", "Running", "Succeeded"))
            labels = {"app": rng.choice("xy")}
            at = rng.choice(("", node))
            world.pod(name, node=at, phase=phase, cpu=rng.choice((1, 2)), annotations=hold, labels=labels)
        case 2:
            world.delete(world.pods, f"default/{name}")
        case 3 | 4:
            world.node(node, rng.choice(("4", "8")), unschedulable=rng.random() < 0.2)
        case _:
            world.delete(world.nodes, node)


@pytest.mark.parametrize("seed", range(30))
def test_a_view_equals_a_fresh_view(seed: int) -> None:
    world, rng = World(), random.Random(seed)
    for _ in range(40):
        for _ in range(rng.choice((1, 1, 3))):
            change(world, rng)
        world.view.update()
        fresh = world.new()
        fresh.update()
        assert shown(world.view) == shown(fresh)


def test_only_changes_that_may_free_room_count() -> None:
    world = World()
    world.node("a")
    world.pod("p-0", node="a")
    world.view.update()
    before = world.view.freed
    world.pod("p-1")
    world.pod("p-1", node="a")
    world.pod("p-0", node="a", phase="Pending")
    world.node("a")
    world.view.update()
    assert world.view.freed == before
    world.delete(world.pods, "default/p-0")
    world.view.update()
    assert world.view.freed == before + 1
    world.node("a", "16")
    world.view.update()
    assert world.view.freed == before + 2


def test_a_failed_update_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.node("a")
    world.view.update()
    world.pod("p-0", node="a")
    with monkeypatch.context() as patch:
        patch.setattr("broker.placement.snapshot.PlacementSnapshot.with_changes", None)
        with pytest.raises(TypeError):
            world.view.update()
    world.view.update()
    assert [pod.uid for pod in world.view.snapshot.states["a"].pods] == ["p-0"]
