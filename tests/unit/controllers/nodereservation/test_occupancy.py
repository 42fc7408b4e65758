"""The room on nodes that pods take and reservations keep, as all loops that place pods see it."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from broker.apis import godel, koordinator
from broker.apis.core import Node, Pod
from broker.apis.kueue import Namespace
from broker.controllers.nodereservation.occupancy import OccupancyReader
from broker.controllers.nodereservation.room_rules import RoomRules
from broker.kube.cache import Cache
from broker.placement.holds_bounds import RoomBounds

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def pod(name: str, *, node: str = "", phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
    meta = {"name": name, "namespace": "team", "uid": name, "resourceVersion": "1", **metadata}
    return {
        "metadata": meta,
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": phase},
    }


def reservation(name: str, *, node: str = "") -> dict[str, Any]:
    status = {"phase": "Available", "nodeName": node, "allocatable": {"cpu": "2"}} if node else {}
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": {}, "status": status}


def reader(pods: list[dict[str, Any]], reservations: list[dict[str, Any]]) -> OccupancyReader:
    cached, nodes = Cache(Pod), Cache(Node)
    cached.replace(pods, 1)
    held: Cache[koordinator.KoordinatorReservation] = Cache(koordinator.KoordinatorReservation)
    held.replace(reservations, 1)
    reads: Any = SimpleNamespace(
        koordinator=SimpleNamespace(cache=held),
        godel=SimpleNamespace(cache=Cache(godel.GodelReservation)),
        served_names=frozenset,
        guard=nullcontext,
        rules=lambda bounds, spaces: RoomRules(bounds, spaces, list, served=lambda: False),
    )
    namespaces: Any = SimpleNamespace(cache=Cache(Namespace), complete=True)
    namespaces.cache.replace([{"metadata": {"name": "team", "labels": {"tier": "one"}}}], 1)
    return OccupancyReader(reads, nodes, cached, namespaces, bounds=RoomBounds())


def test_pods_and_idle_holds_use_room_and_ended_pods_do_not() -> None:
    pods = [pod("runs", node="n"), pod("ended", node="n", phase="Succeeded"), pod("waits", phase="Pending")]
    room = reader(pods, [reservation("kept", node="n"), reservation("unplaced")]).read(NOW)
    assert [(info.name, info.node_name) for info in room.occupied] == [("runs", "n"), ("kept", "n")]
    assert room.held == {"n": ("kept",)}
    assert room.infos.keys() == {"team/runs", "team/ended", "team/waits"}


def test_ended_pod_takes_room_until_a_reservation_keeps_it() -> None:
    ending = {"deletionTimestamp": NOW.isoformat(), "finalizers": [godel.FINALIZER]}
    room = reader([pod("old", node="n", phase="Succeeded", **ending)], []).read(NOW)
    assert [info.name for info in room.occupied] == ["old"]
    assert room.held == {"n": ("team/old",)}


def test_changed_pod_is_read_again() -> None:
    cached = reader([pod("runs", node="n")], [])
    before = cached.read(NOW).infos["team/runs"]
    assert cached.read(NOW).infos["team/runs"] is before
    moved = Pod.decode(pod("runs", node="other", resourceVersion="2"))
    assert cached.read(NOW, [moved]).infos["team/runs"].node_name == "other"


def test_placement_has_the_labels_of_namespaces() -> None:
    room = reader([pod("runs", node="n")], []).read(NOW)
    assert room.placement.namespaces == {"team": {"tier": "one"}}
