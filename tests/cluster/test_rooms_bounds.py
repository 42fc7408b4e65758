"""The operator's bounds on kept room: its time, its amount, and the opt-in of a namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.apis.core import Node, Pod, ResourceQuota
from broker.apis.godel import FINALIZER, INDEX, OLDER_RESERVATION, RESERVATION, TTL, GodelReservation
from tests.cluster.rooms import Rooms, rooms

pytestmark = pytest.mark.covers("FLT-63")
Json = dict[str, Any]
WANTED = {RESERVATION: "true"}
DAY = 24 * 3600


@pytest.fixture
def cluster() -> Iterator[Rooms]:
    """A node of 4 CPUs; no namespace may keep room yet."""
    with rooms(kept="") as rooms_:
        rooms_.start()
        rooms_.node(room={"cpu": "4"})
        yield rooms_


def running(
    cluster: Rooms, name: str, cpu: str = "4", *, kept: bool = True, annotations: Json | None = None
) -> None:
    marks = {**WANTED, INDEX: name, **(annotations or {})}
    cluster.pod(name, cpu=cpu, scheduler="godel-scheduler", annotations=marks)
    cluster.until_bound(name)
    if kept:
        cluster.until(lambda: FINALIZER in cluster.get(Pod, name, "default").metadata.finalizers, name)


def delete(cluster: Rooms, *names: str) -> None:
    for name in names:
        cluster.delete_pod(name)
    cluster.until(lambda: all(cluster.gone(Pod, name, "default") for name in names), "gone")


def resource_quota(cluster: Rooms, **more: Any) -> None:
    meta = {"name": "quota", "namespace": "default"}
    cluster.client.create(
        ResourceQuota.KIND, {"metadata": meta, "spec": {"hard": {"requests.cpu": "6"}, **more}}
    )


@pytest.mark.parametrize("annotation", [RESERVATION, OLDER_RESERVATION])
def test_room_is_kept_in_namespaces_that_opted_in_only(cluster: Rooms, annotation: str) -> None:
    running(cluster, "old", kept=False, annotations={RESERVATION: "", annotation: "true"})
    (text,) = cluster.until(lambda: cluster.messages("old", "RoomNotKept"), "an event")
    assert "namespace default" in text
    assert 'capacity-broker.io/kept-room: "true"' in text
    delete(cluster, "old")
    cluster.pod("stranger", cpu="4")
    cluster.until_bound("stranger")
    assert cluster.kept() == []
    delete(cluster, "stranger")
    cluster.grant("true")
    running(cluster, "new", annotations={RESERVATION: "", annotation: "true"})
    delete(cluster, "new")
    cluster.until_kept("new")
    cluster.pod("late", cpu="1")
    assert "Insufficient cpu" in cluster.until_rejected("late")


def test_room_ends_with_the_opt_in_of_its_namespace(cluster: Rooms) -> None:
    cluster.grant("true")
    running(cluster, "old")
    delete(cluster, "old")
    cluster.until_kept("old")
    cluster.pod("stranger", cpu="4")
    cluster.until_rejected("stranger")
    cluster.grant("false")
    cluster.until_bound("stranger")
    cluster.until_kept()


def test_reservation_without_a_pod_keeps_nothing_without_the_opt_in(cluster: Rooms) -> None:
    """Its author needs no pod, and names any node."""
    container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "4"}}}
    spec = {"nodename": "node-0", "ttl": 9 * 10**9, "template": {"spec": {"containers": [container]}}}
    meta = {"name": "forged", "namespace": "default"}
    cluster.client.create(GodelReservation.KIND, {"metadata": meta, "spec": spec})
    cluster.pod("stranger", cpu="4")
    cluster.until_bound("stranger")
    cluster.until(lambda: cluster.messages("forged", "RoomNotKept"), "an event")
    cluster.until_kept()


@pytest.mark.parametrize("ttl", ["9223372036", "1" + "0" * 15, "9" * 5000, "86401"])
def test_longest_time_of_a_deleted_pods_room_is_a_day_by_default(cluster: Rooms, ttl: str) -> None:
    cluster.grant("true")
    running(cluster, "old", annotations={TTL: ttl})
    (text,) = cluster.until(lambda: cluster.messages("old", "RoomBounded"), "an event")
    assert f"kept for {DAY} s" in text
    assert "--longest-reservation-ttl" in text
    delete(cluster, "old")
    (kept,) = cluster.until_kept("old")
    assert kept.spec.ttl == DAY
    cluster.pod("stranger", cpu="4")
    cluster.until_rejected("stranger")
    cluster.clock.advance(DAY - 60)
    cluster.until_rejected("stranger")
    cluster.clock.advance(61)
    cluster.until_bound("stranger")


@pytest.mark.parametrize(
    "spec", [{"ttl": "0"}, {"ttl": "2562047h"}, {"ttl": "0", "expires": "2318-01-01T00:00:00Z"}]
)
def test_longest_time_bounds_koordinators_reservations(cluster: Rooms, spec: dict[str, Any]) -> None:
    cluster.reservation(cpu="4", **spec)

    def noted() -> str:
        ready = [item for item in cluster.status().conditions if item.type == "Ready"]
        return ready[0].message if ready else ""

    assert f"{DAY} s (--longest-reservation-ttl)" in cluster.until(noted, "the bound in Ready")
    cluster.clock.advance(DAY - 60)
    assert cluster.status().phase == "Available"
    cluster.clock.advance(61)
    ready = cluster.until_phase("Failed").conditions[-1]
    assert (ready.reason, "--longest-reservation-ttl" in ready.message) == ("Expired", True)
    cluster.pod("stranger", cpu="4")
    cluster.until_bound("stranger")


def test_reservation_within_the_bound_has_no_note(cluster: Rooms) -> None:
    cluster.reservation(ttl="1h")
    status = cluster.until_phase("Available")
    assert [item.message for item in status.conditions] == ["", ""]


def test_operator_sets_the_longest_time(cluster: Rooms) -> None:
    cluster.grant("true")
    cluster.stop()
    cluster.start(longest_reservation_ttl=120)
    running(cluster, "old", annotations={TTL: "600"})
    delete(cluster, "old")
    (kept,) = cluster.until_kept("old")
    assert kept.spec.ttl == 120


@pytest.mark.parametrize("own", ["cpu=3", "memory=64Gi, cpu=3000m"])
def test_room_over_the_namespaces_own_limit_is_not_kept(cluster: Rooms, own: str) -> None:
    cluster.grant(own)
    running(cluster, "first", "2")
    running(cluster, "second", "2")
    delete(cluster, "first")
    cluster.until_kept("first")
    delete(cluster, "second")
    cluster.until(lambda: len(cluster.messages("second", "RoomNotKept")) == 2, "events: room and pod")
    assert (
        "2 of cpu is requested, the namespace may keep 3 and keeps 2"
        in cluster.messages("second", "RoomNotKept")[0]
    )
    cluster.until_kept("first")
    cluster.pod("stranger", cpu="2")
    cluster.until_bound("stranger")


def test_room_takes_a_share_of_the_namespaces_quota(cluster: Rooms) -> None:
    resource_quota(cluster)
    cluster.grant("true")
    running(cluster, "large", "4")
    delete(cluster, "large")
    cluster.until(lambda: cluster.messages("large", "RoomNotKept"), "an event")
    cluster.until_kept()
    running(cluster, "small", "3")
    delete(cluster, "small")
    cluster.until_kept("small")


@pytest.mark.parametrize(
    ("hard", "requests"),
    [
        ({"cpu": "2", "requests.cpu": "100"}, {}),
        ({"requests.cpu": "2", "cpu": "100"}, {}),
        ({"hugepages-2Mi": "1Gi"}, {"hugepages-2Mi": "1Gi"}),
        ({"requests.nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "1"}),
    ],
)
def test_every_name_of_a_quota_limits_the_room(cluster: Rooms, hard: Json, requests: Json) -> None:
    cluster.node("node-1", room={"hugepages-2Mi": "1Gi", "nvidia.com/gpu": "1"})
    meta = {"name": "quota", "namespace": "default"}
    cluster.client.create(ResourceQuota.KIND, {"metadata": meta, "spec": {"hard": hard}})
    cluster.grant("true")
    marks = {**WANTED, INDEX: "own"}
    resources = {"requests": {"cpu": "2", **requests}, "limits": requests}
    container = {"name": "main", "image": "pause", "resources": resources}
    cluster.pod("own", scheduler="godel-scheduler", annotations=marks, containers=[container])
    cluster.until_bound("own")
    cluster.until(lambda: cluster.get(Pod, "own", "default").metadata.finalizers, "followed")
    delete(cluster, "own")
    assert "the namespace may keep" in cluster.until(lambda: cluster.messages("own", "RoomNotKept"), "")[0]
    cluster.until_kept()


def test_quota_with_scopes_limits_no_room(cluster: Rooms) -> None:
    resource_quota(cluster, scopes=["NotBestEffort"])
    cluster.grant("true")
    running(cluster, "large", "4")
    delete(cluster, "large")
    cluster.until_kept("large")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("yes", "'yes' is neither \"true\" nor amounts"),
        ("cpu", "'cpu' is neither"),
        ("cpu=much", "not a quantity: 'much'"),
        ("cpu=2,", "is neither"),
        ("typo=3", "'typo' is no resource of a node"),
        ("cpu=4,memory=1Gi,cpu=8", "'cpu' is there twice"),
        ("cpu=4, cpu = 4", "'cpu' is there twice"),
        ("cpu=-4", "cpu=-4 is negative"),
        ("memory=-1Gi,cpu=8", "memory=-1Gi is negative"),
        ("cpu=8,pods=1500m", "pods=1500m is no whole number"),
    ],
)
def test_unreadable_opt_in_keeps_nothing_and_is_reported(cluster: Rooms, text: str, problem: str) -> None:
    cluster.grant(text)
    running(cluster, "old", kept=False)
    (message,) = cluster.until(lambda: cluster.messages("old", "RoomNotKept"), "an event")
    assert "annotation capacity-broker.io/kept-room of Namespace default" in message
    assert problem in message
    delete(cluster, "old")
    cluster.pod("stranger", cpu="4")
    cluster.until_bound("stranger")


def test_room_on_a_node_that_is_gone_counts_no_more(cluster: Rooms) -> None:
    cluster.grant("cpu=4")
    running(cluster, "first", annotations={TTL: "3600"})
    delete(cluster, "first")
    cluster.until_kept("first")
    cluster.client.delete(Node.KIND, "node-0")
    cluster.until_kept()
    gone = "the room is not kept: node node-0 is gone"
    cluster.until(lambda: cluster.messages("first", "RoomNotKept") == [gone, gone], "events: room and pod")
    cluster.node("node-1", room={"cpu": "4"})
    running(cluster, "second")
    delete(cluster, "second")
    cluster.until_kept("second")
    assert not cluster.messages("second", "RoomNotKept")
