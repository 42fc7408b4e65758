"""The chart's roles are enough for a scheduler in pods of its own, and hold no unused right."""

from __future__ import annotations

import threading
from collections.abc import Callable

import yaml

from broker.apis.core import Node, Pod
from broker.apis.godel import INDEX, PLACEHOLDER_UID, RESERVATION
from broker.apis.koordinator import KoordinatorReservation
from broker.apis.workloads import NativePodGroup, NativeWorkload, SchedulingPodGroup
from broker.kube.client import Client, Transport
from broker.kube.identity import NAMESPACE
from broker.run import lead_scheduler
from broker.settings import Settings
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.cluster.clocks import MovableClock
from tests.cluster.rooms import Rooms, rooms
from tests.cluster.taps import status_of
from tests.deploy import helm
from tests.deploy.requests import Recording, allows, grants
from tests.deploy.test_permissions import SCHEDULER_RULES


def story(cluster: Rooms, recording: Callable[[], Recording]) -> None:
    """Lost writes of a reservation and of a bind, an eviction, a pod deleted twice, and the end of a node."""
    for name in ("node-0", "node-1"):
        cluster.node(name, room={"cpu": "8"})
    cluster.tap.lose(status_of("reservations", "reservation-demo"), times=1)
    cluster.reservation(template={"nodeName": "node-1"})
    cluster.until(lambda: cluster.tap.lost, "a lost write")
    cluster.clock.advance(2)
    cluster.until_phase("Available")
    cluster.tap.lose(lambda request: request.path.endswith("/binding"), times=1)
    cluster.pod("owner", cpu="100m", labels={"app": "demo"})
    cluster.until(lambda: cluster.tap.lost == 2, "a lost bind")
    cluster.clock.advance(2)
    cluster.until_bound("owner")
    cluster.until_phase("Succeeded")
    cluster.quota("a", min={"cpu": 4})
    cluster.quota("b", namespaces=("b",), min={"cpu": 1})
    for name in ("b-1", "b-2"):
        cluster.pod(name, cpu="2", namespace="b", scheduler="nos-scheduler")
        cluster.started(name, namespace="b")
    cluster.until(lambda: all(cluster.labels("b-1", "b-2", namespace="b")), "labels")
    cluster.pod("a-1", cpu="4", namespace="a", scheduler="nos-scheduler")
    cluster.until(lambda: len(cluster.evicted()) == 2, "evictions of two pods, judged together")
    cluster.end_evicted()
    for count in (1, 2):
        annotations = {RESERVATION: "true", INDEX: f"web-{count}"}
        cluster.pod("web-0", cpu="1", scheduler="godel-scheduler", annotations=annotations)
        cluster.until_bound("web-0")
        cluster.until(lambda: cluster.get(Pod, "web-0", "default").metadata.finalizers, "followed")
        uid = cluster.get(Pod, "web-0", "default").uid
        cluster.delete_pod("web-0")
        cluster.until(
            lambda u=uid: u in [item.annotations.get(PLACEHOLDER_UID) for item in cluster.kept()],  # type: ignore[misc]
            f"kept {count}",
        )
        cluster.until(lambda: cluster.gone(Pod, "web-0", "default"), "pod gone")
    # A reason that comes again is counted in its event.
    cluster.pod("large", cpu="100")
    few = cluster.until_rejected("large", "0/2")
    cluster.node("node-2", room={"cpu": "8"})
    cluster.until_rejected("large", "0/3")
    cluster.client.delete(Node.KIND, "node-2")
    cluster.until(lambda: cluster.until_rejected("large", few), "rejected as before")

    def counted() -> bool:
        cluster.clock.advance(10)
        return any((access.resource, access.verb) == ("events", "patch") for access in recording().seen)

    cluster.until(counted, "counted")
    cluster.client.delete(Node.KIND, "node-1")
    cluster.until(lambda: cluster.gone(KoordinatorReservation, "reservation-demo"), "collected")


def test_the_roles_are_enough_and_no_more() -> None:
    recordings: list[Recording] = []

    def through(transport: Transport) -> Transport:
        recordings.append(Recording(transport, ""))
        return recordings[0]

    with rooms(through=through) as cluster:
        for model in (SchedulingPodGroup, NativePodGroup, NativeWorkload):
            cluster.define(model.KIND)
        cluster.start()
        story(cluster, lambda: recordings[0])
    seen = set(recordings[0].seen)
    assert [
        str(access) for access in sorted(seen) if not any(allows(rule, access) for rule in SCHEDULER_RULES)
    ] == []
    idle = [grant for grant in grants(SCHEDULER_RULES) if not any(allows(grant, access) for access in seen)]
    assert idle == []


def test_its_lease_is_all_that_it_has_in_kube_system() -> None:
    clock, stop, led = MovableClock(), threading.Event(), threading.Event()
    recording = Recording(InProcessTransport(Cluster(clock=lambda: clock.now().timestamp())), "")
    thread = threading.Thread(
        target=lead_scheduler,
        args=(Client(recording), Settings(identity="a")),
        kwargs={"clock": clock, "stop": stop, "running": lambda _: led.set()},
    )
    thread.start()
    assert led.wait(60)
    stop.set()
    thread.join(60)
    rules = yaml.safe_load((helm.CHART / "rbac" / "scheduler-namespace.yaml").read_text())
    seen = {access for access in recording.seen if access.namespace == NAMESPACE}
    assert [str(access) for access in sorted(seen) if not any(allows(rule, access) for rule in rules)] == []
    assert [grant for grant in grants(rules) if not any(allows(grant, access) for access in seen)] == []
