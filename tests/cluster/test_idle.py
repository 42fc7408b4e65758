"""Idle slots: their number, their cost and their start, through use, growth and a restart."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.app import Broker
from broker.kube.client import Client
from broker.oncall.metrics import REGISTRY
from broker.webpage.live import live_state
from tests.cluster.account import ACCOUNT, A
from tests.cluster.stack import Stack

HOUR = 3600


def until_idle(stack: Stack, odcr: str, slots: int) -> str:
    """The start of the idle time, once this many slots are reported idle."""

    def status() -> dict[str, Any]:
        object_ = stack.find(OnDemandCapacityReservation, odcr)
        return dict(object_.status.wire()) if object_ else {}

    stack.until(lambda: status().get("available") == slots, f"{odcr} mirrored with {slots} free")
    return str(status().get("idleSince", ""))


def until_measured(stack: Stack, odcr: str, **values: float | None) -> None:
    labels = {"odcr": odcr, "instance_type": "m5.large", "zone": A}

    def read(name: str) -> float | None:
        value = REGISTRY.get_sample_value(f"capacity_broker_idle_{name}", labels)
        return None if value is None else round(value, 6)

    stack.until(lambda: {name: read(name) for name in values} == values, f"{odcr} measured with {values}")


@pytest.mark.covers("CAP-10")
def test_idle_slots_are_counted_priced_and_timed(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=3)
    stack.start()
    first = until_idle(stack, odcr, 3)
    assert first
    price = stack.provider().instance_types()["m5.large"].on_demand_price
    assert price
    until_measured(stack, odcr, slots=3, cost_dollars_per_hour=round(3 * price, 6))

    # One is taken: the others remain idle.
    stack.advance(HOUR)
    stack.aws.rival(odcr)
    assert until_idle(stack, odcr, 2) == first

    # A new broker keeps the start time.
    stack.stop()
    stack.advance(HOUR)
    stack.start()
    began = datetime.fromisoformat(first).timestamp()
    until_measured(stack, odcr, slots=2, since_timestamp_seconds=began)
    assert until_idle(stack, odcr, 2) == first

    # Of five, three are idle only since they were added.
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=6)
    assert until_idle(stack, odcr, 5) > first

    # A fully used reservation has no idle slots.
    stack.aws.rival(odcr, 5)
    assert until_idle(stack, odcr, 0) == ""
    until_measured(stack, odcr, slots=0, cost_dollars_per_hour=None, since_timestamp_seconds=None)


@pytest.mark.covers("SAF-11")
@pytest.mark.both_servers
def test_idle_cost_leaves_out_capacity_that_this_account_does_not_pay_by_the_hour(stack: Stack) -> None:
    def other(**more: Any) -> str:
        reply = stack.control.reservation(
            InstanceType="m5.large",
            InstancePlatform="Linux/UNIX",
            AvailabilityZone=A,
            InstanceCount=2,
            **more,
        )
        return str(reply["CapacityReservationId"])

    block = other(reservation_type="capacity-block")
    shared = other(owner_id="999988887777", shared_with=[ACCOUNT])
    own = stack.aws.odcr(count=2)
    broker = stack.start()
    price = stack.provider().instance_types()["m5.large"].on_demand_price
    assert price
    for odcr, cost in ((own, 2 * price), (block, 0.0), (shared, 0.0)):
        until_idle(stack, odcr, 2)
        until_measured(stack, odcr, slots=2, cost_dollars_per_hour=round(cost, 6))
        cost_per_hour = stack.get(OnDemandCapacityReservation, odcr).status.idle_cost_per_hour
        assert cost_per_hour == f"{cost:.2f}"
    assert stack.current is not None
    page = live_state(broker)
    costs = {view.odcr.id: round(view.cost or 0, 2) for view in page.odcrs}
    assert costs == {
        own: round(2 * price, 2),
        block: 0.0,
        shared: 0.0,
    }


@pytest.mark.covers("ONC-01")
def test_dollars_outside_of_reservations_are_unknown_before_ec2_listed_the_instances(stack: Stack) -> None:
    stack.aws.odcr(count=1)
    term = Broker(Client(stack.tap), stack.provider(), stack.settings, clock=stack.clock)
    assert live_state(term).outside is None
    broker = stack.start()
    stack.until(lambda: live_state(broker).outside == 0.0, "nothing runs outside of the reservation")
