"""Faults between a decision about room on nodes and its last write.

After each fault no node is oversubscribed, no hold is lost and no pod waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from broker.apis.core import Node, Pod
from broker.apis.koordinator import ALLOCATED, KoordinatorReservation
from broker.apis.meta import Kind
from broker.kube.client import Request
from broker.kube.errors import ApiError, Invalid, Unavailable
from broker.placement.quantities import amounts, pod_requests
from broker.placement.reading import takes_room
from tests.cluster.rooms import Rooms, rooms
from tests.cluster.taps import status_of, writes_of
from tests.cluster.test_rooms_reclaim import borrow
from tests.cluster.test_rooms_reclaim import pod as of_quota

DEMO = {"app": "demo"}


@pytest.fixture
def cluster() -> Iterator[Rooms]:
    with rooms() as rooms_:
        rooms_.start()
        rooms_.node("node-0", room={"cpu": "4"})
        yield rooms_
        check(rooms_)


def check(cluster: Rooms) -> None:
    """No node is oversubscribed: each hold counts with the larger of reserved and used."""
    pods = [Pod.decode(raw) for raw in cluster.client.list(Pod.KIND)[0]]
    listed, _ = cluster.client.list(KoordinatorReservation.KIND)
    items = map(KoordinatorReservation.decode, listed)
    holds = [item for item in items if item.status.phase == "Available"]
    for raw in cluster.client.list(Node.KIND)[0]:
        node = Node.decode(raw)
        pods_on_node = [pod for pod in pods if takes_room(pod) and pod.spec.node_name == node.name]
        cpu = sum(pod_requests(pod).get("cpu", 0) for pod in pods_on_node)
        for hold in holds:
            if hold.status.node_name == node.name:
                used = sum(pod_requests(pod).get("cpu", 0) for pod in pods_on_node if owns(pod, hold))
                cpu += max(0, amounts(hold.status.allocatable).get("cpu", 0) - used)
        assert cpu <= amounts(node.status.allocatable)["cpu"], node.name


def owns(pod: Pod, hold: KoordinatorReservation) -> bool:
    text = pod.annotations.get(ALLOCATED)
    return bool(text) and orjson.loads(text or "")["uid"] == hold.uid


def deleting(cluster: Rooms, kind: Kind, name: str) -> Callable[[Request], None]:
    """Deletes an object before a request is sent."""

    def delete(_: Request) -> None:
        cluster.client.delete(kind, name)

    return delete


def binding(request: Request) -> bool:
    return request.path.endswith("/binding")


def test_node_deleted_between_the_decision_and_its_write(cluster: Rooms) -> None:
    cluster.tap.on(
        status_of("reservations", "reservation-demo"),
        deleting(cluster, Node.KIND, "node-0"),
    )
    cluster.reservation(cpu="2", allocateOnce=False)
    cluster.until(lambda: cluster.gone(KoordinatorReservation, "reservation-demo"), "ends with its node")
    cluster.node("node-1", room={"cpu": "2"})
    cluster.tap.on(binding, deleting(cluster, Node.KIND, "node-1"))
    cluster.pod("lost", cpu="2")
    cluster.until_bound("lost")
    cluster.node("node-2", room={"cpu": "2"})
    cluster.pod("next", cpu="2")
    assert cluster.until_bound("next") == ["node-2"]


def test_pod_deleted_before_and_after_its_bind(cluster: Rooms) -> None:
    cluster.reservation(cpu="4")
    cluster.until_phase("Available")
    cluster.tap.on(binding, lambda _: cluster.delete_pod("first"))
    cluster.pod("first", cpu="4", labels=DEMO)
    cluster.until(lambda: cluster.gone(Pod, "first", "default"), "deleted before its bind")
    # Its hold is whole again: the next owner takes all of it, and a stranger nothing.
    cluster.pod("stranger", cpu="1")
    cluster.until_rejected("stranger", "Insufficient cpu")
    cluster.pod("second", cpu="4", labels=DEMO)
    cluster.until_bound("second")
    cluster.until_phase("Succeeded")
    cluster.delete_pod("second")
    assert cluster.until_bound("stranger") == ["node-0"]


def test_reservation_deleted_while_it_is_matched(cluster: Rooms) -> None:
    cluster.reservation(cpu="3", allocateOnce=False)
    cluster.until_phase("Available")
    cluster.tap.on(binding, deleting(cluster, KoordinatorReservation.KIND, "reservation-demo"))
    cluster.pod("owner", cpu="1", labels=DEMO)
    cluster.until_bound("owner")
    # Its room counts as that of any other pod, and the rest is free.
    cluster.pod("too-large", cpu="4")
    cluster.until_rejected("too-large", "Insufficient cpu")
    cluster.pod("fits", cpu="3")
    assert cluster.until_bound("fits") == ["node-0"]


def answer_lost(cluster: Rooms, chosen: Callable[[Request], bool]) -> None:
    """The next chosen write is carried out, and its answer is lost; then nothing can be read for a while."""

    def done(request: Request) -> None:
        cluster.client.raw(
            request.method,
            request.path,
            request.query,
            orjson.loads(request.body or b"{}"),
            content_type=request.headers["Content-Type"],
        )
        cluster.tap.lose(lambda request: request.method == "GET" and "watch" not in request.query, times=2)
        raise Unavailable(0, "Lost", "the answer was lost")

    cluster.tap.on(chosen, done)


def test_bind_without_an_answer_keeps_its_room(cluster: Rooms) -> None:
    answer_lost(cluster, binding)
    cluster.pod("first", cpu="3")
    cluster.pod("second", cpu="3")
    assert cluster.until_bound("first") == ["node-0"]
    cluster.until_rejected("second", "Insufficient cpu")


def test_reservation_without_an_answer_keeps_its_owners(cluster: Rooms) -> None:
    cluster.pod("runs", cpu="2", labels=DEMO, scheduler="default-scheduler", nodeName="node-0")
    cluster.ran("runs")
    cluster.pod("beside", cpu="2")
    cluster.until_bound("beside")
    answer_lost(cluster, status_of("reservations", "reservation-demo"))
    cluster.reservation(cpu="2", preAllocation=True, allocatePolicy="Restricted", allocateOnce=False)
    owners = cluster.until(lambda: cluster.status().current_owners, "the owner of the room")
    assert [owner.name for owner in owners] == ["runs"]


def test_restart_between_a_pre_allocation_and_its_reservation(cluster: Rooms) -> None:
    cluster.pod("runs", cpu="3", labels=DEMO, scheduler="default-scheduler", nodeName="node-0")
    cluster.ran("runs")
    pre_allocates: Any = {"preAllocation": True, "allocatePolicy": "Restricted", "allocateOnce": False}

    def ends(request: Request) -> bool:
        return status_of("reservations", "left")(request) or (
            bool(cluster.tap.lost) and "/pods" in request.path
        )

    cluster.tap.lose(ends)
    cluster.reservation("left", cpu="3", **pre_allocates)
    cluster.until(lambda: cluster.tap.lost, "a lost placement")
    cluster.stop()
    cluster.tap.heal()
    assert ALLOCATED in cluster.annotations("runs") and not cluster.status("left").node_name
    # Another reservation may have the room, as the first one has no node.
    cluster.client.patch(
        KoordinatorReservation.KIND, "left", {"spec": {"template": {"spec": {"nodeName": "none"}}}}
    )
    cluster.reservation("next", cpu="3", **pre_allocates)
    cluster.start()
    assert cluster.until_phase("Available", "next").node_name == "node-0"
    owners = cluster.until(lambda: cluster.status("next").current_owners, "the owner of the room")
    assert [owner.name for owner in owners] == ["runs"]


def test_restart_between_the_annotation_and_the_bind(cluster: Rooms) -> None:
    cluster.reservation(cpu="3")
    cluster.until_phase("Available")
    # The process ends here: neither the bind nor the removal of the annotation arrives.
    cluster.tap.lose(lambda request: binding(request) or (request.path.endswith("/pods/owner") and seen()))
    started = []

    def seen() -> bool:
        started.append(ALLOCATED in cluster.annotations("owner"))
        return started[-1]

    cluster.pod("owner", cpu="2", labels=DEMO)
    cluster.until(lambda: cluster.tap.lost, "a lost bind")
    cluster.stop()
    cluster.tap.heal()
    assert not cluster.node_of("owner")
    cluster.pod("stranger", cpu="2")
    cluster.start()
    assert cluster.until_bound("owner") == ["node-0"]
    assert [owner.name for owner in cluster.until_phase("Succeeded").current_owners] == ["owner"]
    assert cluster.until_bound("stranger") == ["node-0"]  # the surplus of an ended reservation is free


def test_pod_that_may_not_be_mended_after_a_lost_bind_stops_no_other(cluster: Rooms) -> None:
    """A webhook, for example, refuses to take the annotation of the hold off."""

    def refused(_: Request) -> None:
        raise Invalid(422, "Invalid", "a webhook refuses it")

    def lose(_: Request) -> None:
        cluster.tap.lose(lambda request: request.method == "GET" and request.path.endswith("/owner"), times=1)
        cluster.tap.on(writes_of("pods", "owner"), refused, times=-1)
        raise Unavailable(0, "Lost", "no answer")

    cluster.reservation(cpu="1", allocateOnce=False)
    cluster.until_phase("Available")
    cluster.tap.on(binding, lose)
    cluster.pod("owner", cpu="100m", labels=DEMO)
    cluster.until(lambda: cluster.tap.lost, "a lost bind that cannot be read")
    cluster.clock.advance(2)
    cluster.pod("other", cpu="100m")
    cluster.until_bound("other")


def evicting(request: Request, *, dry_run: bool = False) -> bool:
    return request.path.endswith("/eviction") and ("dryRun" in request.query) is dry_run


@pytest.mark.parametrize("fault", ["bind", "eviction", "kill"])
def test_room_of_an_evicted_pod_is_kept_for_its_owner(cluster: Rooms, fault: str) -> None:
    """The pod ends at once, and a pod without a quota is older than the owner."""
    borrow(cluster, ("lent", "4", "node-0"), owner="4")
    of_quota(cluster, "stranger", "default", "4")
    cluster.until_rejected("stranger", "Insufficient cpu")
    cluster.clock.advance(60)

    def lose(_: Request) -> None:
        cluster.delete_pod("lent", "a")
        if fault == "kill":
            cluster.tap.lose(lambda _: True)
        raise Unavailable(0, "Lost", "the answer was lost")

    if fault == "bind":
        cluster.tap.lose(binding, times=1)
    else:
        cluster.tap.on(evicting, lose)
    of_quota(cluster, "owner", "b", "4")
    if fault == "bind":
        cluster.until(cluster.evicted, "an eviction")
        cluster.end_evicted()
    else:
        cluster.until(lambda: cluster.gone(Pod, "lent", "a"), "it is evicted")
    if fault == "kill":
        cluster.stop()
        cluster.tap.heal()
        cluster.start()
    cluster.until_rejected("stranger", "Insufficient cpu")
    cluster.clock.advance(2)
    cluster.pod("probe", cpu="100m")
    cluster.until_rejected("probe", "Insufficient cpu")
    assert cluster.until_bound("owner", namespace="b") == ["node-0"]
    assert not cluster.node_of("stranger")


def test_webhook_without_dry_run_keeps_no_minimum_back(cluster: Rooms) -> None:
    def no_dry_run(_: Request) -> None:
        raise ApiError(400, "BadRequest", "admission webhook w does not support dry run")

    cluster.tap.on(lambda request: evicting(request, dry_run=True), no_dry_run, times=-1)
    borrow(cluster, ("lent-0", "2", "node-0"), ("lent-1", "2", "node-0"), owner="4")
    of_quota(cluster, "owner", "b", "4")
    cluster.until(lambda: len(cluster.evicted()) == 2, "both are evicted")
    cluster.end_evicted()
    cluster.until_bound("owner", namespace="b")
