"""A Gödel reservation counts against its namespace's limits only while its node exists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.apis.core import Node
from broker.apis.godel import RESERVED, GodelReservation
from broker.controllers.nodereservation.godel import GodelReservationController
from broker.kube.cache import Cache
from broker.kube.context import ControllerContext
from tests.support.clock import FakeClock


def test_reservation_is_shown_beside_an_older_one_whose_node_is_gone() -> None:
    reservations, nodes, written = Cache(GodelReservation), Cache(Node), list[Any]()
    nodes.observe({"metadata": {"name": "node-1", "uid": "n", "resourceVersion": "1"}})
    for number, name in enumerate(("older", "newer")):
        metadata = {"name": name, "namespace": "ml", "uid": name, "resourceVersion": "1"}
        reservations.observe({"metadata": metadata, "spec": {"nodename": f"node-{number}"}})
    rules: Any = SimpleNamespace(
        refused=lambda items: {item.uid: "its limit is reached" for item in [*items][1:]},
        bounds=SimpleNamespace(seconds=lambda _: 60),
    )
    client: Any = SimpleNamespace(patch=lambda _, name, body, **__: written.append((name, body["status"])))
    context = ControllerContext(client=client, recorder=client, clock=FakeClock())
    controller = GodelReservationController(context, reservations, nodes, owners=lambda _: (), rules=rules)
    assert controller.reconcile("ml/newer") is not None
    assert written == [("newer", {"phase": RESERVED})]
