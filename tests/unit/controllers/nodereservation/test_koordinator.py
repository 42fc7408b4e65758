"""A Koordinator reservation whose Node cannot be read keeps its room; a reservation without a Node ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from broker.apis.core import Node
from broker.apis.koordinator import ALLOCATED, AVAILABLE, FAILED, KoordinatorReservation
from broker.controllers.nodereservation.koordinator import UNREADABLE, KoordinatorController
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.errors import NotFound
from broker.kube.events import Recorder
from broker.placement.holds_bounds import RoomBounds
from tests.support.clock import FakeClock

NOW = datetime(2026, 11, 23, tzinfo=UTC)
NODE: dict[str, Any] = {"metadata": {"name": "node-0", "uid": "n", "resourceVersion": "1"}}
RESERVATION: dict[str, Any] = {
    "metadata": {"name": "kept", "uid": "r", "resourceVersion": "2", "creationTimestamp": NOW.isoformat()},
    "spec": {"template": {"spec": {"schedulerName": "koord-scheduler"}}, "ttl": "0"},
    "status": {"phase": AVAILABLE, "nodeName": "node-0"},
}


@dataclass
class Writes:
    """Collects the written phases and owners, the deletions, and the reasons of events. `pods`: the API
    server's, by name.
    """

    phases: list[str] = field(default_factory=list)
    owners: list[Any] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    pods: dict[str, Any] = field(default_factory=dict)

    def event(self, _about: object, _type: str, reason: str, _message: str) -> None:
        self.events.append(reason)

    def get(self, _kind: object, name: str, **_: object) -> Any:
        if name not in self.pods:
            raise NotFound(404, "NotFound", name)
        return self.pods[name]

    def patch(self, _kind: object, _name: str, body: Any, **_: object) -> None:
        self.phases.append(body["status"].get("phase", ""))
        self.owners.append(body["status"].get("currentOwners"))

    def delete(self, _kind: object, name: str, **_: object) -> None:
        self.deleted.append(name)


def reconciled(
    reservation: dict[str, Any], nodes: Cache[Node], *pods: dict[str, Any]
) -> tuple[Result | None, Writes]:
    writes = Writes(pods={pod["metadata"]["name"]: pod for pod in pods})
    reservations = Cache(KoordinatorReservation)
    reservations.apply("ADDED", reservation)
    context = ControllerContext(
        client=cast("Client", writes), recorder=cast("Recorder", writes), clock=FakeClock(NOW)
    )
    controller = KoordinatorController(
        context,
        reservations,
        nodes,
        owners=lambda _: (),
        schedulers=lambda: ["koord-scheduler"],
        bounds=RoomBounds(longest=0),
    )
    return controller.reconcile("kept"), writes


@pytest.fixture
def nodes() -> Cache[Node]:
    cache = Cache(Node)
    cache.apply("ADDED", NODE)
    return cache


def test_reservation_stays_while_its_node_cannot_be_read(nodes: Cache[Node]) -> None:
    nodes.leave_out(nodes.list()[0], "poison")
    result, writes = reconciled(RESERVATION, nodes)
    assert result == Result(UNREADABLE)
    assert FAILED not in writes.phases
    assert not writes.events
    nodes.apply("DELETED", NODE)
    _, writes = reconciled(RESERVATION, nodes)
    assert (writes.phases, writes.events) == ([FAILED], ["RoomNotKept"])


def test_ended_reservation_is_kept_for_its_day_if_its_node_cannot_be_read(nodes: Cache[Node]) -> None:
    ready = {"type": "Ready", "status": "False", "reason": "Expired", "lastTransitionTime": NOW.isoformat()}
    ended = RESERVATION | {"status": {"phase": FAILED, "nodeName": "node-0", "conditions": [ready]}}
    nodes.leave_out(nodes.list()[0], "poison")
    assert reconciled(ended, nodes)[1].deleted == []
    nodes.apply("DELETED", NODE)
    assert reconciled(ended, nodes)[1].deleted == ["kept"]


OWNER = {"namespace": "default", "name": "high", "uid": "p"}


def owner(**more: Any) -> dict[str, Any]:
    metadata = OWNER | {"annotations": {ALLOCATED: '{"name": "kept", "uid": "r"}'}} | more
    return {"metadata": metadata, "spec": {"nodeName": "node-0"}, "status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("pods", "written"),
    [([owner()], [[OWNER]]), ([], [[]]), ([owner(annotations={})], [[]]), ([owner(uid="other")], [[]])],
    ids=["annotated", "gone", "freed", "another"],
)
def test_recorded_owner_stays_until_the_api_server_shows_it_otherwise(
    nodes: Cache[Node], pods: list[dict[str, Any]], written: list[Any]
) -> None:
    """The cache may lack the annotation that made a running pod the owner."""
    held = RESERVATION | {"status": {**RESERVATION["status"], "currentOwners": [OWNER]}}
    assert reconciled(held, nodes, *pods)[1].owners == written
