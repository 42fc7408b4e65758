"""Capacity Reservation Fleets: units by weight, types by priority, changed and cancelled as a whole."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.aws.local.kit import OTHER_TYPE, OTHER_ZONE, TYPE, ZONE, Aws, places, refused, run, seen

WHEN = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def stopped_clock(aws: Aws) -> None:
    aws.control.freeze(WHEN)


def spec(instance_type: str = TYPE, **more: Any) -> dict[str, Any]:
    return {
        "InstanceType": instance_type,
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": ZONE,
        **more,
    }


def create(ec2: Any, *specs: dict[str, Any], target: int = 4, **more: Any) -> Any:
    return ec2.create_capacity_reservation_fleet(
        InstanceTypeSpecifications=list(specs) or [spec()], TotalTargetCapacity=target, **more
    )


def described(ec2: Any, fleet_id: str) -> Any:
    answer = ec2.describe_capacity_reservation_fleets(CapacityReservationFleetIds=[fleet_id])
    return answer["CapacityReservationFleets"][0]


def counts(ec2: Any, fleet_id: str) -> dict[str, int]:
    return {
        part["InstanceType"]: part["TotalInstanceCount"]
        for part in described(ec2, fleet_id)["InstanceTypeSpecifications"]
    }


def test_it_reserves_units_in_the_type_of_first_priority(ec2: Any) -> None:
    tags = [{"ResourceType": "capacity-reservation-fleet", "Tags": [{"Key": "team", "Value": "ml"}]}]
    answer = create(
        ec2,
        spec(OTHER_TYPE, Weight=1, Priority=2),
        spec(Weight=3, Priority=1),
        target=7,
        TagSpecifications=tags,
    )
    assert (answer["State"], answer["TotalTargetCapacity"], answer["TotalFulfilledCapacity"]) == (
        "submitted",
        7,
        9.0,
    )
    (part,) = answer["FleetCapacityReservations"]
    assert (part["InstanceType"], part["TotalInstanceCount"], part["FulfilledCapacity"]) == (TYPE, 3, 9.0)
    fleet = described(ec2, answer["CapacityReservationFleetId"])
    assert (fleet["State"], fleet["AllocationStrategy"], fleet["Tenancy"]) == (
        "active",
        "prioritized",
        "default",
    )
    assert fleet["CapacityReservationFleetArn"].endswith(f"fleet/{answer['CapacityReservationFleetId']}")
    member = seen(ec2, part["CapacityReservationId"])
    assert member["CapacityReservationFleetId"] == answer["CapacityReservationFleetId"]
    assert member["Tags"] == [{"Key": "team", "Value": "ml"}] == fleet["Tags"]
    assert places(run(ec2)) == [part["CapacityReservationId"]]


def test_missing_capacity_comes_from_the_next_type_or_later(aws: Aws, ec2: Any) -> None:
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=2)
    aws.control.pool(instance_type=OTHER_TYPE, zone=ZONE, size=1)
    fleet_id = create(ec2, spec(Priority=0), spec(OTHER_TYPE, Priority=1))["CapacityReservationFleetId"]
    assert counts(ec2, fleet_id) == {TYPE: 2, OTHER_TYPE: 1}
    assert described(ec2, fleet_id)["State"] == "partially_fulfilled"
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=5)
    aws.control.advance(15 * 60)
    assert (counts(ec2, fleet_id), described(ec2, fleet_id)["State"]) == ({TYPE: 3, OTHER_TYPE: 1}, "active")
    aws.control.pool(instance_type=OTHER_TYPE, zone=OTHER_ZONE, size=0)
    nothing = create(ec2, spec(OTHER_TYPE, AvailabilityZone=OTHER_ZONE))["CapacityReservationFleetId"]
    assert described(ec2, nothing)["State"] == "failed"


def test_its_target_and_end_are_modified(aws: Aws, ec2: Any) -> None:
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=3)
    fleet_id = create(ec2, spec(Priority=0), spec(OTHER_TYPE, Priority=1))["CapacityReservationFleetId"]

    def modify(**changes: Any) -> None:
        ec2.modify_capacity_reservation_fleet(CapacityReservationFleetId=fleet_id, **changes)

    assert counts(ec2, fleet_id) == {TYPE: 3, OTHER_TYPE: 1}
    modify(TotalTargetCapacity=6)
    assert counts(ec2, fleet_id) == {TYPE: 3, OTHER_TYPE: 3}
    modify(TotalTargetCapacity=2)
    assert counts(ec2, fleet_id) == {TYPE: 2, OTHER_TYPE: 0}
    with refused("InvalidParameterCombination"):
        modify(EndDate=WHEN + timedelta(days=1), RemoveEndDate=True)
    with refused("DryRunOperation", status=412):
        modify(TotalTargetCapacity=1, DryRun=True)
    modify(EndDate=WHEN + timedelta(days=1))
    modify(RemoveEndDate=True)
    modify(EndDate=WHEN + timedelta(days=2))
    aws.control.advance(86400)
    assert described(ec2, fleet_id)["State"] == "active"
    aws.control.advance(86400)
    fleet = described(ec2, fleet_id)
    assert (fleet["State"], fleet["TotalFulfilledCapacity"]) == ("expired", 0.0)
    with refused("IncorrectState", text="expired"):
        modify(TotalTargetCapacity=1)


def test_it_is_cancelled_as_a_whole_and_its_members_not_alone(aws: Aws, ec2: Any) -> None:
    answer = create(ec2)
    fleet_id = answer["CapacityReservationFleetId"]
    member = answer["FleetCapacityReservations"][0]["CapacityReservationId"]
    with refused("OperationNotPermitted", text=fleet_id):
        ec2.cancel_capacity_reservation(CapacityReservationId=member)
    with refused("OperationNotPermitted", text="fleet"):
        ec2.modify_capacity_reservation(CapacityReservationId=member, InstanceCount=1)
    (inside,) = run(ec2)
    unknown = "crf-0123456789abcdef0"
    done = ec2.cancel_capacity_reservation_fleets(CapacityReservationFleetIds=[fleet_id, unknown])
    assert done["SuccessfulFleetCancellations"] == [
        {
            "CapacityReservationFleetId": fleet_id,
            "CurrentFleetState": "cancelled",
            "PreviousFleetState": "active",
        }
    ]
    (failed,) = done["FailedFleetCancellations"]
    assert (
        failed["CancelCapacityReservationFleetError"]["Code"] == "InvalidCapacityReservationFleetId.NotFound"
    )
    assert seen(ec2, member)["State"] == "cancelled"
    answer = ec2.describe_instances(InstanceIds=[inside["InstanceId"]])
    assert answer["Reservations"][0]["Instances"][0]["State"]["Name"] == "running"
    again = ec2.cancel_capacity_reservation_fleets(CapacityReservationFleetIds=[fleet_id])
    assert (
        again["FailedFleetCancellations"][0]["CancelCapacityReservationFleetError"]["Code"]
        == "IncorrectState"
    )
    with refused("DryRunOperation", status=412):
        ec2.cancel_capacity_reservation_fleets(CapacityReservationFleetIds=[fleet_id], DryRun=True)


@pytest.mark.parametrize(
    ("specs", "more", "code", "text"),
    [
        ([spec(), spec(OTHER_TYPE, AvailabilityZone=OTHER_ZONE)], {}, "InvalidParameterCombination", "one"),
        ([spec()], {"InstanceMatchCriteria": "targeted"}, "InvalidParameterValue", "open"),
        ([spec()], {"Tenancy": "dedicated"}, "InvalidParameterValue", "default"),
        ([spec()], {"AllocationStrategy": "cheapest"}, "InvalidParameterValue", "prioritized"),
        ([spec(Weight=100.0)], {}, "InvalidParameterValue", "99.999"),
        ([spec()], {"target": 0}, "InvalidParameterValue", "at least 1"),
        ([spec()], {"EndDate": WHEN}, "InvalidParameterValue", "future"),
        ([spec()], {"DryRun": True}, "DryRunOperation", ""),
    ],
)
def test_fleets_that_are_refused(
    ec2: Any, specs: list[dict[str, Any]], more: dict[str, Any], code: str, text: str
) -> None:
    with refused(code, status=412 if code == "DryRunOperation" else 400, text=text):
        create(ec2, *specs, **more)


def test_fleets_are_described_by_id_filter_and_page_and_made_once(ec2: Any) -> None:
    ids = [create(ec2, ClientToken=token)["CapacityReservationFleetId"] for token in ("a", "b", "b")]
    assert ids[1] == ids[2]
    ec2.create_tags(Resources=[ids[0]], Tags=[{"Key": "team", "Value": "ml"}])
    describe = ec2.describe_capacity_reservation_fleets

    def fleet_ids(**parameters: Any) -> list[str]:
        fleets = describe(**parameters)["CapacityReservationFleets"]
        return [fleet["CapacityReservationFleetId"] for fleet in fleets]

    assert fleet_ids() == ids[:2]
    assert fleet_ids(Filters=[{"Name": "tag:team", "Values": ["ml"]}]) == ids[:1]
    assert fleet_ids(Filters=[{"Name": "state", "Values": ["cancelled"]}]) == []
    page = describe(MaxResults=1)
    assert fleet_ids(NextToken=page["NextToken"]) == [ids[1]]
    with refused("InvalidCapacityReservationFleetId.NotFound"):
        fleet_ids(CapacityReservationFleetIds=["crf-0"])
    with refused("DryRunOperation", status=412):
        fleet_ids(DryRun=True)
