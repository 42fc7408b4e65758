"""`capacity-broker idle`: the inventory's rows with idle slots; the dearest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

COLUMNS = {
    "id": "ID",
    "type": "TYPE",
    "zone": "ZONE",
    "idle_of": "IDLE",
    "usd_hour": "$/H",
    "idle_for": "FOR",
    "owner": "OWNER",
    "flavor": "FLAVOR",
}
EXTRA = ("flavor",)


def rows(odcr_rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Selects the rows of `inventory.rows` with idle slots, the dearest first."""
    idle = [dict(row) for row in odcr_rows if row["idle"]]
    return sorted(idle, key=lambda row: (-(row["usd_hour"] or 0), row["type"], row["zone"], row["id"]))
