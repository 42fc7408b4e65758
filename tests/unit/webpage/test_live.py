"""The present state of the page, from the caches of a broker."""

from __future__ import annotations

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.ome import CapacityReservation
from broker.capacity.inventory import Inventory
from broker.controllers.snapshot import Snapshot
from broker.oncall.situation import Situation
from broker.quota.usage import ReservationKey
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.webpage.live import LiveState, shown_state
from tests.unit.capacity.builders import NOW, odcr

BEFORE, NOW_OWNER = ReservationKey("team", "before"), ReservationKey("team", "now")


def reservation(reserved: ReservationKey, *odcrs: str) -> CapacityReservation:
    metadata = {"namespace": reserved.namespace, "name": reserved.name, "uid": str(reserved)}
    held = [{"id": id_, "flavor": "h100"} for id_ in odcrs]
    return CapacityReservation.decode({"metadata": metadata, "status": {"cloudReservations": held}})


def state(snapshot: Snapshot, *claims: NodeClaim) -> LiveState:
    inventory = Inventory(odcrs={"cr-1": odcr("cr-1")}, described=NOW)
    owners = snapshot.odcrs.owned.owner
    return shown_state(Situation(now=NOW, claims=claims, owners=owners, inventory=inventory), snapshot)


def test_every_view_has_the_owner_of_the_last_pass() -> None:
    """The ODCR was tagged anew: the status of its owner before is not written yet."""
    snapshot = Snapshot(
        version=1,
        reservations={BEFORE: reservation(BEFORE, "cr-1"), NOW_OWNER: reservation(NOW_OWNER)},
        odcrs=OdcrSnapshot(ownership=Ownership(owner={"cr-1": NOW_OWNER}, flavor={"cr-1": "h100"})),
    )
    metadata = {"name": "train-0", "uid": "u", "labels": {names.RESERVATION_ID: "cr-1"}}
    status = {"providerID": "aws:///us-east-1a/i-1"}
    live = state(snapshot, NodeClaim.decode({"metadata": metadata, "status": status}))
    assert [(view.owner, view.owned) for view in live.odcrs] == [("team/now", True)]
    assert {row.key: row.odcrs for row in live.reservations} == {"team/before": (), "team/now": ("cr-1",)}
    assert [loan.owner for loan in live.loans] == ["team/now"]
