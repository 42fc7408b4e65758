"""The present state of the page, from the caches of a broker."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.karpenter import NodeClaim
from broker.apis.ome import CapacityReservation
from broker.capacity.inventory import Inventory
from broker.oncall.situation import Situation
from broker.quota.usage import ReservationKey
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.webpage.live import shown_state
from tests.unit.capacity.builders import NOW, odcr

BEFORE, NOW_OWNER = ReservationKey("team", "before"), ReservationKey("team", "now")


def reservation(reserved: ReservationKey, *odcrs: str) -> CapacityReservation:
    metadata = {"namespace": reserved.namespace, "name": reserved.name, "uid": str(reserved)}
    held = [{"id": id_, "flavor": "h100"} for id_ in odcrs]
    return CapacityReservation.decode({"metadata": metadata, "status": {"cloudReservations": held}})


def test_every_view_has_the_owner_of_the_last_pass() -> None:
    """The ODCR was tagged anew: the status of its owner before is not written yet."""
    metadata = {"name": "train-0", "uid": "u", "labels": {names.RESERVATION_ID: "cr-1"}}
    status = {"providerID": "aws:///us-east-1a/i-1"}
    mirror = {"metadata": {"name": "cr-1"}, "status": {"state": "active", "total": 2, "available": 1}}
    situation = Situation(
        now=NOW,
        claims=[NodeClaim.decode({"metadata": metadata, "status": status})],
        reservations=[reservation(BEFORE, "cr-1"), reservation(NOW_OWNER)],
        mirrors=[OnDemandCapacityReservation.decode(mirror)],
        odcrs=OdcrSnapshot(ownership=Ownership(owner={"cr-1": NOW_OWNER}, flavor={"cr-1": "h100"})),
        inventory=Inventory(odcrs={"cr-1": odcr("cr-1")}, described=NOW),
    )
    live = shown_state(situation)
    assert [(view.owner, view.owned) for view in live.odcrs] == [("team/now", True)]
    assert {row.key: row.odcrs for row in live.reservations} == {"team/before": (), "team/now": ("cr-1",)}
    assert [(loan.owner, loan.flavor, loan.claims) for loan in live.loans] == [
        ("team/now", "h100", ["train-0"])
    ]


@pytest.mark.covers("ONC-05")
def test_claim_of_karpenter_without_an_instance_waits_on_its_page_and_is_none_of_the_brokers() -> None:
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"}
    claim = NodeClaim.decode({"metadata": {"name": "theirs"}, "spec": {"nodeClassRef": reference}})
    live = shown_state(Situation(now=NOW, claims=[claim]))
    assert live.row(claim).waits and not live.waiting
