"""A page over a filled history and a present state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import urllib3

from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.ome import ReservationSummary
from broker.history.recorder import HistoryRecorder
from broker.history.store import HistoryStore
from broker.oncall.short_pools import ShortageRow
from broker.oncall.slot_holders import SlotUse, SlotUser
from broker.oncall.slot_marks import SlotRow, slot_rows
from broker.reservations.odcr_view import OdcrView
from broker.webpage.access import AccessRules, PageAccess
from broker.webpage.details import NO_DETAILS, Details
from broker.webpage.lending import LoanRow
from broker.webpage.live import ClaimRow, LiveState, ReservationRow
from broker.webpage.rooms import RoomRow
from broker.webpage.server import WebPage
from providers.model import Odcr
from tests.support.clock import FakeClock
from tests.unit.history.facts import AT

CLOCK = FakeClock(AT + timedelta(hours=1))
NOW = CLOCK.now()
OPEN = PageAccess(AccessRules(), None, clock=CLOCK)


def waiting(name: str = "train-1", **more: str) -> ClaimRow:
    given: dict[str, Any] = {
        "node_class": "gpu",
        "node_pool": "gpu",
        "reason": "InsufficientCapacity",
        "message": "is short",
    }
    given |= {"instance": "", "node": "", "zone": "", "instance_type": "", "reservation": ""} | more
    return ClaimRow(name=name, created=AT, waits=True, **given)


def of_rows(*rows: ClaimRow) -> dict[str, Any]:
    """The fields of a state whose claims have these rows."""
    by_name = {row.name: row for row in rows}
    claims = [NodeClaim.decode({"metadata": {"name": row.name}, "spec": {}}) for row in rows]
    return {
        "claims": claims,
        "waiting": [row for row in rows if row.waits],
        "row": lambda claim: by_name[claim.name],
    }


def odcr(id_: str = "cr-1", *, available: int = 3, **more: Any) -> OdcrView:
    reservation = Odcr(
        id=id_, instance_type="p5.48xlarge", zone="us-east-1a", total=8, available=available, **more
    )
    return OdcrView(odcr=reservation, owner="team/gpus", owned=True, cost=55.04 * reservation.idle)


def state(claims: int = 1, odcrs: int = 1) -> LiveState:
    return LiveState(
        now=NOW,
        described=NOW,
        unreadable="",
        **of_rows(*(waiting(f"train-{n}") for n in range(1, claims + 1))),
        odcrs=[odcr(f"cr-{n}") for n in range(1, odcrs + 1)],
        reservations=[
            ReservationRow(
                namespace="team",
                name="gpus",
                state="ACTIVE",
                detail="",
                cohort="all",
                summary=ReservationSummary(gpu_total=64, gpu_allocated=40, gpu_borrowed=8),
                odcrs=("cr-1",),
                conditions=(),
            )
        ],
        shortages=[
            ShortageRow(
                scope="p5.48xlarge in us-east-1a, reserved",
                key="reservation:cr-1",
                way_out="Wait, or allow more zones.",
                code="InsufficientInstanceCapacity",
                error_class="capacity",
                message="no capacity",
                since=AT,
                last=AT,
                until=NOW + timedelta(minutes=3),
            )
        ],
        classes=[EC2NodeClass.decode({"metadata": {"name": "gpu"}})],
        pools=[NodePool.decode({"metadata": {"name": "gpu"}})],
        loans=[
            loan("team/gpus", "other/research", ("train-8", "train-9"), ending=1),
            loan("team/gpus", "", ("train-7",)),
        ],
        rooms=[room("team", "web-0"), room("", "gpu-room")],
        slots=slots(odcrs),
    )


def slots(odcrs: int) -> list[SlotRow]:
    """The slots of the reservations; those of the first one have a user for each use."""
    users = [
        holder("train-1"),
        holder("train-2", "other/research"),
        holder("train-3", ends="its claim ends"),
        holder("train-4"),
    ]
    uses = [
        SlotUse(
            id=f"cr-{n}",
            type="p5.48xlarge",
            zone="us-east-1a",
            state="active",
            total=8,
            free=2 if n == 1 else 3,
            kept=int(n == 1),
            owner="team/gpus",
            node_classes=frozenset(),
            holders=tuple(users if n == 1 else [holder(f"batch-{n}")]),
        )
        for n in range(1, odcrs + 1)
    ]
    return slot_rows(uses, broken={"train-4"}, price=lambda _: 55.04)


def holder(claim: str, owner: str = "team/gpus", *, ends: str = "") -> SlotUser:
    pods = (f"team/worker-of-{claim}", f"secret/helper-of-{claim}")
    return SlotUser(claim=claim, pods=pods, owner=owner, since=AT, ends=ends)


def room(namespace: str, name: str) -> RoomRow:
    return RoomRow(
        kind="Gödel Reservation" if namespace else "Koordinator Reservation",
        namespace=namespace,
        name=name,
        node="node-0",
        owners=f"pods with the index {name}",
        idle="4 cpu",
        pods=0,
        until=NOW + timedelta(hours=2),
    )


def loan(owner: str, borrower: str, claims: tuple[str, ...], *, ending: int = 0) -> LoanRow:
    return LoanRow(
        owner=owner,
        borrower=borrower,
        flavor="h100",
        slots=len(claims),
        claims=claims,
        ending=ending,
    )


@contextmanager
def page(
    store: HistoryStore,
    live: LiveState | None = None,
    access: PageAccess = OPEN,
    details: Details = NO_DETAILS,
) -> Iterator[str]:
    """The address of a page over this history and state."""
    store.open()
    recorder = HistoryRecorder(store, clock=CLOCK)
    recorder.forecast()
    web_page = WebPage(
        recorder, lambda: live, access, clock=CLOCK, host="127.0.0.1", port=0, details=lambda: details
    )
    web_page.start()
    try:
        yield web_page.url
    finally:
        web_page.close()
        store.close()


def get(url: str, method: str = "GET", **headers: str) -> urllib3.BaseHTTPResponse:
    return urllib3.request(method, url, headers=headers, timeout=30, retries=False)
