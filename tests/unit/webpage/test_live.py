"""The present state of the page, from the caches of a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.ome import CapacityReservation
from broker.app import Broker
from broker.capacity.inventory import Inventory
from broker.capacity.shortages import Shortages
from broker.controllers.snapshot import Snapshot
from broker.placement.holds_ledger import HoldLedger
from broker.quota.usage import ReservationKey
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.webpage.live import LiveState, live_state
from providers.base import AccountFacts
from tests.unit.capacity.builders import NOW, odcr

BEFORE, NOW_OWNER = ReservationKey("team", "before"), ReservationKey("team", "now")


def reservation(reserved: ReservationKey, *odcrs: str) -> CapacityReservation:
    metadata = {"namespace": reserved.namespace, "name": reserved.name, "uid": str(reserved)}
    held = [{"id": id_, "flavor": "h100"} for id_ in odcrs]
    return CapacityReservation.decode({"metadata": metadata, "status": {"cloudReservations": held}})


def state(snapshot: Snapshot, *claims: NodeClaim, listing: object = None) -> LiveState:
    def cache(*objects: object) -> SimpleNamespace:
        return SimpleNamespace(cache=SimpleNamespace(list=lambda: list(objects)))

    inventory = Inventory(odcrs={"cr-1": odcr("cr-1")}, described=NOW)
    broker: Any = SimpleNamespace(
        inventory=SimpleNamespace(snapshot=lambda: inventory, unreadable=None),
        read=SimpleNamespace(
            claims=cache(*claims), classes=cache(), pools=cache(), pods=cache(), nodes=cache()
        ),
        mirrors=cache().cache,
        reads=SimpleNamespace(snapshot=lambda: snapshot, namespaces=cache()),
        launcher=SimpleNamespace(shortages=Shortages()),
        occupancy=SimpleNamespace(ledger=lambda _: HoldLedger()),
        caches=SimpleNamespace(owns=lambda _: True),
        waiting_pods=list,
        slot_rows=list,
        types=dict,
        node_prices=lambda: lambda _: None,
        instances=SimpleNamespace(listing=listing),
        outside_cost=lambda: {("m5.large", "us-east-1a"): 0.1, ("p5.48xlarge", "us-east-1b"): 55.0},
    )
    provider: Any = SimpleNamespace(account_id=lambda: "123456789012")
    return live_state(cast(Broker, broker), cast(AccountFacts, provider), NOW)


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


def test_dollars_outside_of_reservations_are_unknown_before_ec2_listed_the_instances() -> None:
    nothing = Snapshot(version=1, reservations={}, odcrs=OdcrSnapshot(ownership=Ownership()))
    assert state(nothing).outside is None
    assert state(nothing, listing=object()).outside == 55.1
