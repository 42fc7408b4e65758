"""The declarations of a loop enqueue the keys that they name, and the manager starts and stops in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker.apis.core import Node
from broker.kube.batch import Batcher
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.events import Recorder
from broker.kube.manager import ControllerManager
from broker.kube.singleton import Singleton
from broker.kube.watches import Signal
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.clock import FakeClock


@pytest.fixture
def manager() -> ControllerManager:
    clock = FakeClock()
    recorder = Recorder(Client(InProcessTransport(Cluster())), "test", clock)
    return ControllerManager(clock=clock, recorder=recorder, synced=lambda: True)


def node(name: str, *, version: int, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version), "labels": labels},
    }


def nothing(_: object) -> None:
    """A reconcile that is not called."""


def test_change_enqueues_the_keys_of_the_old_and_the_new_object(manager: ControllerManager) -> None:
    nodes = Cache(Node)
    loop = manager.controller("loop", nothing).watches(nodes, lambda node: node.labels.values())
    nodes.observe(node("n-0", version=1, rack="r-1"))
    nodes.observe(node("n-0", version=2, rack="r-2"))
    assert [loop.queue.get() for _ in range(len(loop.queue))] == ["r-1", "r-2"]


def test_change_that_the_predicate_rejects_enqueues_nothing(manager: ControllerManager) -> None:
    nodes = Cache(Node)
    loop = manager.controller("loop", nothing).watches(nodes, predicate=lambda old, _: old is not None)
    nodes.observe(node("n-0", version=1))
    assert not len(loop.queue)
    nodes.observe(node("n-0", version=2))
    assert loop.queue.get() == "n-0"


def test_signal_wakes_every_loop_that_names_it(manager: ControllerManager) -> None:
    signal, ran = Signal(), list[Sequence[str]]()
    keyed = manager.controller("keyed", nothing).on(signal.subscribe)
    joint = manager.singleton("joint", ran.append).on(signal.subscribe)
    signal("i-1")
    assert keyed.queue.get() == "i-1"
    assert len(joint.batcher) == 1, "one key stands for everything"


def test_stop_ends_every_part_before_it_closes_shared_resources(manager: ControllerManager) -> None:
    order: list[str] = []

    class Reader:
        isolate: Any = None

        def start(self) -> None:
            order.append("start")

        def stop(self) -> None:
            order.append("stop")

    manager.run(Reader())
    loop: Singleton[str] = manager.singleton("joint", lambda _: None)
    manager.on_stop(lambda: order.append(f"close, left to the loop: {loop.batcher.take(0)}"))
    manager.start()
    manager.stop()
    assert order == ["start", "stop", "close, left to the loop: []"]


def test_singleton_takes_the_keys_of_a_batcher_made_elsewhere(manager: ControllerManager) -> None:
    batcher = Batcher[str]("elsewhere", clock=FakeClock())  # empty, so its truth value is false
    assert manager.singleton("joint", lambda _: None, batcher=batcher).batcher is batcher
