"""Full reservations beside EC2's refusals: on the page, and each counted once."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from broker.history.store import HistoryStore
from broker.oncall.full_reservations import full_reservations
from broker.oncall.slot_holders import SlotUse, SlotUser
from broker.oncall.slot_marks import slot_rows
from broker.oncall.waiting_pods import WaitingPod
from broker.webpage.live import LiveState
from tests.unit.webpage.world import NOW, get, page, state

HOLDER = SlotUser(claim="train-1", pods=("ml/old",), owner="", since=NOW)


def use(id_: str, *, free: int = 0) -> SlotUse:
    return SlotUse(
        id=id_,
        type="p5.48xlarge",
        zone="us-east-1a",
        state="active",
        total=1,
        free=free,
        owner="",
        node_classes=frozenset({"gpu"}),
        holders=(HOLDER,),
    )


def pod(*ids: str) -> WaitingPod:
    since = NOW - timedelta(minutes=5)
    return WaitingPod(
        namespace="ml",
        name="train-0",
        owner="Deployment train",
        node_pool="gpu",
        reason="Unschedulable",
        message="no free slot",
        since=since,
        full=ids,
    )


@pytest.mark.covers("ONC-02")
def test_reservation_that_ec2_refused_too_is_listed_once() -> None:
    rows = full_reservations([pod("cr-1", "cr-2")], [use("cr-1"), use("cr-2")], state().shortages)
    assert [row.ids for row in rows] == [("cr-2",)]


@pytest.mark.covers("ONC-02")
def test_reservation_with_a_free_slot_is_not_listed() -> None:
    assert full_reservations([pod("cr-1")], [use("cr-1", free=1)], []) == []


@pytest.mark.covers("ONC-01", "ONC-02")
def test_overview_counts_and_links_full_reservations_with_pods_and_holders() -> None:
    rows = slot_rows([use("cr-7")], broken=(), price=lambda *_: None)
    live = replace(LiveState(now=NOW), slots=rows, waiting_pods=[pod("cr-7")])
    with page(HistoryStore(), live) as url:
        text = get(url).data.decode()
    part = text[text.index('id="short"') :]
    part = part[: part.index("</table>")]
    assert "ReservationFull" in part and 'href="/odcrs/cr-7"' in part and "No pool is short" not in part
    assert "1 pod waits: pod ml/train-0; held by claim train-1 (ml/old)" in re.sub("<[^>]*>", "", part)
    assert 'href="/pods/ml/train-0"' in part
