"""Capacity lent out of a reservation and taken back: counts, warnings, terminations, events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.aws.local.kit import LINUX, ONLY, OTHER_ACCOUNT, Aws, free, instances, refused, run, seen, to_id

WHEN = datetime(2030, 1, 1, tzinfo=UTC)
MARKET = "interruptible-capacity-reservation"


@pytest.fixture(autouse=True)
def stopped_clock(aws: Aws) -> None:
    aws.control.freeze(WHEN)


def lend(ec2: Any, source: str, count: int, **more: Any) -> str:
    ec2.create_interruptible_capacity_reservation_allocation(
        CapacityReservationId=source, InstanceCount=count, **more
    )
    return str(allocation(ec2, source)["InterruptibleCapacityReservationId"])


def keep(ec2: Any, source: str, count: int | None, **more: Any) -> Any:
    if count is not None:
        more["TargetInstanceCount"] = count
    return ec2.update_interruptible_capacity_reservation_allocation(CapacityReservationId=source, **more)


def allocation(ec2: Any, source: str) -> Any:
    return seen(ec2, source)["InterruptibleCapacityAllocation"]


def into(ec2: Any, reservation_id: str, count: int = 1) -> list[str]:
    launched_instances = run(
        ec2,
        count,
        specification=to_id(reservation_id, **ONLY),
        InstanceMarketOptions={"MarketType": MARKET},
    )
    return [instance["InstanceId"] for instance in launched_instances]


def states(ec2: Any, ids: list[str]) -> list[str]:
    return [instance["State"]["Name"] for instance in instances(ec2, ids)]


def totals(ec2: Any, *ids: str) -> list[int]:
    return [seen(ec2, reservation_id)["TotalInstanceCount"] for reservation_id in ids]


def test_unused_capacity_becomes_a_reservation_of_its_own(aws: Aws, ec2: Any) -> None:
    source = aws.reserve(ec2, 5)
    run(ec2, 1, specification=to_id(source))
    answer = ec2.create_interruptible_capacity_reservation_allocation(
        CapacityReservationId=source,
        InstanceCount=3,
        TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": [{"Key": "team", "Value": "x"}]}],
    )
    assert (answer["SourceCapacityReservationId"], answer["TargetInstanceCount"]) == (source, 3)
    assert (answer["Status"], answer["InterruptionType"]) == ("active", "adhoc")
    shown = allocation(ec2, source)
    assert (shown["InstanceCount"], shown["Status"], shown["ZeroSizePreference"]) == (3, "active", "default")
    lent = seen(ec2, shown["InterruptibleCapacityReservationId"])
    assert (lent["Interruptible"], lent["InstanceMatchCriteria"], lent["State"]) == (
        True,
        "targeted",
        "active",
    )
    assert lent["InterruptionInfo"] == {
        "SourceCapacityReservationId": source,
        "InterruptionType": "adhoc",
    }
    assert lent["Tags"] == [{"Key": "team", "Value": "x"}]
    assert totals(ec2, source, lent["CapacityReservationId"]) == [2, 3]
    (inside,) = instances(ec2, into(ec2, lent["CapacityReservationId"]))
    assert (inside["CapacityReservationId"], inside["InstanceLifecycle"]) == (
        lent["CapacityReservationId"],
        MARKET,
    )
    usage = ec2.get_capacity_reservation_usage(CapacityReservationId=source)
    assert usage["InterruptibleCapacityAllocation"]["InstanceCount"] == 3


def test_free_slots_go_back_at_once_and_no_instance_ends(aws: Aws, ec2: Any) -> None:
    source = aws.reserve(ec2, 4)
    lent = lend(ec2, source, 4)
    inside = into(ec2, lent, 2)
    answer = keep(ec2, source, 2)
    assert (answer["InstanceCount"], answer["TargetInstanceCount"], answer["Status"]) == (2, 2, "active")
    assert totals(ec2, source, lent) == [2, 2]
    assert states(ec2, inside) == ["running", "running"]
    (done,) = aws.control.notices("EC2 Interruptible Capacity Reservation Allocation Reclamation Completed")
    assert done["detail"] == {
        "sourceCapacityReservationId": source,
        "instanceType": "m5.large",
        "availabilityZoneId": "use1-az6",
        "TotalInstanceCount": 2,
        "ReclaimedInstanceCount": 2,
        "targetInstanceCount": 2,
    }
    assert keep(ec2, source, 4)["InstanceCount"] == 4
    assert totals(ec2, source, lent) == [0, 4]


def test_running_instances_are_warned_and_end_two_minutes_later(aws: Aws, ec2: Any) -> None:
    aws.control.slot_release(60)
    source = aws.reserve(ec2, 3)
    lent = lend(ec2, source, 3)
    first, second = into(ec2, lent), into(ec2, lent)
    ec2.modify_instance_attribute(InstanceId=second[0], DisableApiTermination={"Value": True})
    answer = keep(ec2, source, 1)
    assert (answer["InstanceCount"], answer["TargetInstanceCount"], answer["Status"]) == (2, 1, "updating")
    (warning,) = aws.control.notices("EC2 Capacity Reservation Instance Interruption Warning")
    assert warning["detail"] == {
        "instance-id": second[0],
        "instance-action": "terminate",
        "instance-termination-time": "2030-01-01T00:02:00Z",
        "azId": "use1-az6",
    }
    with refused("InvalidCapacityReservationState.Unavailable"):
        into(ec2, lent)
    with refused("IncorrectState", text="updating"):
        keep(ec2, source, 2)
    aws.control.advance(119)
    assert states(ec2, first + second) == ["running", "running"]
    aws.control.advance(1)
    assert states(ec2, first + second) == ["running", "shutting-down"]
    assert totals(ec2, source, lent) == [1, 2]
    aws.control.advance(70)
    assert states(ec2, first + second) == ["running", "terminated"]
    assert totals(ec2, source, lent) == [2, 1]
    assert (allocation(ec2, source)["Status"], free(ec2, source)) == ("active", 2)


@pytest.mark.parametrize(
    ("at_zero", "state", "status"), [(None, "cancelled", "canceled"), ("retain", "active", "active")]
)
def test_at_zero_it_is_cancelled_unless_it_is_retained(
    aws: Aws, ec2: Any, at_zero: str | None, state: str, status: str
) -> None:
    source = aws.reserve(ec2, 2)
    lent = lend(ec2, source, 2)
    inside = into(ec2, lent)
    if at_zero:
        assert keep(ec2, source, None, ZeroSizePreference=at_zero)["TargetInstanceCount"] == 2
    assert keep(ec2, source, 0)["Status"] == ("updating" if at_zero else "canceling")
    aws.control.advance(120)
    assert states(ec2, inside) == ["terminated"]
    assert (seen(ec2, lent)["State"], allocation(ec2, source)["Status"]) == (state, status)
    assert totals(ec2, source) == [2]
    if at_zero:
        keep(ec2, source, 1)
        assert totals(ec2, source, lent) == [1, 1]
        assert len(into(ec2, lent)) == 1
    else:
        assert lend(ec2, source, 1) != lent


def test_allocations_that_are_refused(aws: Aws, ec2: Any) -> None:
    source = aws.reserve(ec2, 2)
    ends = aws.reserve(ec2, EndDate=WHEN + timedelta(days=1), EndDateType="limited")
    with refused("InvalidParameterValue", text="2 unused"):
        lend(ec2, source, 3)
    with refused("IncorrectState", text="end date"):
        lend(ec2, ends, 1)
    with refused("IncorrectState", text="no interruptible allocation"):
        keep(ec2, source, 1)
    with refused("DryRunOperation", status=412):
        lend(ec2, source, 1, DryRun=True)
    lent = lend(ec2, source, 1)
    with refused("IncorrectState", text="already"):
        lend(ec2, source, 1)
    with refused("OperationNotPermitted", text=f"its source {source}"):
        lend(ec2, lent, 1)
    with refused("OperationNotPermitted", text="interruptible"):
        ec2.cancel_capacity_reservation(CapacityReservationId=lent)
    with refused("OperationNotPermitted", text="interruptible"):
        ec2.modify_capacity_reservation(CapacityReservationId=lent, InstanceCount=2)
    with refused("InvalidParameterValue", text="1 unused"):
        keep(ec2, source, 3)
    with refused("MissingParameter", text="TargetInstanceCount"):
        keep(ec2, source, None)
    with refused("DryRunOperation", status=412):
        keep(ec2, source, 0, DryRun=True)
    with refused("InvalidCapacityReservationId.NotFound"):
        lend(ec2, "cr-0123456789abcdef0", 1)


def test_a_repeated_allocation_lends_once(aws: Aws, ec2: Any) -> None:
    source = aws.reserve(ec2, 4)
    for _ in range(2):
        lend(ec2, source, 2, ClientToken="once")
    assert totals(ec2, source) == [2]


def test_instances_end_when_the_reservation_is_no_longer_shared(aws: Aws, ec2: Any) -> None:
    lent = aws.control.reservation(
        InstanceType="m5.large",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-1a",
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
        owner_id=OTHER_ACCOUNT,
        interruptible=True,
    )["CapacityReservationId"]
    inside = into(ec2, lent)
    aws.control.set_reservation(lent, shared_with=[])
    assert states(ec2, inside) == ["terminated"]
    with refused("InvalidCapacityReservationId.NotFound"):
        ec2.run_instances(
            ImageId=LINUX,
            InstanceType="m5.large",
            MinCount=1,
            MaxCount=1,
            CapacityReservationSpecification=to_id(lent),
            InstanceMarketOptions={"MarketType": MARKET},
        )
