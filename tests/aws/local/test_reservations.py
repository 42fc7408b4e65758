"""Reservations through their API: create, describe, modify, cancel, usage, groups, tags."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.aws.local.kit import (
    LINUX,
    NONE,
    ONLY,
    OTHER_ACCOUNT,
    OTHER_TYPE,
    OTHER_ZONE,
    TYPE,
    ZONE,
    Aws,
    free,
    instances,
    places,
    refused,
    run,
    seen,
    to_id,
)

WHEN = datetime(2030, 1, 1, tzinfo=UTC)


def tagged(*tags: tuple[str, str]) -> list[dict[str, Any]]:
    named = [{"Key": key, "Value": value} for key, value in tags]
    return [{"ResourceType": "capacity-reservation", "Tags": named}]


def test_new_reservation_shows_every_requested_field(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    odcr = ec2.create_capacity_reservation(
        InstanceType=TYPE,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=ZONE,
        InstanceCount=3,
        InstanceMatchCriteria="targeted",
        Tenancy="dedicated",
        EbsOptimized=True,
        EndDateType="limited",
        EndDate=WHEN + timedelta(days=1),
        TagSpecifications=[
            {"ResourceType": "capacity-reservation", "Tags": [{"Key": "team", "Value": "ml"}]}
        ],
    )["CapacityReservation"]
    reservation_id = odcr["CapacityReservationId"]
    assert odcr == seen(ec2, reservation_id)
    assert odcr == {
        "CapacityReservationId": reservation_id,
        "CapacityReservationArn": f"arn:aws:ec2:us-east-1:123456789012:capacity-reservation/{reservation_id}",
        "OwnerId": "123456789012",
        "InstanceType": TYPE,
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": ZONE,
        "AvailabilityZoneId": "use1-az6",
        "Tenancy": "dedicated",
        "TotalInstanceCount": 3,
        "AvailableInstanceCount": 3,
        "CapacityAllocations": [],
        "EbsOptimized": True,
        "EphemeralStorage": False,
        "State": "active",
        "StartDate": WHEN,
        "CreateDate": WHEN,
        "EndDate": WHEN + timedelta(days=1),
        "EndDateType": "limited",
        "InstanceMatchCriteria": "targeted",
        "ReservationType": "default",
        "Tags": [{"Key": "team", "Value": "ml"}],
    }


def test_defaults_and_a_zone_by_its_id(ec2: Any) -> None:
    odcr = ec2.create_capacity_reservation(
        InstanceType=TYPE, InstancePlatform="Linux/UNIX", AvailabilityZoneId="use1-az6", InstanceCount=1
    )["CapacityReservation"]
    assert odcr["AvailabilityZone"] == ZONE
    assert (odcr["InstanceMatchCriteria"], odcr["Tenancy"], odcr["EndDateType"]) == (
        "open",
        "default",
        "unlimited",
    )


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"InstanceType": ""}, "InvalidParameterValue", "InstanceType"),
        ({"InstanceType": "m5"}, "InvalidParameterValue", "Invalid value 'm5' for InstanceType"),
        ({"InstanceCount": 0}, "InvalidParameterValue", "InstanceCount"),
        ({"InstanceCount": 1001}, "InvalidParameterValue", "1001"),
        ({"InstancePlatform": "Plan 9"}, "InvalidParameterValue", "InstancePlatform"),
        ({"InstanceMatchCriteria": "closed"}, "InvalidParameterValue", "InstanceMatchCriteria"),
        ({"Tenancy": "host"}, "InvalidParameterValue", "Tenancy"),
        ({"AvailabilityZone": "us-east-1z"}, "InvalidParameterValue", "us-east-1z"),
        ({"AvailabilityZoneId": "use1-az6"}, "InvalidParameterCombination", "AvailabilityZone"),
        ({"EndDateType": "limited"}, "InvalidParameterCombination", "EndDate"),
        ({"EndDateType": "unlimited", "EndDate": WHEN}, "InvalidParameterCombination", "unlimited"),
        ({"EndDate": datetime(2020, 1, 1, tzinfo=UTC)}, "InvalidParameterValue", "future"),
        ({"StartDate": datetime(2020, 1, 1, tzinfo=UTC)}, "InvalidParameterValue", "StartDate"),
        ({"TagSpecifications": tagged(("aws:x", "y"))}, "InvalidParameterValue", "aws:"),
        ({"TagSpecifications": tagged(("", "y"))}, "InvalidParameterValue", "must not be empty"),
        ({"TagSpecifications": tagged(("a", "1"), ("a", "2"))}, "InvalidParameterValue", "Duplicate"),
        ({"TagSpecifications": tagged(("k" * 129, "y"))}, "InvalidParameterValue", "128"),
        ({"TagSpecifications": tagged(("a", "v" * 257))}, "InvalidParameterValue", "256"),
        ({"TagSpecifications": tagged(*((f"k{n}", "") for n in range(51)))}, "TagLimitExceeded", "maximum"),
    ],
)
def test_a_create_that_makes_no_sense_is_refused(
    aws: Aws, ec2: Any, change: dict[str, Any], code: str, text: str
) -> None:
    with refused(code, text=text):
        aws.reserve(ec2, **change)
    assert ec2.describe_capacity_reservations()["CapacityReservations"] == []


def test_pages_hold_every_reservation_once(aws: Aws, ec2: Any) -> None:
    ids = {aws.reserve(ec2) for _ in range(7)}
    pages = list(
        ec2.get_paginator("describe_capacity_reservations").paginate(PaginationConfig={"PageSize": 3})
    )
    assert [len(page["CapacityReservations"]) for page in pages] == [3, 3, 1]
    listed = [entry["CapacityReservationId"] for page in pages for entry in page["CapacityReservations"]]
    assert len(listed) == 7
    assert set(listed) == ids


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("instance-type", OTHER_TYPE),
        ("instance-type", "c5.*"),
        ("availability-zone", OTHER_ZONE),
        ("instance-match-criteria", "open"),
        ("instance-platform", "Windows"),
        ("tenancy", "dedicated"),
        ("state", "cancelled"),
        ("end-date-type", "limited"),
        ("end-date", "2030-01-01T00:00:00.000Z"),
        ("placement-group-arn", "arn:aws:ec2:us-east-1:123456789012:placement-group/together"),
        ("tag:team", "m?"),
        ("tag-key", "team"),
    ],
)
def test_filters(aws: Aws, ec2: Any, name: str, value: str) -> None:
    aws.reserve(ec2)
    matching = aws.reserve(
        ec2,
        InstanceType=OTHER_TYPE,
        AvailabilityZone=OTHER_ZONE,
        InstanceMatchCriteria="open",
        InstancePlatform="Windows",
        Tenancy="dedicated",
        EndDate=WHEN,
        EndDateType="limited",
        PlacementGroupArn="arn:aws:ec2:us-east-1:123456789012:placement-group/together",
        TagSpecifications=[
            {"ResourceType": "capacity-reservation", "Tags": [{"Key": "team", "Value": "ml"}]}
        ],
    )
    if name == "state":
        ec2.cancel_capacity_reservation(CapacityReservationId=matching)
    answer = ec2.describe_capacity_reservations(Filters=[{"Name": name, "Values": ["no-such", value]}])
    assert [entry["CapacityReservationId"] for entry in answer["CapacityReservations"]] == [matching]
    assert not ec2.describe_capacity_reservations(Filters=[{"Name": name, "Values": ["no-such"]}])[
        "CapacityReservations"
    ]


def test_filters_that_name_the_owner_and_the_start(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    reservation_id = aws.reserve(ec2)
    for name, value in (("owner-id", "123456789012"), ("start-date", "2030-01-01T00:00:00.000Z")):
        answer = ec2.describe_capacity_reservations(Filters=[{"Name": name, "Values": [value]}])
        assert [entry["CapacityReservationId"] for entry in answer["CapacityReservations"]] == [
            reservation_id
        ]


def test_invalid_describes_are_refused(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2)
    with refused("InvalidParameterValue", text="colour"):
        ec2.describe_capacity_reservations(Filters=[{"Name": "colour", "Values": ["red"]}])
    with refused("InvalidCapacityReservationId.NotFound", text="cr-00000000000000000"):
        ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id, "cr-" + "0" * 17])
    with refused("InvalidCapacityReservationId.Malformed", text="cr-nothing"):
        ec2.describe_capacity_reservations(CapacityReservationIds=["cr-nothing"])
    with refused("InvalidParameterCombination"):
        ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id], MaxResults=5)
    for token in ("nonsense", b64encode(b"from:-5").decode(), b64encode(b"5").decode()):
        with refused("InvalidParameterValue", text="NextToken"):
            ec2.describe_capacity_reservations(NextToken=token)
    with refused("FilterLimitExceeded", text="200"):
        ec2.describe_capacity_reservations(
            Filters=[{"Name": "tag-key", "Values": [f"v{n}" for n in range(201)]}]
        )


@pytest.mark.parametrize(
    ("action", "parameters", "code", "text"),
    [
        ("describe_capacity_reservations", {"MaxResults": 0}, "InvalidParameterValue", "1 to 1000"),
        ("describe_capacity_reservations", {"MaxResults": 1001}, "InvalidParameterValue", "1 to 1000"),
        ("describe_capacity_reservation_fleets", {"MaxResults": 101}, "InvalidParameterValue", "1 to 100"),
        ("describe_capacity_blocks", {"MaxResults": 1001}, "InvalidParameterValue", "1 to 1000"),
        ("get_capacity_reservation_usage", {"MaxResults": 1001}, "InvalidParameterValue", "1 to 1000"),
        ("get_groups_for_capacity_reservation", {"MaxResults": 0}, "InvalidParameterValue", "1 to 1000"),
        ("get_groups_for_capacity_reservation", {}, "MissingParameter", "CapacityReservationId"),
        ("create_capacity_reservation", {}, "MissingParameter", "InstanceType"),
        ("cancel_capacity_reservation", {}, "MissingParameter", "CapacityReservationId"),
        (
            "create_capacity_reservation_by_splitting",
            {"SourceCapacityReservationId": "cr-" + "0" * 17},
            "MissingParameter",
            "InstanceCount",
        ),
        ("cancel_capacity_reservation_fleets", {}, "MissingParameter", "CapacityReservationFleetIds"),
        ("describe_capacity_reservation_billing_requests", {}, "MissingParameter", "Role"),
        ("create_fleet", {"Type": "instant"}, "MissingParameter", "LaunchTemplateConfigs"),
        (
            "create_capacity_reservation_fleet",
            {"TotalTargetCapacity": 1, "InstanceTypeSpecifications": [{"InstancePlatform": "Plan 9"}]},
            "InvalidParameterValue",
            "InstanceTypeSpecifications.InstancePlatform",
        ),
    ],
)
def test_service_model_is_checked_for_every_client(
    aws: Aws, action: str, parameters: dict[str, Any], code: str, text: str
) -> None:
    if "get_" in action and code != "MissingParameter":
        parameters = {**parameters, "CapacityReservationId": aws.reserve(aws.client())}
    with refused(code, text=text):
        getattr(aws.unchecked, action)(**parameters)


def test_another_region_has_its_own_reservations(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2)
    other = aws.client(region="us-west-2")
    assert other.describe_capacity_reservations()["CapacityReservations"] == []
    with refused("InvalidCapacityReservationId.NotFound"):
        other.describe_capacity_reservations(CapacityReservationIds=[reservation_id])


def test_growing_and_shrinking(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 2)
    inside = run(ec2, 2, specification=to_id(reservation_id))
    assert (
        ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, InstanceCount=5)["Return"]
        is True
    )
    assert (seen(ec2, reservation_id)["TotalInstanceCount"], free(ec2, reservation_id)) == (5, 3)
    ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, InstanceCount=1)
    after = instances(ec2, [instance["InstanceId"] for instance in inside])
    assert sorted(place or "outside" for place in places(after)) == [reservation_id, "outside"]
    assert {instance["State"]["Name"] for instance in after} == {"running"}
    with refused("InvalidParameterValue", text="1000"):
        ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, InstanceCount=1500)


def test_eligibility_changes_only_while_unused_and_then_absorbs_instances(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 2)
    (inside,) = run(ec2, 1, specification=to_id(reservation_id))
    (beside,) = run(ec2, 1)
    (never,) = run(ec2, 1, specification=NONE)
    change = {"CapacityReservationId": reservation_id, "InstanceMatchCriteria": "open"}
    with refused("InvalidParameterValue", text="unused"):
        ec2.modify_capacity_reservation(**change)
    ec2.terminate_instances(InstanceIds=[inside["InstanceId"]])
    ec2.modify_capacity_reservation(**change)
    assert places(instances(ec2, [beside["InstanceId"], never["InstanceId"]])) == [reservation_id, None]


def test_an_end_date_set_moved_and_taken_away(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    reservation_id = aws.reserve(ec2)
    day = timedelta(days=1)
    ec2.modify_capacity_reservation(
        CapacityReservationId=reservation_id, EndDateType="limited", EndDate=WHEN + day
    )
    ec2.modify_capacity_reservation(
        CapacityReservationId=reservation_id, EndDateType="limited", EndDate=WHEN + 3 * day
    )
    aws.control.advance(2 * day.total_seconds())
    assert seen(ec2, reservation_id)["State"] == "active"
    ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, EndDateType="unlimited")
    aws.control.advance(10 * day.total_seconds())
    assert seen(ec2, reservation_id)["State"] == "active"
    assert "EndDate" not in seen(ec2, reservation_id)


def test_a_reservation_expires_and_its_instances_run_on_outside(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    reservation_id = aws.reserve(ec2, EndDate=WHEN + timedelta(hours=1), EndDateType="limited")
    (inside,) = run(ec2, 1, specification=to_id(reservation_id))
    aws.control.advance(3600)
    assert seen(ec2, reservation_id)["State"] == "expired"
    assert free(ec2, reservation_id) == 0
    (after,) = instances(ec2, [inside["InstanceId"]])
    assert after["State"]["Name"] == "running"
    assert "CapacityReservationId" not in after
    with refused("InvalidCapacityReservationState"):
        run(ec2, 1, specification=to_id(reservation_id))


def test_a_cancelled_reservation_lets_go_of_its_instances(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 2)
    (inside,) = run(ec2, 1, specification=to_id(reservation_id))
    assert ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)["Return"] is True
    assert seen(ec2, reservation_id)["State"] == "cancelled"
    assert places(instances(ec2, [inside["InstanceId"]])) == [None]
    with refused("IncorrectState", text="cancelled"):
        ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    with refused("IncorrectState", text="cancelled"):
        ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, InstanceCount=3)


def test_a_pending_reservation_cannot_be_cancelled(aws: Aws, ec2: Any) -> None:
    aws.control.freeze()
    aws.control.pending(240)
    reservation_id = aws.reserve(ec2, 1)
    with refused("IncorrectState", text="pending"):
        ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    aws.control.advance(241)
    assert ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)["Return"] is True


def test_a_new_reservation_is_pending_for_a_while_and_takes_launches_already(aws: Aws, ec2: Any) -> None:
    aws.control.freeze()
    aws.control.pending(240)
    reservation_id = aws.reserve(ec2)
    assert seen(ec2, reservation_id)["State"] == "pending"
    assert places(run(ec2, 1, specification=to_id(reservation_id))) == [reservation_id]
    aws.control.advance(240)
    assert seen(ec2, reservation_id)["State"] == "active"


def test_a_future_dated_reservation_waits_for_its_day(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    future: dict[str, Any] = {
        "StartDate": WHEN + timedelta(days=6),
        "CommitmentDuration": 14 * 86400,
        "DeliveryPreference": "incremental",
    }
    reservation_id = aws.reserve(ec2, 32, **future)
    assert seen(ec2, reservation_id)["State"] == "scheduled"
    with refused("InvalidCapacityReservationState.PendingActivation"):
        run(ec2, 1, specification=to_id(reservation_id))
    aws.control.advance(6 * 86400)
    assert seen(ec2, reservation_id)["State"] == "active"
    with refused("IncorrectState", text="committed"):
        ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    with refused("Unsupported", text="p5.48xlarge"):
        aws.reserve(ec2, **{**future, "StartDate": WHEN + timedelta(days=20)}, InstanceType="p5.48xlarge")


def test_usage_counts_by_account(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 3)
    run(ec2, 2, specification=to_id(reservation_id))
    usage = ec2.get_capacity_reservation_usage(CapacityReservationId=reservation_id)
    assert (usage["TotalInstanceCount"], usage["AvailableInstanceCount"], usage["State"]) == (3, 1, "active")
    assert usage["InstanceUsages"] == [{"AccountId": "123456789012", "UsedInstanceCount": 2}]
    assert seen(ec2, reservation_id)["CapacityAllocations"] == [{"AllocationType": "used", "Count": 2}]


def test_the_groups_of_a_reservation(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2)
    arns = {aws.group(name, reservation_id) for name in ("blue", "green")}
    aws.group("empty")
    answer = ec2.get_groups_for_capacity_reservation(CapacityReservationId=reservation_id)
    assert {entry["GroupArn"] for entry in answer["CapacityReservationGroups"]} == arns
    assert {entry["OwnerId"] for entry in answer["CapacityReservationGroups"]} == {"123456789012"}


def test_tags_come_and_go(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2)
    ec2.create_tags(Resources=[reservation_id], Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}])
    ec2.delete_tags(Resources=[reservation_id], Tags=[{"Key": "b"}])
    assert seen(ec2, reservation_id)["Tags"] == [{"Key": "a", "Value": "1"}]
    assert ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [reservation_id]}])["Tags"] == [
        {"Key": "a", "Value": "1", "ResourceId": reservation_id, "ResourceType": "capacity-reservation"}
    ]
    with refused("InvalidCapacityReservationId.NotFound"):
        ec2.create_tags(Resources=["cr-" + "0" * 17], Tags=[{"Key": "a", "Value": "1"}])


@pytest.mark.parametrize(
    ("action", "parameters"),
    [
        (
            "create_capacity_reservation",
            {
                "InstanceType": TYPE,
                "InstancePlatform": "Linux/UNIX",
                "AvailabilityZone": ZONE,
                "InstanceCount": 1,
            },
        ),
        ("modify_capacity_reservation", {"InstanceCount": 9}),
        ("cancel_capacity_reservation", {}),
        ("describe_capacity_reservations", {}),
        ("get_capacity_reservation_usage", {}),
        ("get_groups_for_capacity_reservation", {}),
        ("run_instances", {"ImageId": LINUX, "MinCount": 1, "MaxCount": 1}),
    ],
)
def test_dry_run_succeeds_and_does_nothing(
    aws: Aws, ec2: Any, action: str, parameters: dict[str, Any]
) -> None:
    reservation_id = aws.reserve(ec2, 2)
    about_one = action.startswith(("modify", "cancel", "get"))
    with refused("DryRunOperation", status=412):
        getattr(ec2, action)(
            DryRun=True, **parameters, **({"CapacityReservationId": reservation_id} if about_one else {})
        )
    (only,) = ec2.describe_capacity_reservations()["CapacityReservations"]
    assert (only["State"], only["TotalInstanceCount"]) == ("active", 2)
    assert ec2.describe_instances()["Reservations"] == []


def test_a_shared_reservation_can_be_used_and_not_changed(aws: Aws, ec2: Any) -> None:
    odcr = aws.control.reservation(
        owner_id=OTHER_ACCOUNT,
        InstanceType=TYPE,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=ZONE,
        InstanceCount=2,
        InstanceMatchCriteria="targeted",
    )
    reservation_id = odcr["CapacityReservationId"]
    assert seen(ec2, reservation_id)["OwnerId"] == OTHER_ACCOUNT
    assert places(run(ec2, 1, specification=to_id(reservation_id, **ONLY))) == [reservation_id]
    with refused("OperationNotPermitted", text=OTHER_ACCOUNT):
        ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    with refused("OperationNotPermitted"):
        ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, InstanceCount=3)


def test_unshared_reservation_disappears_and_its_instances_run_on(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.control.reservation(
        owner_id=OTHER_ACCOUNT,
        InstanceType=TYPE,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=ZONE,
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
    )["CapacityReservationId"]
    (inside,) = run(ec2, specification=to_id(reservation_id, **ONLY))
    aws.control.set_reservation(reservation_id, shared_with=[])
    (after,) = instances(ec2, [inside["InstanceId"]])
    assert (after["State"]["Name"], places([after])) == ("running", [None])
    with refused("InvalidCapacityReservationId.NotFound"):
        seen(ec2, reservation_id)
    aws.control.set_reservation(reservation_id, shared_with=["123456789012"])
    assert free(ec2, reservation_id) == 1
