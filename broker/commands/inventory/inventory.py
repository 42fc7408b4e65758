"""`capacity-broker inventory`: every reservation that the account sees, its owner, its idle slots and their
cost.

Slots are read from EC2 now. EC2 does not publish since when a slot is free. The broker's observations are
in its OnDemandCapacityReservations; without them the time is unknown. An owner is the CapacityReservation
of a reservation, by the rule of launches; without a cluster, by the reservation's tag. A tag of a
CapacityReservation that the cluster no longer has is marked: no claim there will use the slots. So are
reservations of another cluster's broker, because names in two clusters may be equal. While the cluster's
own name is unknown, every name counts as another's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation, OnDemandCapacityReservationStatus
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.commands.dry_run import AccountReads
from broker.commands.output import age
from broker.kube.client import Client
from broker.kube.errors import ApiError, NotFound
from broker.kube.transports import NoClusterNamed
from broker.reservations.flavors import NO_FLAVORS
from broker.reservations.odcr_view import OdcrView, owner_text, view_of
from broker.reservations.ownership import ALL_ADOPTERS, OwnershipClaim, resolve_ownership
from broker.reservations.reading import as_decided
from broker.reservations.spec import JudgedSpecs, Reservation
from broker.text import counted, format_time
from providers.model import Odcr
from providers.names import MANAGER, TAG_CLUSTER
from providers.odcr_states import Maker

# Columns for people; machines get every key of a row. Those of EXTRA are left out if they do not fit.
COLUMNS = {
    "id": "ID",
    "type": "TYPE",
    "zone": "ZONE",
    "free_of": "FREE",
    "lent_text": "LENT",
    "state": "STATE",
    "usd_hour": "IDLE-$/H",
    "owner": "OWNER",
    "end": "END",
    "kind": "KIND",
    "match": "MATCH",
}
EXTRA = ("match", "kind", "end")
IDLE_COLUMNS = {
    "id": "ID",
    "type": "TYPE",
    "zone": "ZONE",
    "idle_of": "IDLE",
    "usd_hour": "$/H",
    "idle_for": "FOR",
    "owner": "OWNER",
    "flavor": "FLAVOR",
}
IDLE_EXTRA = ("flavor",)
MAKERS: Mapping[Maker, str] = {"broker": MANAGER, "terraform": "Terraform", "other": ""}
GONE = "not in this cluster"
MODELS = (CapacityReservation, ClusterCapacityReservation)


@dataclass(frozen=True, kw_only=True)
class InventoryRecords:
    """The cluster's records: EC2's reservations by id, and its CapacityReservations; None if unknown."""

    records: Mapping[str, OnDemandCapacityReservationStatus] = field(default_factory=dict)
    claimants: Sequence[OwnershipClaim] | None = None


def read_records(client: Callable[[], Client]) -> tuple[InventoryRecords, str]:
    """The cluster's records; else nothing, and the reason. Raises ConfigurationError for an unusable
    kubeconfig that the user named.
    """
    try:
        connected = client()
        items, _version = connected.list(OnDemandCapacityReservation.KIND)
    except (ApiError, NoClusterNamed) as error:
        return (
            InventoryRecords(),
            f"owners are read from tags alone, and idle times are unknown: {error}",
        )
    records = {mirror.name: mirror.status for mirror in map(OnDemandCapacityReservation.decode, items)}
    claimants: list[OwnershipClaim] = []
    for model in MODELS:
        try:
            raws, _version = connected.list(model.KIND)
        except NotFound:
            continue  # not installed: there is none
        except ApiError as error:
            why = f"owners are read from tags alone: {model.KIND.plural} cannot be read: {error}"
            return InventoryRecords(records=records), why
        claimants += (_claimant(model.decode(raw)) for raw in raws)
    return InventoryRecords(records=records, claimants=claimants), ""


def _claimant(reservation: Reservation) -> OwnershipClaim:
    """The flavor of a reservation does not matter for its owner."""
    flavors = NO_FLAVORS.instances({}, ())
    return as_decided(reservation, JudgedSpecs().of(reservation), flavors)


def rows(
    provider: AccountReads, records: InventoryRecords, *, cluster: str = "", now: datetime
) -> list[dict[str, Any]]:
    """One row a reservation, the launchable ones first. `cluster` is the name of the cluster with the
    listed CapacityReservations. Raises ProviderError.
    """
    types, odcrs = provider.instance_types(), provider.reservations()
    claimants = records.claimants or ()
    ownership = resolve_ownership(odcrs, {}, claimants, cluster=cluster, adopters=ALL_ADOPTERS)
    ordered = sorted(odcrs, key=lambda o: (not o.active, o.instance_type, o.zone, o.id))
    account = provider.account_id()
    views = (
        view_of(
            odcr,
            types,
            account=account,
            owner=ownership.owner.get(odcr.id),
            since=_since(odcr, records.records.get(odcr.id)),
        )
        for odcr in ordered
    )
    return [_row(view, records, cluster, now) for view in views]


def idle(odcr_rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Selects those of `rows` with idle slots, the dearest first."""
    selected = [dict(row) for row in odcr_rows if row["idle"]]
    return sorted(selected, key=lambda row: (-(row["usd_hour"] or 0), row["type"], row["zone"], row["id"]))


def _since(odcr: Odcr, status: OnDemandCapacityReservationStatus | None) -> datetime | None:
    """The recorded time; unknown if more are free than the broker has seen."""
    return status.idle_since if odcr.idle and status and status.available >= odcr.idle else None


def _row(view: OdcrView, records: InventoryRecords, cluster: str, now: datetime) -> dict[str, Any]:
    odcr, reservation, since = view.odcr, view.owner, view.since
    # An annotation here may name a reservation of another cluster's broker: then it is this cluster's.
    named = odcr.tags.get(TAG_CLUSTER, "")
    elsewhere = named if reservation and not view.owned and named != cluster else ""
    exists = None
    if reservation and not elsewhere and records.claimants is not None:
        exists = reservation in {str(claimant.reserved) for claimant in records.claimants}
    return {
        "id": odcr.id,
        "type": odcr.instance_type,
        "zone": odcr.zone,
        "state": odcr.state,
        "kind": odcr.kind,
        "match": odcr.match_criteria,
        "total": odcr.total,
        "free": odcr.available,
        "idle": odcr.idle,
        "lent": odcr.lent,
        "lent_to": odcr.lent_to,
        "lent_by": odcr.source_id,
        "usd_hour": None if view.cost is None else round(view.cost, 2),
        "since": since and format_time(since),
        "idle_for": age(now - since) if since else None,
        "reservation": reservation,
        "reservation_exists": exists,
        "other_cluster": elsewhere,
        "flavor": odcr.tags.get(names.TAG_FLAVOR, ""),
        "made_by": MAKERS[odcr.maker],
        "account": odcr.owner_id,
        "shared_by": view.shared_by,
        "platform": odcr.platform,
        "tenancy": odcr.tenancy,
        "end": odcr.end and format_time(odcr.end),
        "tags": dict(odcr.tags),
    }


def format_rows(rows_: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows for a person."""
    return [
        {
            **row,
            "free_of": f"{row['free']}/{row['total']}",
            "lent_text": f"{row['lent']} to {row['lent_to']}" if row["lent"] else "",
            "idle_of": f"{row['idle']}/{row['total']}",
            "usd_hour": "unknown" if row["usd_hour"] is None else f"{row['usd_hour']:.2f}",
            "idle_for": row["idle_for"] or ("unknown" if row["idle"] else None),
            "end": row["end"] and row["end"].replace("T", " ")[:16] + "Z",
            "owner": _owner(row),
        }
        for row in rows_
    ]


def columns(rows_: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The columns of a table: LENT only if a reservation lends."""
    lends = any(row["lent"] for row in rows_)
    return {key: heading for key, heading in COLUMNS.items() if lends or key != "lent_text"}


def _owner(row: Mapping[str, Any]) -> str:
    if row["other_cluster"]:
        return f"{row['reservation']} (cluster {row['other_cluster']})"
    if row["reservation_exists"] is False:
        return f"{row['reservation']} ({GONE})"
    return owner_text(row["reservation"], row["shared_by"]) or row["made_by"] or "none"


def total(rows_: Sequence[Mapping[str, Any]], *, account: str) -> str:
    """The last line for a person; slots are those of active ones, since EC2 holds none for the others."""
    active = [row for row in rows_ if row["state"] == "active"]
    prices = [row["usd_hour"] for row in active]
    unpriced = f", {prices.count(None)} without a price" if None in prices else ""
    idle, slots = (sum(row[key] for row in active) for key in ("idle", "total"))
    where = counted(len(active), "reservation")
    rest = f"; {len(rows_) - len(active)} not active" if len(rows_) > len(active) else ""
    cost = sum(price or 0 for price in prices)
    lent = sum(row["lent"] for row in active)
    rest += f"; {lent} lent" if lent else ""
    return f"{account}: {idle} of {counted(slots, 'slot')} idle in {where}{unpriced}; {cost:.2f} $/h{rest}"
