"""`capacity-broker idle`: the reserved slots that nobody uses, what they cost, and since when.

Slots are asked of EC2 now. EC2 does not tell since when a slot is free; what the broker has seen is in its
OnDemandCapacityReservations, and where they say nothing, it is unknown. What is tagged for a
CapacityReservation that the cluster does not have (any more) is marked: nobody there will use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation, OnDemandCapacityReservationStatus
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.capacity.idle import idle_cost
from broker.kube.client import Client
from broker.kube.errors import ApiError, NotFound
from broker.kube.transports import ConfigurationError
from broker.quota.usage import Reserved
from providers.base import CapacityProvider
from providers.model import InstanceType, Odcr

COLUMNS = {
    "id": "ID",
    "type": "TYPE",
    "zone": "ZONE",
    "idle": "IDLE",
    "total": "TOTAL",
    "usd_hour": "$/H",
    "since": "SINCE",
    "reservation": "RESERVATION",
    "flavor": "FLAVOR",
}
GONE = "not in this cluster"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the cluster knows: of EC2's reservations by id, and which CapacityReservations it has; None where
    that is not known."""

    records: Mapping[str, OnDemandCapacityReservationStatus] = field(default_factory=dict)
    reserved: frozenset[str] | None = None


def rows(provider: CapacityProvider, seen: Seen) -> list[dict[str, Any]]:
    """One row a reservation with idle slots, the dearest first. Raises ProviderError."""
    types = provider.instance_types()
    found = [_row(odcr, types, seen) for odcr in provider.reservations() if odcr.idle]
    return sorted(found, key=lambda row: (-(row["usd_hour"] or 0), row["type"], row["zone"], row["id"]))


def seen(client: Callable[[], Client]) -> tuple[Seen, str]:
    """What the cluster knows; else nothing, and why."""
    try:
        asked = client()
        items, _version = asked.list(OnDemandCapacityReservation.KIND)
    except (ApiError, ConfigurationError) as error:
        return Seen(), f"since when is not known: the broker's records cannot be read: {error}"
    records = {one.name: one.status for one in map(OnDemandCapacityReservation.decode, items)}
    reserved: set[str] = set()
    for model in (CapacityReservation, ClusterCapacityReservation):
        try:
            found, _version = asked.list(model.KIND)
        except NotFound:
            continue  # not installed: there is none
        except ApiError as error:
            why = f"whose reservations are gone is not known: {model.KIND.plural} cannot be read: {error}"
            return Seen(records=records), why
        meta = [each["metadata"] for each in found]
        reserved |= {str(Reserved(each.get("namespace", ""), each["name"])) for each in meta}
    return Seen(records=records, reserved=frozenset(reserved)), ""


def told(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows for a person."""
    return [
        {
            **row,
            "usd_hour": "unknown" if row["usd_hour"] is None else f"{row['usd_hour']:.2f}",
            "since": row["since"] or "unknown",
            "reservation": f"{row['reservation']} ({GONE})"
            if row["reservation_exists"] is False
            else row["reservation"],
        }
        for row in found
    ]


def total(found: Sequence[Mapping[str, Any]]) -> str:
    """The last line for a person."""
    slots, prices = sum(row["idle"] for row in found), [row["usd_hour"] for row in found]
    unpriced = f", {prices.count(None)} of unknown price" if None in prices else ""
    return f"idle: {slots} in {len(found)} reservations{unpriced}; {sum(p or 0 for p in prices):.2f} $/h"


def _row(odcr: Odcr, types: Mapping[str, InstanceType], seen: Seen) -> dict[str, Any]:
    status, reservation = seen.records.get(odcr.id), odcr.tags.get(names.TAG_RESERVATION, "")
    cost = idle_cost(odcr, types.get(odcr.instance_type))
    # More are free than the broker has seen: since when those are, nobody knows.
    since = status.idle_since if status and status.available >= odcr.idle else None
    return {
        "id": odcr.id,
        "type": odcr.instance_type,
        "zone": odcr.zone,
        "idle": odcr.idle,
        "total": odcr.total,
        "usd_hour": None if cost is None else round(cost, 2),
        "since": _moment(since),
        "reservation": reservation,
        "reservation_exists": reservation in seen.reserved
        if reservation and seen.reserved is not None
        else None,
        "flavor": odcr.tags.get(names.TAG_FLAVOR, ""),
        "owner": odcr.owner_id,
        "end": _moment(odcr.end),
    }


def _moment(at: datetime | None) -> str | None:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ") if at else None
