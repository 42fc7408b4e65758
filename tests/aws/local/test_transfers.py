"""Splitting and moving capacity, and the end of a Capacity Block."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.aws.local.kit import (
    ONLY,
    OPEN,
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


def counts(ec2: Any, *ids: str) -> list[tuple[int, int]]:
    odcrs = [seen(ec2, reservation_id) for reservation_id in ids]
    return [(entry["TotalInstanceCount"], entry["AvailableInstanceCount"]) for entry in odcrs]


def test_splitting_gives_unused_capacity_a_reservation_of_its_own(aws: Aws, ec2: Any) -> None:
    source = aws.reserve(ec2, 5, Tenancy="dedicated")
    run(
        ec2,
        2,
        specification=to_id(source),
        Placement={"AvailabilityZone": ZONE, "Tenancy": "dedicated"},
    )
    parameters = {
        "SourceCapacityReservationId": source,
        "InstanceCount": 3,
        "ClientToken": "once",
        "TagSpecifications": [
            {"ResourceType": "capacity-reservation", "Tags": [{"Key": "team", "Value": "ml"}]}
        ],
    }
    answer = ec2.create_capacity_reservation_by_splitting(**parameters)
    destination = answer["DestinationCapacityReservation"]
    assert destination["Tags"] == [{"Key": "team", "Value": "ml"}]
    assert (destination["Tenancy"], destination["State"], answer["InstanceCount"]) == (
        "dedicated",
        "active",
        3,
    )
    again = ec2.create_capacity_reservation_by_splitting(**parameters)["DestinationCapacityReservation"]
    assert again["CapacityReservationId"] == destination["CapacityReservationId"]
    assert counts(ec2, source, destination["CapacityReservationId"]) == [(2, 0), (3, 3)]
    with refused("InvalidParameterValue", text="0 instances available"):
        ec2.create_capacity_reservation_by_splitting(SourceCapacityReservationId=source, InstanceCount=1)


def test_moving_unused_capacity_and_all_of_it(aws: Aws, ec2: Any) -> None:
    source, destination = aws.reserve(ec2, 5), aws.reserve(ec2, 1)
    (inside,) = run(ec2, specification=to_id(source))
    move = {"SourceCapacityReservationId": source, "DestinationCapacityReservationId": destination}
    with refused("InvalidParameterValue", text="4 instances available"):
        ec2.move_capacity_reservation_instances(**move, InstanceCount=5)
    ec2.move_capacity_reservation_instances(**move, InstanceCount=3)
    assert counts(ec2, source, destination) == [(2, 1), (4, 4)]
    ec2.terminate_instances(InstanceIds=[inside["InstanceId"]])
    answer = ec2.move_capacity_reservation_instances(**move, InstanceCount=2)
    assert answer["SourceCapacityReservation"]["State"] == "cancelled"
    assert counts(ec2, destination) == [(6, 6)]


@pytest.mark.parametrize(
    "difference",
    [
        {"InstanceType": OTHER_TYPE},
        {"AvailabilityZone": OTHER_ZONE},
        {"Tenancy": "dedicated"},
        {"EndDateType": "limited", "EndDate": WHEN},
    ],
)
def test_only_alike_reservations_exchange_capacity(aws: Aws, ec2: Any, difference: dict[str, Any]) -> None:
    source, destination = aws.reserve(ec2, 2), aws.reserve(ec2, 1, **difference)
    with refused("InvalidParameterCombination", text=source):
        ec2.move_capacity_reservation_instances(
            SourceCapacityReservationId=source,
            DestinationCapacityReservationId=destination,
            InstanceCount=1,
        )
    assert counts(ec2, source, destination) == [(2, 2), (1, 1)]


def test_moved_capacity_absorbs_open_instances(aws: Aws, ec2: Any) -> None:
    source = aws.reserve(ec2, 2)
    destination = aws.reserve(ec2, 1, InstanceMatchCriteria="open")
    launched_instances = run(ec2, 2, specification=OPEN)
    assert places(launched_instances).count(destination) == 1
    ec2.move_capacity_reservation_instances(
        SourceCapacityReservationId=source, DestinationCapacityReservationId=destination, InstanceCount=1
    )
    assert places(instances(ec2, [i["InstanceId"] for i in launched_instances])) == [destination] * 2


@pytest.mark.covers("CUR-11")
def test_moving_takes_free_slots_first_and_then_running_open_instances(aws: Aws, ec2: Any) -> None:
    source, destination = aws.reserve(ec2, 4), aws.reserve(ec2, 1)
    for reservation_id in (source, destination):
        ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, InstanceMatchCriteria="open")
    (named,) = run(ec2, specification=to_id(source))
    run(ec2, specification=to_id(destination))
    inside = run(ec2, 2, specification=OPEN)
    assert places(inside) == [source] * 2
    move = {"SourceCapacityReservationId": source, "DestinationCapacityReservationId": destination}
    with refused("InvalidParameterValue", text="1 instances available"):
        ec2.move_capacity_reservation_instances(**move, InstanceCount=4)  # the named one stays
    ec2.move_capacity_reservation_instances(**move, InstanceCount=2)
    assert counts(ec2, source, destination) == [(2, 0), (3, 1)]
    assert {*places(instances(ec2, [i["InstanceId"] for i in inside]))} == {source, destination}
    assert places(instances(ec2, [named["InstanceId"]])) == [source]


@pytest.mark.covers("CUR-11")
def test_a_source_that_gives_its_running_instances_away_is_cancelled(aws: Aws, ec2: Any) -> None:
    source = aws.reserve(ec2, 2, InstanceMatchCriteria="open")
    inside = run(ec2, 2, specification=OPEN)
    destination = aws.reserve(ec2, 1, InstanceMatchCriteria="open")
    ec2.move_capacity_reservation_instances(
        SourceCapacityReservationId=source, DestinationCapacityReservationId=destination, InstanceCount=2
    )
    assert seen(ec2, source)["State"] == "cancelled"
    assert counts(ec2, destination) == [(3, 1)]
    assert places(instances(ec2, [i["InstanceId"] for i in inside])) == [destination] * 2


@pytest.mark.covers("CUR-11")
@pytest.mark.parametrize("difference", ["targeted", "shared"])
def test_used_capacity_moves_only_between_open_reservations_that_are_shared_alike(
    aws: Aws, ec2: Any, difference: str
) -> None:
    source = aws.reserve(ec2, 1, InstanceMatchCriteria="open")
    run(ec2, specification=OPEN)
    criteria = "targeted" if difference == "targeted" else "open"
    destination = aws.reserve(ec2, 1, InstanceMatchCriteria=criteria)
    if difference == "shared":
        aws.control.set_reservation(destination, shared_with=[OTHER_ACCOUNT])
    with refused("InvalidParameterValue", text="0 instances available"):
        ec2.move_capacity_reservation_instances(
            SourceCapacityReservationId=source, DestinationCapacityReservationId=destination, InstanceCount=1
        )
    assert counts(ec2, source, destination) == [(1, 0), (1, 1)]


@pytest.mark.covers("CUR-11")
def test_splitting_takes_running_open_instances_along(aws: Aws, ec2: Any) -> None:
    source = aws.reserve(ec2, 3, InstanceMatchCriteria="open")
    inside = run(ec2, 2, specification=OPEN)
    answer = ec2.create_capacity_reservation_by_splitting(SourceCapacityReservationId=source, InstanceCount=2)
    destination = answer["DestinationCapacityReservation"]["CapacityReservationId"]
    assert counts(ec2, source, destination) == [(1, 0), (2, 1)]
    assert {*places(instances(ec2, [i["InstanceId"] for i in inside]))} == {source, destination}


def test_a_pool_neither_gains_nor_loses(aws: Aws, ec2: Any) -> None:
    source = aws.reserve(ec2, 4)
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=1)
    ec2.create_capacity_reservation_by_splitting(SourceCapacityReservationId=source, InstanceCount=2)
    assert [entry["free"] for entry in aws.control.pools()] == [1]


def test_a_capacity_block_ends_its_instances_half_an_hour_before_its_end(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    block = aws.control.reservation(
        reservation_type="capacity-block",
        InstanceType=TYPE,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=ZONE,
        InstanceCount=2,
        InstanceMatchCriteria="targeted",
        StartDate=(WHEN + timedelta(hours=1)).isoformat(),
        EndDate=(WHEN + timedelta(hours=25)).isoformat(),
        EndDateType="limited",
    )["CapacityReservationId"]
    assert seen(ec2, block)["State"] == "scheduled"
    aws.control.advance(3600)
    (inside,) = run(
        ec2,
        specification=to_id(block, **ONLY),
        InstanceMarketOptions={"MarketType": "capacity-block"},
    )
    aws.control.advance(23.5 * 3600 - 1)
    assert instances(ec2, [inside["InstanceId"]])[0]["State"]["Name"] == "running"
    aws.control.advance(1)
    assert instances(ec2, [inside["InstanceId"]])[0]["State"]["Name"] == "terminated"
    assert (seen(ec2, block)["State"], free(ec2, block)) == ("active", 2)
    aws.control.advance(1800)
    assert seen(ec2, block)["State"] == "expired"
