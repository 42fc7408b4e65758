"""Client tokens: a repeated call is answered and does nothing, another under the same token is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.aws.local.kit import (
    LINUX,
    OTHER_ZONE,
    TYPE,
    ZONE,
    Aws,
    fleet,
    launched,
    pool,
    refused,
    seen,
    template,
)

RESERVATION = {
    "InstanceType": TYPE,
    "InstancePlatform": "Linux/UNIX",
    "AvailabilityZone": ZONE,
    "InstanceCount": 2,
}
INSTANCE = {"ImageId": LINUX, "InstanceType": TYPE, "MinCount": 1, "MaxCount": 1}


def test_a_reservation_is_made_once_and_shown_as_it_is_now(aws: Aws, ec2: Any) -> None:
    first = ec2.create_capacity_reservation(**RESERVATION, ClientToken="t")["CapacityReservation"]
    reservation_id = first["CapacityReservationId"]
    ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, InstanceCount=5)
    again = ec2.create_capacity_reservation(**RESERVATION, ClientToken="t")["CapacityReservation"]
    assert again == seen(ec2, reservation_id)
    assert again["TotalInstanceCount"] == 5
    with refused("IdempotentParameterMismatch"):
        ec2.create_capacity_reservation(**{**RESERVATION, "InstanceCount": 3}, ClientToken="t")
    other = ec2.create_capacity_reservation(**RESERVATION, ClientToken="T")["CapacityReservation"]
    assert other["CapacityReservationId"] != reservation_id
    assert len(ec2.describe_capacity_reservations()["CapacityReservations"]) == 2


def test_a_fleet_launches_once(aws: Aws, ec2: Any) -> None:
    config = pool(template(ec2))
    first = fleet(ec2, config, total=2, ClientToken="t")
    again = fleet(ec2, config, total=2, ClientToken="t")
    assert (again["FleetId"], launched(again)) == (first["FleetId"], launched(first))
    assert len(ec2.describe_instances()["Reservations"]) == 1
    with refused("IdempotentParameterMismatch"):
        fleet(ec2, config, total=3, ClientToken="t")


def test_instances_launch_once_in_each_zone(aws: Aws, ec2: Any) -> None:
    def ids(**more: Any) -> list[str]:
        launched_instances = ec2.run_instances(**INSTANCE, **more, ClientToken="t")["Instances"]
        return [instance["InstanceId"] for instance in launched_instances]

    here = ids(Placement={"AvailabilityZone": ZONE})
    assert ids(Placement={"AvailabilityZone": ZONE}) == here
    assert ids(Placement={"AvailabilityZone": OTHER_ZONE}) != here
    with refused("IdempotentParameterMismatch"):
        ids(Placement={"AvailabilityZone": ZONE}, KeyName="another")
    ec2.terminate_instances(InstanceIds=here)
    with refused("IdempotentInstanceTerminated"):
        ids(Placement={"AvailabilityZone": ZONE})


def test_a_template_is_made_once(aws: Aws, ec2: Any) -> None:
    parameters = {"LaunchTemplateName": "one", "LaunchTemplateData": {"ImageId": LINUX}}
    first = ec2.create_launch_template(**parameters, ClientToken="t")["LaunchTemplate"]
    again = ec2.create_launch_template(**parameters, ClientToken="t")["LaunchTemplate"]
    assert again["LaunchTemplateId"] == first["LaunchTemplateId"]
    with refused("InvalidLaunchTemplateName.AlreadyExistsException"):
        ec2.create_launch_template(**parameters, ClientToken="u")


def test_a_refused_call_leaves_its_token_free(aws: Aws, ec2: Any) -> None:
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=0)
    with refused("InsufficientInstanceCapacity", status=500):
        ec2.create_capacity_reservation(**RESERVATION, ClientToken="t")
    aws.control.clear_pools()
    assert ec2.create_capacity_reservation(**RESERVATION, ClientToken="t")["CapacityReservation"]


@pytest.mark.parametrize("token", ["x" * 65, "ключ"])
def test_a_token_that_is_none(aws: Aws, ec2: Any, token: str) -> None:
    with refused("InvalidClientToken"):
        ec2.create_capacity_reservation(**RESERVATION, ClientToken=token)


def test_without_a_token_each_call_is_another(aws: Aws, ec2: Any) -> None:
    for _ in range(2):
        ec2.create_capacity_reservation(**RESERVATION)
    assert len(ec2.describe_capacity_reservations()["CapacityReservations"]) == 2
