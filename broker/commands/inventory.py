"""`capacity-broker inventory`: every reservation that the account sees, and what idles at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from broker.capacity.idle import idle_cost
from providers.base import CapacityProvider
from providers.model import InstanceType, Odcr

COLUMNS = {
    "id": "ID",
    "type": "TYPE",
    "zone": "ZONE",
    "total": "TOTAL",
    "free": "FREE",
    "match": "MATCH",
    "state": "STATE",
    "kind": "KIND",
    "end": "END",
    "idle_usd_hour": "IDLE $/H",
}


def rows(provider: CapacityProvider) -> list[dict[str, Any]]:
    """One row a reservation, those that can be launched into first. Raises ProviderError."""
    types = provider.instance_types()
    found = provider.reservations()
    ordered = sorted(found, key=lambda o: (o.state != "active", o.instance_type, o.zone, o.id))
    return [_row(odcr, types) for odcr in ordered]


def _row(odcr: Odcr, types: Mapping[str, InstanceType]) -> dict[str, Any]:
    cost = idle_cost(odcr, types.get(odcr.instance_type))
    return {
        "id": odcr.id,
        "type": odcr.instance_type,
        "zone": odcr.zone,
        "total": odcr.total,
        "free": odcr.available,
        "match": odcr.match_criteria,
        "state": odcr.state,
        "kind": "interruptible" if odcr.interruptible else odcr.reservation_type,
        "owner": odcr.owner_id,
        "platform": odcr.platform,
        "tenancy": odcr.tenancy,
        "end": _date(odcr.end),
        "idle_usd_hour": round(cost, 2) if cost is not None else None,
        "tags": dict(odcr.tags),
    }


def _date(moment: datetime | None) -> str:
    return moment.strftime("%Y-%m-%d %H:%MZ") if moment else ""
