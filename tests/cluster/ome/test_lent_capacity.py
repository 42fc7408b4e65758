"""Capacity that was lent by an interruptible allocation, and taken back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from broker.apis.capacity_broker import OnDemandCapacityReservation, OnDemandCapacityReservationStatus
from broker.commands.inventory import inventory
from broker.webpage.live import live_state
from tests.cluster.ome.bought import CANCEL, broker_odcrs, change_quota, create_reservation, flavored, sizes
from tests.cluster.ome.reserved import flavors_alone, reservation_status
from tests.cluster.stack import Stack


@pytest.mark.covers("FLT-01")
def test_lent_capacity_belongs_to_its_reservation_until_it_returns(stack: Stack) -> None:
    ec2 = stack.aws.ec2
    flavors_alone(stack)
    flavored(stack)
    stack.start(buy_dollars=1000.0, buy_dollars_each=1000.0, buy_dollars_namespace=1000.0)
    create_reservation(stack, 4, annotations=CANCEL)
    stack.until(
        lambda: reservation_status(stack).get("capacityReservationLifecycleState") == "Active",
        "4 are reserved",
    )
    id_ = broker_odcrs(ec2)[0]["CapacityReservationId"]
    ec2.create_interruptible_capacity_reservation_allocation(CapacityReservationId=id_, InstanceCount=2)
    stack.until(lambda: mirror(stack, id_).lent, "the loan is shown", step=1.0)
    mirrored = mirror(stack, id_)
    spare = mirrored.lent_to
    assert (mirrored.total, mirrored.available, mirrored.lent) == (2, 2, 2)
    stack.polls(3)
    provider = stack.current
    assert provider is not None
    assert (sizes(ec2), stack.calls("ModifyCapacityReservation")) == ({"us-east-1a": 2}, 0)

    (row,) = (
        row
        for row in inventory.rows(provider, inventory.InventoryRecords(), now=stack.clock.now())
        if row["id"] == id_
    )
    assert (row["lent"], row["lent_to"]) == (2, spare)
    (shown,) = (row for row in inventory.format_rows([row]))
    assert (shown["lent_text"], inventory.columns([row])["lent_text"]) == (f"2 to {spare}", "LENT")
    broker = stack.broker
    assert broker is not None
    page = {view.odcr.id: view.odcr for view in live_state(broker).odcrs}
    assert (page[id_].lent, page[id_].lent_to, page[spare].source_id) == (2, spare, id_)
    (entry,) = stack.until(
        lambda: [c for c in reservation_status(stack)["cloudReservations"] if c.get("lent")],
        "the status names the loan",
        step=1.0,
    )
    assert (entry["id"], entry["total"], entry["lent"], entry["lentTo"]) == (id_, 2, 2, spare)
    stack.until(
        lambda: f"{id_} lends 2 instances to {spare}" in str(reservation_status(stack)["conditions"]),
        "a condition says why two machines are not there",
        step=1.0,
    )

    # A higher quota buys the difference alone, also by a broker that starts during the loan.
    stack.stop()
    stack.start(buy_dollars=1000.0, buy_dollars_each=1000.0, buy_dollars_namespace=1000.0)
    change_quota(stack, 5)
    stack.until(lambda: sizes(ec2) == {"us-east-1a": 3}, "one more is bought")
    ec2.update_interruptible_capacity_reservation_allocation(CapacityReservationId=id_, TargetInstanceCount=0)
    stack.until(lambda: sizes(ec2) == {"us-east-1a": 5}, "they are back")
    stack.advance(timedelta(minutes=2).total_seconds())
    stack.polls(3)
    assert sizes(ec2) == {"us-east-1a": 5}
    assert mirror(stack, id_).lent == 0


def mirror(stack: Stack, id_: str) -> OnDemandCapacityReservationStatus:
    mirrored = stack.find(OnDemandCapacityReservation, id_)
    return mirrored.status if mirrored is not None else OnDemandCapacityReservationStatus()
