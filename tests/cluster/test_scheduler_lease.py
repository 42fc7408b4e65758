"""The scheduler leads under a Lease of its own: neither its leader nor the broker's ends with the other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.kube.client import Client
from broker.kube.errors import Unavailable
from broker.kube.metrics import REGISTRY
from broker.run import lead_scheduler
from broker.scheduler import Scheduler
from broker.settings import Settings
from tests.cluster.rooms import Rooms, rooms
from tests.cluster.stack import Stack
from tests.cluster.taps import Tap
from tests.cluster.test_leadership import Member


class Placer:
    """One replica with `--scheduler=only`, without its process."""

    def __init__(self, cluster: Rooms | Stack, name: str) -> None:
        self.name, self.tap, self.stop = name, Tap(cluster.tap.inner), threading.Event()
        self.scheduler: Scheduler | None = None
        self.thread = threading.Thread(
            target=lead_scheduler,
            args=(Client(self.tap), Settings(identity=name)),
            kwargs={"clock": cluster.clock, "stop": self.stop, "running": self.record_leading},
            daemon=True,
        )
        self.thread.start()

    def record_leading(self, scheduler: Scheduler | None) -> None:
        self.scheduler = scheduler

    @property
    def leading(self) -> bool:
        return self.scheduler is not None

    def end(self) -> None:
        self.tap.heal()
        self.stop.set()
        self.thread.join(60)


@contextmanager
def placers(cluster: Rooms | Stack, *names: str) -> Iterator[list[Placer]]:
    placers_: list[Placer] = []
    try:
        for name in names:
            placers_.append(Placer(cluster, name))
        yield placers_
    finally:
        for placer in placers_:
            placer.end()


def moving(cluster: Rooms, happened: Callable[[], Any], goal: str) -> None:
    """Waits while time goes on."""

    def step() -> Any:
        cluster.clock.advance(0.2)
        return happened()

    cluster.until(step, goal)


def pod(stack: Stack, name: str) -> None:
    container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1"}}}
    spec = {"schedulerName": "capacity-broker", "containers": [container]}
    stack.client.create(Pod.KIND, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})


def until_bound(stack: Stack, name: str) -> None:
    def bound() -> bool:
        return bool(stack.get(Pod, name, namespace="default").spec.node_name)

    stack.until(bound, f"{name} is bound", step=0.5)


def test_neither_leader_ends_with_the_other(stack: Stack) -> None:
    """One process runs the scheduler alone, the other everything else; each is lost in turn."""
    stack.node_class(id_=stack.aws.odcr(count=3))
    broker = Member(stack, "broker", scheduler="off")
    stack.kubelets_again()
    with placers(stack, "placer") as (placer,):
        try:
            stack.until(lambda: broker.leading and placer.leading, "both lead", step=0.5)
            stack.claim("c-0")
            stack.until_ready("c-0")
            pod(stack, "first")
            until_bound(stack, "first")
            # The scheduler's process is gone: claims launch, and pods wait for its return.
            placer.end()
            pod(stack, "second")
            stack.claim("c-1")
            stack.until_ready("c-1")
            assert broker.leads.count(None) == 1, "it leads since the start"
            assert not stack.get(Pod, "second", namespace="default").spec.node_name
            with placers(stack, "next") as (after,):
                until_bound(stack, "second")
                # The broker is cut off: pods are placed, and claims wait.
                scheduler = after.scheduler
                broker.tap.lose(lambda request: "/leases" in request.path)
                stack.until(lambda: not broker.leading, "the broker stopped", step=0.5)
                stack.claim("c-2")
                pod(stack, "third")
                until_bound(stack, "third")
                assert after.scheduler is scheduler, "it leads since the start"
                broker.tap.heal()
                stack.until_ready("c-2")
        finally:
            broker.tap.heal()
            broker.end()
    assert len(stack.all(NodeClaim)) == len(stack.aws.instances()) == 3


@pytest.mark.both_servers
def test_one_process_leads_both_by_default(stack: Stack) -> None:
    stack.node_class(id_=stack.aws.odcr(count=1))
    broker = Member(stack, "broker")
    stack.kubelets_again()
    try:
        stack.claim("c-0")
        stack.until_ready("c-0")
        pod(stack, "first")
        until_bound(stack, "first")
    finally:
        broker.end()


def used(cluster: Rooms) -> Counter[str]:
    """CPUs taken on each node."""
    pods = (Pod.decode(raw) for raw in cluster.client.list(Pod.KIND)[0])
    return Counter(item.spec.node_name for item in pods if item.spec.node_name)


@pytest.mark.parametrize("lands", [True, False], ids=["bind lands at last", "bind is given up"])
def test_split_lease_gives_no_room_twice(lands: bool) -> None:
    """A leader hangs in a bind until its Lease has run out, and its successor places the other pods."""
    with rooms() as cluster, placers(cluster, "a", "b") as both:
        cluster.node("node-0", room={"cpu": "2"})
        moving(cluster, lambda: any(placer.leading for placer in both), "a leader")
        first = next(placer for placer in both if placer.leading)
        second = next(placer for placer in both if placer is not first)
        hangs, goes_on = threading.Event(), threading.Event()

        def hang(_: object) -> None:
            hangs.set()
            assert goes_on.wait(60)
            if not lands:
                raise Unavailable(0, "Lost", "no answer within the time of a write")

        first.tap.on(lambda request: request.path.endswith("/binding"), hang)
        names = [f"pod-{number}" for number in range(4)]
        cluster.pod(names[0], cpu="1")
        cluster.until(hangs.is_set, "the leader hangs")
        for name in names[1:]:
            cluster.pod(name, cpu="1")
        first.tap.lose(lambda request: "/leases" in request.path)
        moving(cluster, lambda: second.leading, "the successor leads")
        moving(cluster, lambda: sum(used(cluster).values()) == 2, "the node is full")
        goes_on.set()
        moving(cluster, lambda: not first.leading, "the first has stopped")
        moving(cluster, lambda: cluster.until_rejected(names[3]), "the last pod waits")
        assert used(cluster) == {"node-0": 2}
        bindings = [path for placer in both for _, path in placer.tap.writes() if path.endswith("/binding")]
        assert len(bindings) <= 3, "nothing is bound by the first after the end of its term"


@pytest.mark.parametrize("stops", ["broker", "scheduler"])
def test_broker_and_scheduler_of_one_process_list_nodes_and_pods_once(stack: Stack, stops: str) -> None:
    """When one of the two stops, the other goes on without a list."""

    def lists(kind: str) -> float:
        return REGISTRY.get_sample_value("capacity_broker_kube_lists_total", {"kind": kind}) or 0.0

    before = {kind: lists(kind) for kind in ("nodes", "pods")}
    stack.node_class(id_=stack.aws.odcr(count=2))
    broker, scheduler = stack.start(), stack.start_scheduler()
    stack.until(lambda: all({**broker.ready(), **scheduler.ready()}.values()), "both are ready", step=0.2)
    stack.claim("c-0")
    stack.until_ready("c-0")
    pod(stack, "first")
    until_bound(stack, "first")
    if stops == "broker":
        broker.stop()
        stack.broker = None
        pod(stack, "second")
        until_bound(stack, "second")
    else:
        scheduler.stop()
        stack.scheduler = None
        stack.claim("c-1")
        stack.until_ready("c-1")
    assert {kind: lists(kind) - before[kind] for kind in before} == {"nodes": 1, "pods": 1}
