"""Capacity Blocks from the offering to the end: dates, states, payment, warnings, extensions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from local.aws.control import ControlError
from tests.aws.local.kit import ONLY, Aws, free, instances, refused, run, seen, to_id

WHEN = datetime(2030, 1, 1, tzinfo=UTC)
P5, LINUX_UNIX = "p5.48xlarge", "Linux/UNIX"
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


@pytest.fixture(autouse=True)
def stopped_clock(aws: Aws) -> None:
    aws.control.freeze(WHEN)


def offers(ec2: Any, **changes: Any) -> list[Any]:
    request = {"InstanceType": P5, "InstanceCount": 2, "CapacityDurationHours": 24, **changes}
    return list(ec2.describe_capacity_block_offerings(**request)["CapacityBlockOfferings"])


def buy(ec2: Any, offer: Any, **more: Any) -> Any:
    return ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offer["CapacityBlockOfferingId"], InstancePlatform=LINUX_UNIX, **more
    )


def bought(ec2: Any, **changes: Any) -> str:
    answer = buy(ec2, offers(ec2, **changes)[0])
    return str(answer["CapacityReservation"]["CapacityReservationId"])


def into(ec2: Any, reservation_id: str, count: int = 1) -> list[str]:
    launched_instances = run(
        ec2,
        count,
        InstanceType=P5,
        specification=to_id(reservation_id, **ONLY),
        InstanceMarketOptions={"MarketType": "capacity-block"},
    )
    return [instance["InstanceId"] for instance in launched_instances]


def states(ec2: Any, ids: list[str]) -> list[str]:
    return [instance["State"]["Name"] for instance in instances(ec2, ids)]


def test_blocks_are_offered_where_the_type_is_and_at_the_hour_they_turn(ec2: Any) -> None:
    offerings = offers(ec2)
    assert [offer["AvailabilityZone"] for offer in offerings] == [f"us-east-1{letter}" for letter in "abcdef"]
    first = offerings[0]
    assert (first["StartDate"], first["EndDate"]) == (
        WHEN.replace(hour=11, minute=30),
        WHEN.replace(hour=11, minute=30) + DAY,
    )
    assert (first["CapacityBlockDurationHours"], first["CapacityBlockDurationMinutes"]) == (24, 0)
    assert (first["InstanceCount"], first["CurrencyCode"], first["Tenancy"]) == (2, "USD", "default")
    assert float(first["UpfrontFee"]) > 0
    (segment,) = first["CapacityBlockOfferingSegments"]
    assert segment["AvailabilityZoneId"] == "use1-az6"
    later = offers(ec2, StartDateRange=WHEN + 3 * DAY, EndDateRange=WHEN + 6 * DAY)
    assert {offer["StartDate"] for offer in later} == {WHEN.replace(hour=11, minute=30) + 3 * DAY}
    assert offers(ec2, StartDateRange=WHEN, EndDateRange=WHEN + DAY) == []
    assert offers(ec2, StartDateRange=WHEN + 60 * DAY) == []
    assert offers(ec2, InstanceType="m5.large") == []


def test_offerings_come_in_pages_and_for_several_types(ec2: Any) -> None:
    types = {"InstanceTypePreferences": [{"InstanceType": P5}, {"InstanceType": "p5en.48xlarge"}]}
    pages = ec2.get_paginator("describe_capacity_block_offerings").paginate(
        CapacityDurationHours=48, PaginationConfig={"PageSize": 3}, **types
    )
    sizes = [len(page["CapacityBlockOfferings"]) for page in pages]
    assert sizes == [3, 3, 2]


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"CapacityDurationHours": 25}, "InvalidParameterValue", "whole days"),
        ({"CapacityDurationHours": 15 * 24}, "InvalidParameterValue", "whole weeks"),
        ({"CapacityDurationHours": 189 * 24}, "InvalidParameterValue", "182 days"),
        ({"InstanceCount": 65}, "InvalidParameterValue", "1 to 64"),
        ({"StartDateRange": WHEN + DAY, "EndDateRange": WHEN}, "InvalidParameterValue", "EndDateRange"),
        ({"InstanceTypePreferences": [{"InstanceType": P5}]}, "InvalidParameterCombination", "together"),
        ({"MaxResults": 1001}, "InvalidParameterValue", "MaxResults"),
        ({"DryRun": True}, "DryRunOperation", ""),
    ],
)
def test_invalid_offering_requests_are_refused(
    ec2: Any, changes: dict[str, Any], code: str, text: str
) -> None:
    with refused(code, status=412 if code == "DryRunOperation" else 400, text=text):
        offers(ec2, **changes)


def test_a_block_from_purchase_to_its_end(aws: Aws, ec2: Any) -> None:
    aws.control.payment(600)
    tags = [
        {"ResourceType": "capacity-block", "Tags": [{"Key": "team", "Value": "ml"}]},
        {"ResourceType": "capacity-reservation", "Tags": [{"Key": "run", "Value": "1"}]},
    ]
    answer = buy(ec2, offers(ec2)[0], TagSpecifications=tags)
    odcr, (block,) = answer["CapacityReservation"], answer["CapacityBlocks"]
    assert answer["CapacityReservations"] == [odcr]
    assert (odcr["State"], odcr["ReservationType"], odcr["InstanceMatchCriteria"]) == (
        "payment-pending",
        "capacity-block",
        "targeted",
    )
    assert odcr["Tags"] == [{"Key": "run", "Value": "1"}]
    assert block["Tags"] == [{"Key": "team", "Value": "ml"}]
    assert odcr["CapacityBlockId"] == block["CapacityBlockId"]
    assert block["CapacityReservationIds"] == [odcr["CapacityReservationId"]]
    reservation_id, end = odcr["CapacityReservationId"], odcr["EndDate"]
    aws.control.advance(600)
    assert seen(ec2, reservation_id)["State"] == "scheduled"
    with refused("InvalidCapacityReservationState.PendingActivation"):
        into(ec2, reservation_id)
    aws.control.advance((odcr["StartDate"] - WHEN).total_seconds() - 600)
    assert seen(ec2, reservation_id)["State"] == "active"
    (inside,) = into(ec2, reservation_id)
    (shown,) = instances(ec2, [inside])
    assert (shown["CapacityBlockId"], shown["InstanceLifecycle"]) == (
        block["CapacityBlockId"],
        "capacity-block",
    )
    (status,) = ec2.describe_capacity_block_status()["CapacityBlockStatuses"]
    assert (status["TotalCapacity"], status["TotalAvailableCapacity"], status["InterconnectStatus"]) == (
        2,
        1,
        "ok",
    )
    aws.control.advance((end - timedelta(minutes=30) - aws.control.now()).total_seconds() - 1)
    assert states(ec2, [inside]) == ["running"]
    aws.control.advance(1)
    assert states(ec2, [inside]) == ["terminated"]
    with refused("InvalidCapacityReservationState", text="ends soon"):
        into(ec2, reservation_id)
    aws.control.advance(1800)
    assert seen(ec2, reservation_id)["State"] == "expired"
    assert ec2.describe_capacity_blocks()["CapacityBlocks"][0]["State"] == "expired"


def test_block_announces_its_start_and_its_end(aws: Aws, ec2: Any) -> None:
    reservation_id = bought(ec2)
    start, end = (seen(ec2, reservation_id)[name] for name in ("StartDate", "EndDate"))
    aws.control.advance((start - WHEN).total_seconds())
    (inside,) = into(ec2, reservation_id)
    (delivered,) = aws.control.notices("Capacity Block Reservation Delivered")
    assert delivered["detail"] == {
        "capacity-reservation-id": reservation_id,
        "end-date": "2030-01-02T11:30:00Z",
    }
    aws.control.advance((end - start).total_seconds() - 2401)
    assert aws.control.notices("Capacity Block Reservation Expiration Warning") == []
    aws.control.advance(1)
    (warning,) = aws.control.notices("Capacity Block Reservation Expiration Warning")
    assert (warning["time"], warning["detail"]) == ("2030-01-02T10:50:00Z", delivered["detail"])
    (own,) = aws.control.notices("EC2 Capacity Reservation Instance Interruption Warning")
    assert own["detail"] == {
        "instance-id": inside,
        "instance-action": "terminate",
        "instance-termination-time": "2030-01-02T11:00:00Z",
        "availability-zone-id": "use1-az6",
        "instance-lifecycle": "capacity-block",
    }


def test_a_block_that_is_not_paid_in_twelve_hours_is_released(aws: Aws, ec2: Any) -> None:
    aws.control.payment(13 * 3600)
    reservation_id = bought(ec2)
    aws.control.advance(12 * 3600 - 1)
    assert seen(ec2, reservation_id)["State"] == "payment-pending"
    aws.control.advance(1)
    assert seen(ec2, reservation_id)["State"] == "payment-failed"
    aws.control.advance(3600)
    assert seen(ec2, reservation_id)["State"] == "payment-failed"


def test_blocks_that_do_not_overlap_share_the_zones_capacity(aws: Aws, ec2: Any) -> None:
    aws.control.pool(instance_type=P5, zone="us-east-1a", size=3, capacity_type="capacity-block")

    def in_a(**changes: Any) -> list[Any]:
        return [offer for offer in offers(ec2, **changes) if offer["AvailabilityZone"] == "us-east-1a"]

    two_of_them = in_a() + in_a()
    buy(ec2, two_of_them[0])
    with refused("InvalidCapacityBlockOfferingIdExpired"):
        buy(ec2, two_of_them[1])
    assert in_a() == []
    assert len(in_a(InstanceCount=1)) == 1
    assert len(in_a(StartDateRange=WHEN + 3 * DAY)) == 1
    assert [(pool["capacity_type"], pool["free"]) for pool in aws.control.pools()] == [("capacity-block", 1)]


def test_blocks_are_bought_by_an_offering_of_ones_own(ec2: Any) -> None:
    (offer, *_) = offers(ec2)
    with refused("DryRunOperation", status=412):
        buy(ec2, offer, DryRun=True)
    buy(ec2, offer)
    with refused("InvalidCapacityBlockOfferingIdNotFound"):
        buy(ec2, offer)
    with refused("InvalidCapacityBlockOfferingIdMalformed"):
        buy(ec2, {"CapacityBlockOfferingId": "block-1"})


def test_no_more_than_256_instances_in_all_blocks(ec2: Any) -> None:
    for offer in offers(ec2, InstanceCount=64)[:4]:
        buy(ec2, offer)
    with refused("InstanceLimitExceeded", text="256"):
        bought(ec2, InstanceCount=1)


def test_blocks_are_described_by_id_filter_and_page(ec2: Any) -> None:
    ids = [buy(ec2, offer)["CapacityBlocks"][0]["CapacityBlockId"] for offer in offers(ec2)[:3]]
    ec2.create_tags(Resources=[ids[1]], Tags=[{"Key": "team", "Value": "ml"}])

    def block_ids(**parameters: Any) -> list[str]:
        return [b["CapacityBlockId"] for b in ec2.describe_capacity_blocks(**parameters)["CapacityBlocks"]]

    def by(name: str, value: str) -> list[str]:
        return block_ids(Filters=[{"Name": name, "Values": [value]}])

    assert block_ids(CapacityBlockIds=[ids[2], ids[0]]) == [ids[2], ids[0]]
    assert by("availability-zone", "us-east-1b") == [ids[1]]
    assert by("tag:team", "ml") == [ids[1]]
    assert by("ultraserver-type", "instances") == ids
    assert by("state", "expired") == []
    assert by("start-date", "2030-01-01T11:30*") == ids
    page = ec2.describe_capacity_blocks(MaxResults=2)
    assert [b["CapacityBlockId"] for b in page["CapacityBlocks"]] == ids[:2]
    assert block_ids(NextToken=page["NextToken"]) == ids[2:]
    assert ec2.describe_capacity_block_status()["CapacityBlockStatuses"] == []  # none has started
    with refused("InvalidParameterValue", text="does not exist"):
        block_ids(CapacityBlockIds=["cb-0123456789abcdef0"])
    with refused("InvalidParameterValue", text="colour"):
        by("colour", "blue")
    for action in (ec2.describe_capacity_blocks, ec2.describe_capacity_block_status):
        with refused("DryRunOperation", status=412):
            action(DryRun=True)


def test_a_scripted_offering_is_bought_as_it_is(aws: Aws, ec2: Any) -> None:
    offered = aws.control.block_offering(
        instance_type="m5.large", zone="us-east-1a", count=1, start=WHEN, end=WHEN + 2 * HOUR, fee=1.5
    )
    (offer,) = offers(ec2, InstanceType="m5.large", InstanceCount=1)
    assert (offer["CapacityBlockOfferingId"], offer["UpfrontFee"]) == (offered, "1.5000")
    odcr = buy(ec2, offer)["CapacityReservation"]
    assert seen(ec2, odcr["CapacityReservationId"])["State"] == "active"
    with pytest.raises(ControlError, match=r"end: .* is not after start"):
        aws.control.block_offering(instance_type=P5, zone="us-east-1a", count=1, start=WHEN, end=WHEN)
    with pytest.raises(ControlError, match="count: it is missing; it takes account"):
        aws.control.block_offering(instance_type=P5, zone="us-east-1a", start=WHEN, end=WHEN + DAY)


def test_ultraservers_are_a_reservation_each_and_end_an_hour_early(aws: Aws, ec2: Any) -> None:
    aws.control.block_offering(
        instance_type=P5,
        zone="us-east-1a",
        count=4,
        start=WHEN,
        end=WHEN + DAY,
        ultraserver_type="u-p6e-gb200x72",
        ultraservers=2,
    )
    (offer,) = ec2.describe_capacity_block_offerings(
        UltraserverType="u-p6e-gb200x72", UltraserverCount=2, CapacityDurationHours=24
    )["CapacityBlockOfferings"]
    reservation_ids = [entry["CapacityReservationId"] for entry in buy(ec2, offer)["CapacityReservations"]]
    assert len(reservation_ids) == 2
    assert [seen(ec2, reservation_id)["TotalInstanceCount"] for reservation_id in reservation_ids] == [2, 2]
    assert seen(ec2, reservation_ids[0])["LaunchStatus"] == "launchable"
    inside = into(ec2, reservation_ids[0], 2)
    aws.control.advance(23 * 3600 - 1)
    assert states(ec2, inside) == ["running", "running"]
    aws.control.advance(1)
    assert states(ec2, inside) == ["terminated", "terminated"]


# ---- extensions


def extension(ec2: Any, reservation_id: str, hours: int = 48) -> Any:
    (offer,) = ec2.describe_capacity_block_extension_offerings(
        CapacityReservationId=reservation_id, CapacityBlockExtensionDurationHours=hours
    )["CapacityBlockExtensionOfferings"]
    return offer


def extend(ec2: Any, reservation_id: str, offer: Any, **more: Any) -> Any:
    return ec2.purchase_capacity_block_extension(
        CapacityReservationId=reservation_id,
        CapacityBlockExtensionOfferingId=offer["CapacityBlockExtensionOfferingId"],
        **more,
    )["CapacityBlockExtensions"][0]


def test_an_extended_block_runs_on_undisturbed(aws: Aws, ec2: Any) -> None:
    reservation_id = bought(ec2)
    start, end = (seen(ec2, reservation_id)[name] for name in ("StartDate", "EndDate"))
    aws.control.advance((start - WHEN).total_seconds())
    inside = into(ec2, reservation_id)
    offer = extension(ec2, reservation_id)
    assert (offer["CapacityBlockExtensionStartDate"], offer["CapacityBlockExtensionEndDate"]) == (
        end,
        end + 2 * DAY,
    )
    assert (offer["StartDate"], offer["InstanceCount"]) == (start, 2)
    paid = extend(ec2, reservation_id, offer)
    assert paid["CapacityBlockExtensionStatus"] == "payment-pending"
    assert seen(ec2, reservation_id)["EndDate"] == end + 2 * DAY
    (entry,) = ec2.describe_capacity_block_extension_history()["CapacityBlockExtensions"]
    assert entry["CapacityBlockExtensionStatus"] == "payment-succeeded"
    aws.control.advance((end - start).total_seconds())
    assert (states(ec2, inside), seen(ec2, reservation_id)["State"]) == (["running"], "active")
    assert aws.control.notices("Capacity Block Reservation Expiration Warning") == []
    aws.control.advance(2 * 86400 - 1800)
    assert states(ec2, inside) == ["terminated"]
    aws.control.advance(1800)
    assert (seen(ec2, reservation_id)["State"], free(ec2, reservation_id)) == ("expired", 0)


def test_an_extension_that_is_not_paid_leaves_the_end_where_it_was(aws: Aws, ec2: Any) -> None:
    reservation_id = bought(ec2)
    start, end = (seen(ec2, reservation_id)[name] for name in ("StartDate", "EndDate"))
    aws.control.advance((end - WHEN).total_seconds() - 3600)
    assert aws.control.now() > start
    aws.control.payment(1500)
    offer = extension(ec2, reservation_id)
    extend(ec2, reservation_id, offer)
    with refused("IncorrectState", text="not paid"):
        extend(ec2, reservation_id, offer)
    aws.control.advance(1500)
    (entry,) = ec2.describe_capacity_block_extension_history(
        Filters=[{"Name": "capacity-block-extension-status", "Values": ["payment-failed"]}]
    )["CapacityBlockExtensions"]
    assert entry["CapacityReservationId"] == reservation_id
    assert seen(ec2, reservation_id)["EndDate"] == end


def test_extensions_that_are_refused(aws: Aws, ec2: Any) -> None:
    reservation_id, other = bought(ec2), bought(ec2)
    plain = aws.reserve(ec2)
    with refused("InvalidParameterValue", text="not a Capacity Block"):
        extension(ec2, plain)
    with refused("InvalidParameterValue", text="whole days"):
        extension(ec2, reservation_id, 12)
    with refused("InvalidParameterValue", text="182 days in all"):
        extension(ec2, reservation_id, 182 * 24)
    offer = extension(ec2, reservation_id)
    with refused("DryRunOperation", status=412):
        extend(ec2, reservation_id, offer, DryRun=True)
    with refused("InvalidCapacityBlockOfferingIdNotFound"):
        extend(ec2, other, offer)
    with refused("InvalidCapacityBlockOfferingIdMalformed"):
        extend(ec2, reservation_id, {"CapacityBlockExtensionOfferingId": "x"})
    extend(ec2, reservation_id, extension(ec2, reservation_id, 24))
    with refused("InvalidCapacityBlockOfferingIdExpired"):
        ec2.describe_capacity_reservations()  # the first extension is paid by now
        extend(ec2, reservation_id, offer)
    aws.control.advance((seen(ec2, other)["EndDate"] - WHEN).total_seconds() - 1800)
    with refused("IncorrectState", text="1 hour before"):
        extension(ec2, other)
