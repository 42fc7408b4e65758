"""Rooms with garbage in their annotations, templates and times: held room stays held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from broker.apis.koordinator import EXACT_MATCH, NODE_RESERVATION, RESTRICTED_OPTIONS, KoordinatorReservation
from tests.cluster.rooms import Rooms, rooms

CONTAINER = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "banana"}}}
TEMPLATE = {"spec": {"schedulerName": "koord-scheduler", "containers": [CONTAINER]}}


@pytest.fixture
def cluster() -> Iterator[Rooms]:
    with rooms() as rooms_:
        rooms_.start()
        rooms_.node("node-0", room={"cpu": "8"})
        yield rooms_


@pytest.mark.parametrize(
    "garbage",
    [
        {"metadata": {"annotations": {NODE_RESERVATION: '{"resources":["cpu"]}'}}},
        {"metadata": {"annotations": {NODE_RESERVATION: '{"resources":{"cpu":{}}}'}}},
        {"metadata": {"annotations": {RESTRICTED_OPTIONS: '{"resources":5}'}}},
        {"spec": {"template": TEMPLATE}},
    ],
    ids=["node reservation", "quantity", "options", "template"],
)
@pytest.mark.parametrize("owned", [False, True], ids=["idle", "owned"])
def test_held_room_stays_closed(cluster: Rooms, garbage: Mapping[str, Any], *, owned: bool) -> None:
    cluster.reservation(cpu="7", allocateOnce=False, allocatePolicy="Restricted")
    cluster.until_phase("Available")
    if owned:
        cluster.pod("owner", cpu="1", labels={"app": "demo"})
        cluster.until_bound("owner")
        cluster.until(lambda: cluster.status().allocated.get("cpu") == "1", "allocated")
    cluster.client.patch(KoordinatorReservation.KIND, "reservation-demo", garbage)
    cluster.pod("stranger", cpu="5")
    assert "Insufficient cpu" in cluster.until_rejected("stranger")
    cluster.pod("beside", cpu="1")
    cluster.until_bound("beside")
    assert not cluster.node_of("stranger")
    assert cluster.status().phase == "Available"


@pytest.mark.parametrize("text", ['{"resourceNames":5}', '{"resourceNames":[5]}', '{"resourceNames":"cpu"}'])
def test_a_pod_with_garbage_waits_with_the_reason(cluster: Rooms, text: str) -> None:
    cluster.pod("garbage", cpu="1", annotations={EXACT_MATCH: text})
    assert EXACT_MATCH in cluster.until_rejected("garbage")
    cluster.pod("other", cpu="1")
    cluster.until_bound("other")
    assert not cluster.messages("garbage", "LeftOut")
