"""Koordinator's table of ends of reservations, as data."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from broker.apis.koordinator import KoordinatorReservation
from broker.text import format_time
from tests.cases import Case, cases
from tests.cluster.rooms import rooms

# Koordinator's code keeps a reservation with `ttl: 0` beyond `expires`;
# both its documents and the broker end it.
DECIDED = {"E6": "Expired"}


@pytest.mark.covers("KOO-08")
def test_reservations_end_as_in_koordinator() -> None:
    rows = sorted(cases("koordinator", "expiry"), key=lambda row: -int(row["age_s"]))
    with rooms() as cluster:
        cluster.node("node-0")
        began = cluster.clock.now()
        oldest = timedelta(seconds=rows[0]["age_s"])
        for row in rows:
            cluster.clock.advance(
                (began + oldest - timedelta(seconds=row["age_s"]) - cluster.clock.now()).total_seconds()
            )
            spec: dict[str, Any] = {"ttl": f"{row['ttl_s']}s"}
            if "expires_in_s" in row:
                spec["expires"] = format_time(began + oldest + timedelta(seconds=row["expires_in_s"]))
            name = cluster.reservation(row["id"].lower(), cpu="100m", **spec)
            status = {"phase": row["phase"], "nodeName": "node-0", "allocatable": {"cpu": "100m"}}
            cluster.client.patch(KoordinatorReservation.KIND, name, {"status": status}, subresource="status")
        cluster.start(longest_reservation_ttl=0)

        def phase(row: Case) -> str:
            return cluster.status(row["id"].lower()).phase

        ended = [row for row in rows if DECIDED.get(row["id"], row["want"]) == "Expired"]
        for row in ended:
            ready = cluster.until_phase("Failed", row["id"].lower()).conditions[-1]
            assert (ready.type, ready.status, ready.reason) == ("Ready", "False", "Expired"), row["id"]
        assert {row["id"] for row in rows if phase(row) == "Failed"} == {row["id"] for row in ended}
        assert len(rows) - len(ended) >= 2
