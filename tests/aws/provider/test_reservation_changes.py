"""Reservations made, resized and returned: once, despite lost or refused calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from providers.errors import ErrorClass as Is
from providers.errors import ProviderError
from providers.model import OdcrRequest

from .world import P5, ZONE, World

END = datetime(2031, 1, 31, 23, tzinfo=UTC)
REQUEST = OdcrRequest(
    token="7c1e0d7e-3-p5-a",
    instance_type=P5,
    zone=ZONE,
    count=2,
    tags={"capacity-broker.io/reservation": "ml/training", "cost-center": "42"},
)


def alive(world: World) -> dict[str, int]:
    """EC2's own view of the paid capacity: id -> count."""
    reservations = world.ec2.describe_capacity_reservations()["CapacityReservations"]
    return {
        reservation["CapacityReservationId"]: reservation["TotalInstanceCount"]
        for reservation in reservations
        if reservation["State"] == "active"
    }


def shown(world: World, id_: str) -> Any:
    (reservation,) = world.ec2.describe_capacity_reservations(CapacityReservationIds=[id_])[
        "CapacityReservations"
    ]
    return reservation


def test_requested_capacity_is_reserved_with_the_clusters_tag(world: World) -> None:
    odcr = world.aws.create_reservation(replace(REQUEST, match_criteria="open", end=END))
    description = shown(world, odcr.id)
    assert (
        description["InstanceType"],
        description["AvailabilityZone"],
        description["TotalInstanceCount"],
    ) == (P5, ZONE, 2)
    assert (description["InstanceMatchCriteria"], description["InstancePlatform"]) == ("open", "Linux/UNIX")
    assert (description["EndDate"], description["EndDateType"]) == (END, "limited")
    assert {tag["Key"]: tag["Value"] for tag in description["Tags"]} == {
        **REQUEST.tags,
        "capacity-broker.io/cluster": "blue",
    }
    assert odcr.created is not None and odcr.end == END
    assert [odcr] == world.aws.reservations()


def test_a_zone_may_be_named_by_its_id(world: World) -> None:
    zone_id = shown(world, world.aws.create_reservation(REQUEST).id)["AvailabilityZoneId"]
    odcr = world.aws.create_reservation(replace(REQUEST, token="another", zone=zone_id))
    assert (odcr.zone, odcr.zone_id) == (ZONE, zone_id)


def test_the_same_token_reserves_once_also_after_a_restart(world: World) -> None:
    odcr = world.aws.create_reservation(REQUEST)
    again = world.provider().create_reservation(REQUEST)
    assert again.id == odcr.id
    assert alive(world) == {odcr.id: 2}


@pytest.mark.parametrize(("code", "status"), [(None, None), ("InternalError", 500)])
def test_a_lost_reply_reserves_once(world: World, code: str | None, status: int | None) -> None:
    world.control.fault(
        action="CreateCapacityReservation", stage="response", code=code, status=status, times=2
    )
    odcr = world.aws.create_reservation(REQUEST)
    assert alive(world) == {odcr.id: 2}
    assert world.control.calls()["CreateCapacityReservation"] == 3
    tokens = {call["params"]["ClientToken"] for call in world.control.log("CreateCapacityReservation")}
    assert tokens == {REQUEST.token}


def test_lost_replies_are_reported_and_the_next_pass_finds_the_reservation(world: World) -> None:
    fault = world.control.fault(action="CreateCapacityReservation", stage="response", times=-1)
    with pytest.raises(ProviderError) as caught:
        world.aws.create_reservation(REQUEST)
    assert caught.value.class_ is Is.TRANSIENT and caught.value.lost
    world.control.clear_faults(fault)
    assert alive(world) == {world.aws.create_reservation(REQUEST).id: 2}


def test_a_token_of_a_cancelled_reservation_answers_with_it_and_buys_nothing(world: World) -> None:
    odcr = world.aws.create_reservation(REQUEST)
    world.aws.cancel_reservation(odcr.id)
    again = world.aws.create_reservation(REQUEST)
    assert (again.id, again.state) == (odcr.id, "cancelled")
    assert alive(world) == {}


def test_a_used_token_with_another_count_is_refused_and_buys_nothing(world: World) -> None:
    odcr = world.aws.create_reservation(REQUEST)
    with pytest.raises(ProviderError, match="IdempotentParameterMismatch") as caught:
        world.aws.create_reservation(replace(REQUEST, count=5))
    assert caught.value.class_ is Is.CONFIGURATION
    assert alive(world) == {odcr.id: 2}


def test_a_zone_without_capacity_refuses_at_once(world: World) -> None:
    world.control.pool(instance_type=P5, zone=ZONE, size=1)
    with pytest.raises(ProviderError, match="InsufficientInstanceCapacity") as caught:
        world.aws.create_reservation(REQUEST)
    assert caught.value.class_ is Is.CAPACITY and caught.value.request_id
    assert world.control.calls()["CreateCapacityReservation"] == 1
    assert world.aws.create_reservation(replace(REQUEST, token="half", count=1)).total == 1


@pytest.mark.parametrize("code", ["InstanceLimitExceeded", "VcpuLimitExceeded"])
def test_vcpu_quota_refusal_has_its_class_with_any_code(world: World, code: str) -> None:
    world.control.code("reservation-over-quota", code)
    world.control.quota(instance_type=P5, vcpus=192)
    with pytest.raises(ProviderError, match=code) as caught:
        world.aws.create_reservation(REQUEST)
    assert caught.value.class_ is Is.QUOTA
    odcr = world.aws.create_reservation(replace(REQUEST, token="one", count=1))
    with pytest.raises(ProviderError, match=code) as caught:
        world.aws.resize_reservation(odcr.id, count=2)
    assert caught.value.class_ is Is.QUOTA
    assert alive(world) == {odcr.id: 1}


@pytest.mark.parametrize(
    ("code", "status", "class_"),
    [
        ("UnauthorizedOperation", 403, Is.PERMISSION),
        ("PendingVerification", 400, Is.PERMISSION),
        ("Unsupported", 400, Is.UNSUPPORTED),
        ("InvalidParameterValue", 400, Is.CONFIGURATION),
        ("OperationNotPermitted", 400, Is.CONFIGURATION),
        ("RequestLimitExceeded", 503, Is.THROTTLING),
    ],
)
def test_a_refusal_has_its_class_and_reserves_nothing(
    world: World, code: str, status: int, class_: Is
) -> None:
    world.control.fault(action="CreateCapacityReservation", code=code, status=status, times=-1)
    with pytest.raises(ProviderError, match=code) as caught:
        world.aws.create_reservation(REQUEST)
    assert caught.value.class_ is class_
    assert alive(world) == {}


def test_karpenters_tag_is_refused_before_anything_is_reserved(world: World) -> None:
    with pytest.raises(ProviderError, match="ReservedTag"):
        world.aws.create_reservation(replace(REQUEST, tags={"eks:eks-cluster-name": "blue"}))
    assert alive(world) == {}


def test_creating_is_held_to_ec2s_bucket(world: World) -> None:
    """50 at once and five a second after."""
    world.control.fault(action="CreateCapacityReservation", code="Unsupported", times=-1)
    for n in range(60):
        with pytest.raises(ProviderError):
            world.aws.create_reservation(replace(REQUEST, token=f"t-{n}"))
    assert world.clock.at == pytest.approx(2.0)


def test_count_and_end_change_in_place(world: World) -> None:
    odcr = world.aws.create_reservation(REQUEST)
    world.aws.resize_reservation(odcr.id, count=5)
    assert alive(world) == {odcr.id: 5}
    world.aws.resize_reservation(odcr.id, count=4, end=END)
    assert shown(world, odcr.id)["EndDate"] == END
    world.aws.resize_reservation(odcr.id, count=3)
    description = shown(world, odcr.id)
    assert (description["TotalInstanceCount"], description.get("EndDate")) == (3, END)
    world.aws.resize_reservation(odcr.id, count=3, end=None)
    assert shown(world, odcr.id)["EndDateType"] == "unlimited"


def test_a_change_is_made_though_descriptions_lag(world: World) -> None:
    odcr = world.aws.create_reservation(REQUEST)
    world.control.freeze()
    world.control.advance(60)
    world.control.lag(30)
    world.aws.resize_reservation(odcr.id, count=3)
    world.aws.resize_reservation(odcr.id, count=2)
    world.control.lag(0)
    assert alive(world) == {odcr.id: 2}


def test_resize_with_a_lost_reply_has_effect_once(world: World) -> None:
    odcr = world.aws.create_reservation(REQUEST)
    world.control.fault(action="ModifyCapacityReservation", stage="response")
    world.aws.resize_reservation(odcr.id, count=5)
    assert alive(world) == {odcr.id: 5}


def test_growing_beyond_capacity_keeps_the_old_count(world: World) -> None:
    odcr = world.aws.create_reservation(REQUEST)
    world.control.pool(instance_type=P5, zone=ZONE, size=2)
    with pytest.raises(ProviderError) as caught:
        world.aws.resize_reservation(odcr.id, count=5)
    assert caught.value.class_ is Is.CAPACITY
    assert alive(world) == {odcr.id: 2}


def test_ended_reservation_cannot_be_resized(world: World) -> None:
    odcr = world.aws.create_reservation(REQUEST)
    world.aws.cancel_reservation(odcr.id)
    for id_ in (odcr.id, "cr-0123456789abcdef0"):
        with pytest.raises(ProviderError, match=id_) as caught:
            world.aws.resize_reservation(id_, count=5)
        assert caught.value.class_ is Is.RESERVATION_GONE


def test_cancelled_once_and_again(world: World) -> None:
    odcr = world.aws.create_reservation(REQUEST)
    world.aws.cancel_reservation(odcr.id)
    assert shown(world, odcr.id)["State"] == "cancelled"
    world.aws.cancel_reservation(odcr.id)
    world.aws.cancel_reservation("cr-0123456789abcdef0")
    assert world.control.calls()["CancelCapacityReservation"] == 1


def test_cancel_with_a_lost_reply_is_success(world: World) -> None:
    odcr = world.aws.create_reservation(REQUEST)
    world.control.fault(action="CancelCapacityReservation", stage="response")
    world.aws.cancel_reservation(odcr.id)
    assert alive(world) == {}
    assert world.control.calls()["CancelCapacityReservation"] == 2


def test_cancel_refused_for_its_state_is_reported(world: World) -> None:
    odcr = world.aws.create_reservation(REQUEST)
    world.control.fault(action="CancelCapacityReservation", code="IncorrectState", times=-1)
    with pytest.raises(ProviderError, match="IncorrectState"):
        world.aws.cancel_reservation(odcr.id)
    assert alive(world) == {odcr.id: 2}


@pytest.mark.parametrize(
    "change",
    [
        lambda aws, id_: aws.resize_reservation(id_, count=1),
        lambda aws, id_: aws.cancel_reservation(id_),
    ],
    ids=["resize", "cancel"],
)
def test_an_instance_that_lands_after_the_decision_keeps_its_slot(
    world: World, change: Callable[[Any, str], None]
) -> None:
    odcr = world.aws.create_reservation(REQUEST)
    (seen,) = world.aws.reservations()
    assert seen.available == 2  # on this it is decided to shrink or to end it
    world.ec2.run_instances(
        ImageId=world.image(),
        InstanceType=P5,
        MinCount=2,
        MaxCount=2,
        SubnetId=world.subnet(),
        CapacityReservationSpecification={
            "CapacityReservationTarget": {"CapacityReservationId": odcr.id},
        },
    )
    with pytest.raises(ProviderError, match="InstancesRunning") as caught:
        change(world.aws, odcr.id)
    assert caught.value.class_ is Is.RESERVATION_FULL
    assert alive(world) == {odcr.id: 2}
    world.aws.resize_reservation(odcr.id, count=2, end=END)  # not below the running instances: allowed


@pytest.mark.parametrize(
    "change",
    [
        lambda aws, id_: aws.resize_reservation(id_, count=1),
        lambda aws, id_: aws.cancel_reservation(id_),
    ],
    ids=["resize", "cancel"],
)
def test_foreign_reservations_are_left_alone(world: World, change: Callable[[Any, str], None]) -> None:
    foreign_id, other = world.reserve(3), world.provider(cluster="green").create_reservation(REQUEST)
    for id_ in (foreign_id, other.id):
        with pytest.raises(ProviderError, match="ForeignReservation") as caught:
            change(world.aws, id_)
        assert caught.value.class_ is Is.CONFIGURATION
        assert "capacity-broker.io/cluster=blue" in str(caught.value)
    assert alive(world) == {foreign_id: 3, other.id: 2}


def test_shared_reservation_of_another_account_is_left_alone(world: World) -> None:
    shared = world.shared()
    with pytest.raises(ProviderError, match="ForeignReservation"):
        world.aws.cancel_reservation(shared)
    assert alive(world) == {shared: 1}
