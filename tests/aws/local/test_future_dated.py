"""Reservations for a later day: assessed, scheduled, delivered or delayed; committed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from local.aws.control import ControlError
from tests.aws.local.kit import TYPE, ZONE, Aws, free, refused, run, seen, to_id

WHEN = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
START = WHEN + 6 * DAY
FUTURE: dict[str, Any] = {
    "StartDate": START,
    "CommitmentDuration": 14 * 86400,
    "DeliveryPreference": "incremental",
}


@pytest.fixture(autouse=True)
def stopped_clock(aws: Aws) -> None:
    aws.control.freeze(WHEN)


def to(aws: Aws, at: datetime) -> None:
    aws.control.advance((at - aws.control.now()).total_seconds())


def state(ec2: Any, reservation_id: str) -> str:
    return str(seen(ec2, reservation_id)["State"])


def notice_types(aws: Aws) -> list[str]:
    return [
        event["detail-type"].removeprefix("EC2 Capacity Reservation ")
        for event in aws.control.notices()
        if "capacity-reservation-id" in event["detail"]
    ]


def test_from_assessment_to_delivery(aws: Aws, ec2: Any) -> None:
    aws.control.assessment(seconds=3600)
    reservation_id = aws.reserve(ec2, 32, **FUTURE)
    assert state(ec2, reservation_id) == "assessing"
    aws.control.advance(3600)
    assert state(ec2, reservation_id) == "scheduled"
    with refused("InvalidCapacityReservationState.PendingActivation"):
        run(ec2, specification=to_id(reservation_id))
    to(aws, START)
    shown = seen(ec2, reservation_id)
    assert (shown["State"], shown["StartDate"], free(ec2, reservation_id)) == ("active", START, 32)
    assert shown["CommitmentInfo"] == {
        "CommittedInstanceCount": 32,
        "CommitmentEndDate": START + 14 * DAY,
        "CommitmentDuration": 14 * 86400,
    }
    assert notice_types(aws) == ["Scheduled", "Active"]
    assert len(run(ec2, specification=to_id(reservation_id))) == 1


def test_ec2_may_not_support_it(aws: Aws, ec2: Any) -> None:
    aws.control.assessment(seconds=60, outcome="unsupported")
    reservation_id = aws.reserve(ec2, 32, **FUTURE)
    aws.control.advance(60)
    assert (state(ec2, reservation_id), notice_types(aws)) == ("unsupported", ["Unsupported"])
    to(aws, START)
    assert state(ec2, reservation_id) == "unsupported"
    with pytest.raises(ControlError, match="assessment_outcome: 'maybe' is invalid"):
        aws.control.assessment(outcome="maybe")


def test_it_is_delayed_until_the_zone_has_room_and_may_then_be_dropped(aws: Aws, ec2: Any) -> None:
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=10)
    late, dropped = (aws.reserve(ec2, 32, **FUTURE) for _ in range(2))
    to(aws, START)
    assert (state(ec2, late), notice_types(aws)) == (
        "delayed",
        ["Scheduled", "Scheduled", "Delayed", "Delayed"],
    )
    ec2.cancel_capacity_reservation(CapacityReservationId=dropped)
    assert state(ec2, dropped) == "cancelled"
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=40)
    aws.control.advance(3600)
    shown = seen(ec2, late)
    assert shown["State"] == "active"
    assert shown["CommitmentInfo"]["CommitmentEndDate"] > START + 14 * DAY
    assert [pool["free"] for pool in aws.control.pools()] == [8]


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"StartDate": WHEN + 4 * DAY}, "InvalidParameterValue", "5 to 120 days"),
        ({"StartDate": WHEN + 121 * DAY}, "InvalidParameterValue", "5 to 120 days"),
        ({"InstanceMatchCriteria": "open"}, "InvalidParameterCombination", "targeted"),
        ({"DeliveryPreference": "fixed"}, "InvalidParameterCombination", "incremental"),
        ({"CommitmentDuration": None}, "MissingParameter", "CommitmentDuration"),
        ({"InstanceCount": 15}, "InvalidParameterValue", "30 vCPUs"),
        ({"InstanceType": "p5.48xlarge"}, "Unsupported", "p5.48xlarge"),
        ({"InstanceType": "trn1.32xlarge"}, "Unsupported", "trn1"),
        ({"PlacementGroupArn": "arn:aws:ec2:x"}, "InvalidParameterCombination", "PlacementGroupArn"),
        (
            {"EndDate": START + 13 * DAY, "EndDateType": "limited"},
            "InvalidParameterValue",
            "within the commitment",
        ),
        ({"StartDate": None}, "InvalidParameterCombination", "add StartDate"),
    ],
)
def test_requests_that_are_refused(aws: Aws, ec2: Any, changes: dict[str, Any], code: str, text: str) -> None:
    request_fields = {"InstanceCount": 32, **FUTURE, **changes}
    count = request_fields.pop("InstanceCount")
    with refused(code, text=text):
        aws.reserve(
            ec2, count, **{name: value for name, value in request_fields.items() if value is not None}
        )


def test_before_it_starts_it_is_not_modified_and_within_its_commitment_not_cut(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 32, **FUTURE)

    def modify(**changes: Any) -> None:
        ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, **changes)

    with refused("IncorrectState", text="scheduled"):
        modify(InstanceCount=40)
    to(aws, START)
    modify(InstanceCount=40)
    modify(InstanceCount=32)
    with refused("OperationNotPermitted", text="committed to 32"):
        modify(InstanceCount=31)
    with refused("OperationNotPermitted", text="can't end"):
        modify(EndDate=START + 13 * DAY, EndDateType="limited")
    modify(EndDate=START + 20 * DAY, EndDateType="limited")
    to(aws, START + 14 * DAY)
    modify(InstanceCount=8)
    to(aws, START + 20 * DAY)
    assert (state(ec2, reservation_id), notice_types(aws)) == ("expired", ["Scheduled", "Active", "Expired"])
