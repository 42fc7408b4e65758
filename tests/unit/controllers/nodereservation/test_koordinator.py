"""A Koordinator reservation whose Node cannot be read keeps its room; a reservation without a Node ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from broker.apis.core import Node
from broker.apis.koordinator import AVAILABLE, FAILED, KoordinatorReservation
from broker.controllers.nodereservation.koordinator import UNREADABLE, KoordinatorController
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
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
    """Collects the phases that are written, and the deletions."""

    phases: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    def patch(self, _kind: object, _name: str, body: Any, **_: object) -> None:
        self.phases.append(body["status"].get("phase", ""))

    def delete(self, _kind: object, name: str, **_: object) -> None:
        self.deleted.append(name)


def reconciled(reservation: dict[str, Any], nodes: Cache[Node]) -> tuple[Result | None, Writes]:
    writes = Writes()
    reservations = Cache(KoordinatorReservation)
    reservations.apply("ADDED", reservation)
    context = ControllerContext(
        client=cast("Client", writes), recorder=cast("Recorder", None), clock=FakeClock(NOW)
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
    nodes.apply("DELETED", NODE)
    assert reconciled(RESERVATION, nodes)[1].phases == [FAILED]


def test_ended_reservation_is_kept_for_its_day_if_its_node_cannot_be_read(nodes: Cache[Node]) -> None:
    ready = {"type": "Ready", "status": "False", "reason": "Expired", "lastTransitionTime": NOW.isoformat()}
    ended = RESERVATION | {"status": {"phase": FAILED, "nodeName": "node-0", "conditions": [ready]}}
    nodes.leave_out(nodes.list()[0], "poison")
    assert reconciled(ended, nodes)[1].deleted == []
    nodes.apply("DELETED", NODE)
    assert reconciled(ended, nodes)[1].deleted == ["kept"]
