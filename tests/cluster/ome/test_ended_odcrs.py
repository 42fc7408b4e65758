"""EC2 reservations of an owner that are no more, as its status tells of them."""

from __future__ import annotations

import pytest

from broker.apis import names
from tests.cluster.ome.bought import P5, flavored
from tests.cluster.ome.reserved import (
    GPU,
    flavors_alone,
    raw_condition,
    reservation_status,
    reserve,
    until_state,
)
from tests.cluster.stack import Stack

TAG = {"Key": names.TAG_RESERVATION, "Value": "default/training"}
MARKS = [{"ResourceType": "capacity-reservation", "Tags": [TAG]}]


def lacks(stack: Stack) -> str:
    condition = raw_condition(reservation_status(stack), "ResourcesSufficient")
    return str(condition["message"]) if condition.get("reason") == "InsufficientCapacity" else ""


@pytest.mark.covers("CAP-06", "CAP-07")
@pytest.mark.parametrize("state", ["cancelled", "expired", "payment-failed"])
def test_owner_is_told_which_tagged_reservation_it_lost(stack: Stack, state: str) -> None:
    flavors_alone(stack)
    flavored(stack)
    odcr = stack.aws.odcr(P5, TagSpecifications=MARKS)
    reserve(stack, quotas={GPU: "8"})
    stack.start(kubelets=False)
    until_state(stack, "Active")
    if state == "cancelled":
        stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=odcr)
    else:
        stack.control.set_reservation(odcr, state=state)
    text = f"0 of 8 {GPU}; {odcr} is {state}; flavor h100: 0 of 1 instance"
    stack.until(lambda: text in lacks(stack), "its status names the reservation", step=1.0)
    stack.aws.odcr(P5, TagSpecifications=MARKS)
    stack.until(
        lambda: raw_condition(reservation_status(stack), "ResourcesSufficient").get("status") == "True",
        "another one takes its place",
        step=1.0,
    )
