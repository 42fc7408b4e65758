"""EC2 reservations behind a CapacityReservation: bought where it says Manage, resized, given back."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import CapacityReservation
from tests.cluster.account import A, B, tags
from tests.cluster.ome import bought
from tests.cluster.ome.bought import CANCEL, ask, ask_for, flavored, gone, ours, sizes
from tests.cluster.ome.reserved import flavors_alone, says
from tests.cluster.stack import Stack

SPEND = {"buy_dollars": 1000.0, "cost_labels": "team"}


@pytest.mark.covers("CAP-03", "CAP-04")
def test_instances_are_reserved_grouped_resized_and_given_back(stack: Stack) -> None:
    flavors_alone(stack)
    flavored(stack)
    broker = stack.start(**SPEND)
    ask(stack, 2, annotations=CANCEL, labels={"team": "blue", "tier": "gold"}, compartmentID="acme")

    stack.until(lambda: sizes(stack.aws.ec2) == {A: 2}, "two instances are reserved")
    (made,) = ours(stack.aws.ec2)
    assert (made["InstanceType"], made["InstanceMatchCriteria"]) == (bought.P5, "targeted")
    assert tags(made) == {
        names.TAG_CLUSTER: "blue",
        names.TAG_RESERVATION: "default/training",
        names.TAG_FLAVOR: "h100",
        names.TAG_MANAGED: "capacity-broker",
        names.TAG_COMPARTMENT: "acme",
        "team": "blue",
    }
    arn = stack.until(lambda: says(stack).get("reservationGroupARN"), "its group is told")
    stack.until(
        lambda: (
            stack.current is not None
            and stack.current.group(arn).member_ids == (made["CapacityReservationId"],)
        ),
        "it is in the group",
    )
    ask_for(stack, 3)
    stack.until(lambda: sizes(stack.aws.ec2) == {A: 3}, "it has grown")
    ask_for(stack, 1)
    stack.until(lambda: sizes(stack.aws.ec2) == {A: 1}, "it has shrunk")
    assert [each["CapacityReservationId"] for each in ours(stack.aws.ec2)] == [made["CapacityReservationId"]]

    stack.client.patch(ResourceFlavor.KIND, "h100", {"spec": {"nodeLabels": {names.ZONE: B}}})
    stack.until(lambda: sizes(stack.aws.ec2) == {B: 1}, "it is replaced in the other zone")

    stack.delete(CapacityReservation, "training", namespace="default")
    stack.until(lambda: gone(stack), "the object is gone")
    assert ours(stack.aws.ec2) == []
    assert broker.ome.holdings.holdings().odcrs == {}


def type_of():
    from broker.apis.ome import CapacityReservation

    return CapacityReservation
