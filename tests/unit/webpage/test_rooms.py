"""The page of rooms on nodes: a room without a pod has an owner there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from broker.apis import godel, names
from broker.apis import koordinator as koord
from broker.apis.core import Pod
from broker.apis.kueue import Namespace
from broker.controllers.nodereservation.node_holds import node_holds
from broker.controllers.nodereservation.room_rules import RoomRules
from broker.history.store import HistoryStore
from broker.kube.cache import Cache
from broker.placement.holds_bounds import RoomBounds
from broker.placement.holds_ledger import HoldLedger
from broker.placement.holds_reading import hold_link
from broker.webpage.rooms import RoomRow, rooms
from broker.webpage.scope import VisibleScope, visible
from tests.unit.webpage.world import get, page, state

pytestmark = pytest.mark.covers("FLT-63")
CREATED = datetime(2026, 11, 26, tzinfo=UTC)
OWNERS: list[dict[str, Any]] = [
    {"labelSelector": {"matchLabels": {"app": "own"}}},
    {"object": {"namespace": "team", "name": "db-0"}},
    {"controller": {"kind": "StatefulSet", "name": "db"}},
]


def meta(name: str, **more: Any) -> dict[str, Any]:
    at = CREATED.isoformat()
    return {"name": name, "uid": f"uid-{name}", "creationTimestamp": at, "resourceVersion": "1", **more}


def spec(cpu: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}


def rows(*pods: dict[str, Any]) -> list[RoomRow]:
    kept = {
        "metadata": meta("web-0", namespace="team", annotations={godel.INDEX: "web"}),
        "spec": {"nodename": "node-0", "ttl": 600, "template": {"spec": spec("2")}},
    }
    placed = {
        "metadata": meta("gpu-room"),
        "spec": {"owners": OWNERS, "template": {"spec": spec("4")}, "allocateOnce": False},
        "status": {"phase": "Available", "nodeName": "node-1", "allocatable": {"cpu": "4"}},
    }
    namespaces = Cache(Namespace)
    namespaces.replace([{"metadata": meta("team", annotations={names.KEPT_ROOM: "true"})}], 1)
    decoded = [Pod.decode(pod) for pod in pods]
    rules = RoomRules(RoomBounds(), namespaces, list, served=lambda: True)
    holds = node_holds(
        [koord.KoordinatorReservation.decode(placed)],
        [godel.GodelReservation.decode(kept)],
        decoded,
        frozenset(),
        rules,
    )
    links = [link for pod in decoded if (link := hold_link(pod)) is not None]
    return rooms(HoldLedger.of(holds, links, CREATED))


def test_room_without_a_pod_has_its_owner_its_amounts_and_its_end() -> None:
    koordinator, kept = rows()
    assert (kept.kind, kept.namespace, kept.name) == ("Gödel Reservation", "team", "web-0")
    assert (kept.owners, kept.node, kept.idle, kept.pods) == ("pods with the index web", "node-0", "2 cpu", 0)
    assert kept.until is not None
    assert (kept.until - CREATED).total_seconds() == 600
    assert koordinator.owners == "pods with app In own or the pod team/db-0 or pods of StatefulSet db"
    assert (koordinator.namespace, koordinator.idle) == ("", "4 cpu")


def test_rooms_that_pods_use_come_last_and_a_pod_may_be_a_room() -> None:
    allocated = orjson.dumps({"name": "gpu-room", "uid": "uid-gpu-room"}).decode()
    owner = {
        "metadata": meta("db-0", namespace="team", annotations={koord.ALLOCATED: allocated}),
        "spec": {"nodeName": "node-1", **spec("3")},
    }
    marks = {koord.POD_OWNERS: orjson.dumps(OWNERS[:1]).decode()}
    holder = {
        "metadata": meta(
            "holder", namespace="other", labels={koord.OPERATING_MODE: "Reservation"}, annotations=marks
        ),
        "spec": {"nodeName": "node-1", **spec("1")},
    }
    shown = [(row.kind, row.namespace, row.name, row.idle, row.pods) for row in rows(owner, holder)]
    assert shown == [
        ("Pod", "other", "holder", "1 cpu", 0),
        ("Gödel Reservation", "team", "web-0", "2 cpu", 0),
        ("Koordinator Reservation", "", "gpu-room", "1 cpu", 1),
    ]


def test_page_shows_each_room_with_its_namespace() -> None:
    with page(HistoryStore(), state()) as url:
        text = get(f"{url}/rooms").data.decode()
    for word in ("web-0", "team", "node-0", "gpu-room", "the cluster", "4 cpu", "in 2"):
        assert word in text


def test_person_sees_rooms_of_readable_namespaces_only() -> None:
    live = state()
    team = VisibleScope(cluster=False, namespaces=frozenset({"team"}))
    assert [row.name for row in visible(live, team).rooms] == ["web-0"]
    assert visible(live, VisibleScope(cluster=False, namespaces=frozenset({"x"}))).rooms == []
