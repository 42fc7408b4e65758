"""Room is kept whole, whichever kind of room: its ports, its anti-affinity, and its amounts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from broker.apis.core import Pod
from broker.apis.godel import INDEX, RESERVATION, TTL
from broker.apis.koordinator import (
    ALLOCATED,
    IGNORED,
    OPERATING_MODE,
    POD_OWNERS,
    KoordinatorReservation,
)
from tests.cluster.rooms import Rooms, rooms

PORT: dict[str, Any] = {"ports": [{"containerPort": 80, "hostPort": 80}]}
APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "noisy"}}}
        ]
    }
}


@pytest.fixture
def cluster() -> Iterator[Rooms]:
    with rooms() as rooms_:
        rooms_.start()
        yield rooms_


def container(cpu: str = "0", **more: Any) -> list[dict[str, Any]]:
    return [{"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu}}, **more}]


def left(cluster: Rooms, name: str) -> None:
    """The pod is deleted, and its room is kept."""
    cluster.until(lambda: cluster.get(Pod, name, "default").metadata.finalizers, f"{name} followed")
    cluster.delete_pod(name)
    cluster.until_kept(name)
    cluster.until(lambda: cluster.gone(Pod, name, "default"), "gone")


def reserved(cluster: Rooms, labels: dict[str, str], **spec: Any) -> None:
    template = {"spec": {"schedulerName": "koord-scheduler", **spec}, "metadata": {"labels": labels}}
    owners = [{"labelSelector": {"matchLabels": {"app": "own"}}}]
    body = {
        "metadata": {"name": "r"},
        "spec": {"owners": owners, "template": template, "allocateOnce": False},
    }
    cluster.client.create(KoordinatorReservation.KIND, body)
    cluster.until_phase("Available", "r")


def operating(cluster: Rooms, labels: dict[str, str], **spec: Any) -> None:
    owners = orjson.dumps([{"labelSelector": {"matchLabels": {"app": "own"}}}]).decode()
    labels = {OPERATING_MODE: "Reservation", **labels}
    cluster.pod("r", labels=labels, annotations={POD_OWNERS: owners}, **spec)
    cluster.until_bound("r")


def deleted(cluster: Rooms, labels: dict[str, str], **spec: Any) -> None:
    annotations = {RESERVATION: "true", INDEX: "own", TTL: "600"}
    cluster.pod("r", scheduler="godel-scheduler", labels=labels, annotations=annotations, **spec)
    cluster.until_bound("r")
    left(cluster, "r")


KINDS: tuple[Callable[..., None], ...] = (reserved, operating, deleted)
OWN: dict[str, Any] = {
    "reserved": {"labels": {"app": "own"}},
    "operating": {"labels": {"app": "own"}},
    "deleted": {"annotations": {INDEX: "own"}, "scheduler": "godel-scheduler"},
}


@pytest.mark.covers("FLT-40")
def test_room_of_a_deleted_pod_keeps_its_host_port(cluster: Rooms) -> None:
    cluster.case("quota-4", "a")
    cluster.until_bound("web")
    left(cluster, "web")
    cluster.case("quota-4", "b")
    assert "free ports" in cluster.until_rejected("stranger")
    cluster.case("quota-4", "c")
    assert cluster.until_bound("web") == ["n0"]
    cluster.delete_pod("stranger")


@pytest.mark.covers("FLT-40")
def test_reservation_keeps_its_host_port_once_its_amounts_are_used(cluster: Rooms) -> None:
    cluster.case("quota-5", "a", "b")
    cluster.until_bound("first")
    cluster.until(lambda: cluster.status("r").allocated.get("cpu") == "2", "used up")
    cluster.case("quota-5", "c")
    assert "free ports" in cluster.until_rejected("stranger")
    cluster.pod(
        "second",
        labels={"app": "own"},
        containers=container("100m", ports=[{"containerPort": 8080, "hostPort": 8080}]),
    )
    assert cluster.until_bound("second") == ["n0"]
    cluster.client.delete(KoordinatorReservation.KIND, "r")
    cluster.delete_pod("second")
    assert cluster.until_bound("stranger") == ["n0"]


@pytest.mark.covers("FLT-40")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "spec",
    [
        {"containers": container("1", **PORT)},
        {"containers": container("1", ports=[{"containerPort": 80}]), "hostNetwork": True},
        {
            "containers": container("1"),
            "initContainers": [{**container(**PORT)[0], "name": "side", "restartPolicy": "Always"}],
        },
    ],
    ids=["host-port", "host-network", "sidecar"],
)
def test_every_kind_of_room_keeps_ports(cluster: Rooms, kind: Callable[..., None], spec: Any) -> None:
    cluster.node(room={"cpu": "4"})
    kind(cluster, {}, **spec)
    cluster.pod("stranger", containers=container(**PORT))
    assert "free ports" in cluster.until_rejected("stranger")
    cluster.pod("owner", **OWN[kind.__name__], containers=container("1", **PORT))
    assert cluster.until_bound("owner") == ["node-0"]
    cluster.until_rejected("stranger", "free ports")


@pytest.mark.covers("FLT-40")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_room_keeps_anti_affinity_of_both_sides(
    cluster: Rooms, kind: Callable[..., None]
) -> None:
    cluster.node(room={"cpu": "4"})
    kind(cluster, {"team": "quiet"}, containers=container("1"), affinity=APART)
    cluster.pod("noisy", cpu="1", labels={"app": "noisy"})
    assert "anti-affinity" in cluster.until_rejected("noisy")
    selector = {"matchLabels": {"team": "quiet"}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    cluster.pod("shy", cpu="1", affinity=apart)
    assert "anti-affinity" in cluster.until_rejected("shy")
    cluster.pod("owner", **OWN[kind.__name__], cpu="1")
    assert cluster.until_bound("owner") == ["node-0"]


@pytest.mark.covers("FLT-41")
def test_reservation_ignored_uses_idle_room_and_owns_none(cluster: Rooms) -> None:
    cluster.case("quota-3", "a")
    cluster.until_phase("Available", "r")
    cluster.case("quota-3", "b")
    assert cluster.until_bound("filler") == ["n0"]
    assert not cluster.annotations("filler").get(ALLOCATED)
    status = cluster.status("r")
    assert (status.phase, status.current_owners) == ("Available", ())
    # The owner needs the whole room, and waits for the filler.
    cluster.pod("later", cpu="4", labels={"app": "later"})
    cluster.until_rejected("later", "Insufficient cpu")
    cluster.pod("stranger", cpu="1")
    cluster.until_rejected("stranger", "Insufficient cpu")
    cluster.delete_pod("filler")
    assert cluster.until_bound("later") == ["n0"]
    assert cluster.until_phase("Succeeded", "r").current_owners[0].name == "later"


@pytest.mark.covers("FLT-41")
def test_reservation_ignored_takes_neither_used_room_nor_that_of_a_deleted_pod(cluster: Rooms) -> None:
    cluster.node(room={"cpu": "4"})
    reserved(cluster, {}, containers=container("2"))
    cluster.pod("owner", cpu="1", labels={"app": "own"})
    cluster.until_bound("owner")
    annotations = {RESERVATION: "true", INDEX: "web"}
    cluster.pod("web", cpu="2", scheduler="godel-scheduler", annotations=annotations)
    cluster.until_bound("web")
    left(cluster, "web")
    ignoring = {IGNORED: "true"}
    cluster.pod("large", cpu="2", labels=ignoring)
    cluster.until_rejected("large", "Insufficient cpu")
    cluster.pod("small", cpu="1", labels=ignoring)
    cluster.until_bound("small")
    assert [owner.name for owner in cluster.status("r").current_owners] == ["owner"]


@pytest.mark.covers("FLT-41")
def test_reservation_ignored_prefers_room_that_nothing_reserves(cluster: Rooms) -> None:
    cluster.node(room={"cpu": "4"})
    reserved(cluster, {}, containers=container("3"))
    cluster.node("node-1", room={"cpu": "1"})
    cluster.pod("filler", cpu="1", labels={IGNORED: "true"}, nodeSelector={})
    cluster.until_bound("filler")
    cluster.pod("second", cpu="1", labels={IGNORED: "true"})
    cluster.until_bound("second")
    assert {cluster.node_of("filler"), cluster.node_of("second")} == {"node-0", "node-1"}
    cluster.pod("own", cpu="3", labels={"app": "own"})
    assert cluster.until_bound("own") == ["node-0"]


@pytest.mark.covers("FLT-41")
def test_operating_pod_lends_its_room_to_its_owners(cluster: Rooms) -> None:
    cluster.case("quota-10", "a")
    cluster.until_bound("holder")
    cluster.pod("stranger", cpu="1")
    cluster.until_rejected("stranger", "Insufficient cpu")
    cluster.case("quota-10", "b")
    assert cluster.until_bound("own") == ["n0"]
    allocated = orjson.loads(cluster.annotations("own")[ALLOCATED])
    assert allocated == {"name": "holder", "uid": cluster.get(Pod, "holder", "default").uid}
    # One owner at a time, and its room counts once.
    cluster.pod("next", cpu="1", labels={"app": "x"})
    cluster.until_rejected("next", "Insufficient cpu")
    cluster.stop()
    cluster.start()
    cluster.pod("after-restart", cpu="1")
    cluster.until_rejected("after-restart", "Insufficient cpu")
    cluster.delete_pod("next")
    cluster.delete_pod("own")
    cluster.pod("again", cpu="4", labels={"app": "x"})
    assert cluster.until_bound("again") == ["n0"]


@pytest.mark.covers("FLT-41")
def test_owner_that_waits_takes_the_room_of_an_operating_pod_at_once(cluster: Rooms) -> None:
    cluster.node(room={"cpu": "4"})
    owners = orjson.dumps([{"labelSelector": {"matchLabels": {"app": "own"}}}]).decode()
    cluster.pod(
        "r", cpu="4", labels={OPERATING_MODE: "Reservation"}, annotations={POD_OWNERS: owners}, priority=0
    )
    cluster.until_bound("r")
    cluster.pod("owner", cpu="4", labels={"app": "own"})
    assert cluster.until_bound("owner") == ["node-0"]
    cluster.delete_pod("r")
    cluster.until(lambda: cluster.gone(Pod, "r", "default"), "gone")
    cluster.pod("stranger", cpu="1")
    cluster.until_rejected("stranger", "Insufficient cpu")


@pytest.mark.covers("FLT-41")
@pytest.mark.parametrize("owners", ["{}", "[1]", "none", '[{"labelSelector": 3}]'])
def test_owners_that_cannot_be_read_are_reported_on_the_pod(cluster: Rooms, owners: str) -> None:
    cluster.node(room={"cpu": "4"})
    cluster.pod("r", cpu="1", labels={OPERATING_MODE: "Reservation"}, annotations={POD_OWNERS: owners})
    assert POD_OWNERS in cluster.until_rejected("r")
    assert cluster.waiting_for("r") == "InvalidAnnotation"
