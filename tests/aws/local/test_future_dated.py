"""Reservations for a later day: assessed, scheduled, delivered or delayed; committed; quoted."""

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


# ---- quotes


def test_it_is_cancelled_within_its_commitment_by_a_quote_and_charges(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 32, **FUTURE)
    to(aws, START + DAY)
    quote = ec2.create_capacity_reservation_cancellation_quote(
        CapacityReservationId=reservation_id,
        TagSpecifications=[
            {
                "ResourceType": "capacity-reservation-cancellation-quote",
                "Tags": [{"Key": "asked", "Value": "me"}],
            }
        ],
    )["CapacityReservationCancellationQuote"]
    assert (quote["QuoteState"], quote["ExpirationTime"]) == ("active", START + 2 * DAY)
    assert quote["CurrentConfiguration"] == {"InstanceCount": 32, "ReservationState": "active"}
    (terms,) = quote["CancellationTerms"]
    assert (terms["CancellationType"], terms["ChargeEndDate"]) == ("commitment-wind-down", START + 14 * DAY)
    assert (terms["ChargeCommitmentDurationHours"], quote["Tags"][0]["Value"]) == (13 * 24, "me")

    def cancel(**more: Any) -> None:
        ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id, **more)

    by_quote = {
        "QuoteId": quote["CapacityReservationCancellationQuoteId"],
        "ApplyCancellationCharges": "commitment-wind-down",
    }
    with refused("IncorrectState", text="cancellation quote"):
        cancel(ApplyCancellationCharges="commitment-wind-down")
    with refused("InvalidParameterValue", text="no quote crcq-0"):
        cancel(**{**by_quote, "QuoteId": "crcq-0"})
    cancel(**by_quote)
    assert (state(ec2, reservation_id), free(ec2, reservation_id)) == ("cancelling", 0)
    to(aws, START + 14 * DAY)
    assert state(ec2, reservation_id) == "cancelled"
    (kept,) = ec2.describe_capacity_reservation_cancellation_quotes()["CapacityReservationCancellationQuotes"]
    assert kept["QuoteState"] == "expired"


def test_a_quote_is_good_for_a_day_and_only_where_it_is_needed(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 32, **FUTURE)
    quote = ec2.create_capacity_reservation_cancellation_quote(CapacityReservationId=reservation_id)
    quote_id = quote["CapacityReservationCancellationQuote"]["CapacityReservationCancellationQuoteId"]
    to(aws, WHEN + DAY)
    with refused("InvalidParameterValue", text="not active any more"):
        ec2.cancel_capacity_reservation(
            CapacityReservationId=reservation_id,
            QuoteId=quote_id,
            ApplyCancellationCharges="commitment-wind-down",
        )
    plain = aws.reserve(ec2)
    with refused("IncorrectState", text="needs no quote"):
        ec2.create_capacity_reservation_cancellation_quote(CapacityReservationId=plain)
    with refused("DryRunOperation", status=412):
        ec2.create_capacity_reservation_cancellation_quote(CapacityReservationId=plain, DryRun=True)


def test_its_start_is_put_off_by_a_quote(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 32, **FUTURE)

    def quote_for(start: datetime, **more: Any) -> Any:
        return ec2.create_capacity_reservation_date_change_quote(
            CapacityReservationId=reservation_id, NewStartDate=start, **more
        )["CapacityReservationModificationQuote"]

    with refused("InvalidParameterValue", text="30 days"):
        quote_for(START + 31 * DAY)
    with refused("InvalidParameterValue", text="after"):
        quote_for(START - DAY)
    with refused("DryRunOperation", status=412):
        quote_for(START + DAY, DryRun=True)
    quote = quote_for(START + 10 * DAY)
    assert quote["ModificationTerms"]["ReservationUpdate"] == {
        "NewStartDate": START + 10 * DAY,
        "NewCommitmentEndDate": START + 24 * DAY,
        "NewCommitmentDuration": 14 * 86400,
    }
    by_quote = {
        "CapacityReservationId": reservation_id,
        "QuoteId": quote["CapacityReservationModificationQuoteId"],
    }
    with refused("InvalidParameterCombination", text="AcceptModificationTerms"):
        ec2.modify_capacity_reservation(**by_quote)
    with refused("InvalidParameterValue", text="not the quote's"):
        ec2.modify_capacity_reservation(**by_quote, AcceptModificationTerms=True, StartDate=START + DAY)
    answer = ec2.modify_capacity_reservation(**by_quote, AcceptModificationTerms=True)
    assert (answer["Return"], answer["AdjustmentStatus"]) == (True, "applied")
    shown = seen(ec2, reservation_id)
    assert (shown["StartDate"], shown["OriginalStartDate"]) == (START + 10 * DAY, START)
    with refused("InvalidParameterValue", text="not active any more"):
        ec2.modify_capacity_reservation(**by_quote, AcceptModificationTerms=True)
    with refused("InvalidParameterValue", text="30 days"):  # of the first date, in all
        quote_for(START + 31 * DAY)
    to(aws, START)
    assert state(ec2, reservation_id) == "scheduled"
    to(aws, START + 10 * DAY)
    assert state(ec2, reservation_id) == "active"
    with refused("IncorrectState", text="not scheduled"):
        quote_for(START + 11 * DAY)


def test_quotes_are_described_by_id_filter_and_page(aws: Aws, ec2: Any) -> None:
    first, second = (aws.reserve(ec2, 32, **FUTURE) for _ in range(2))
    ids = [
        ec2.create_capacity_reservation_date_change_quote(
            CapacityReservationId=reservation_id, NewStartDate=START + DAY
        )["CapacityReservationModificationQuote"]["CapacityReservationModificationQuoteId"]
        for reservation_id in (first, second)
    ]
    describe = ec2.describe_capacity_reservation_date_change_quotes

    def quote_ids(**parameters: Any) -> list[str]:
        answer = describe(**parameters)["CapacityReservationModificationQuotes"]
        return [quote["CapacityReservationModificationQuoteId"] for quote in answer]

    assert quote_ids() == ids
    assert quote_ids(CapacityReservationModificationQuoteIds=[ids[1]]) == [ids[1]]
    assert quote_ids(Filters=[{"Name": "capacity-reservation-id", "Values": [second]}]) == [ids[1]]
    page = describe(MaxResults=1)
    assert quote_ids(MaxResults=1) == ids[:1]
    assert quote_ids(NextToken=page["NextToken"]) == ids[1:]
    assert (
        ec2.describe_capacity_reservation_cancellation_quotes()["CapacityReservationCancellationQuotes"] == []
    )
    with refused("InvalidParameterValue", text="no quote"):
        quote_ids(CapacityReservationModificationQuoteIds=["crmq-0"])
    with refused("DryRunOperation", status=412):
        quote_ids(DryRun=True)
