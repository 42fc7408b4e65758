"""CreateFleet with ReservedCapacityOptions: kinds in order, targets, and On-Demand only on request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.aws.local.kit import (
    LINUX,
    OTHER_TYPE,
    OTHER_ZONE,
    TYPE,
    ZONE,
    Aws,
    codes,
    fleet,
    instances,
    launched,
    places,
    pool,
    refused,
    template,
)

ODCR, BLOCK, SPARE = "on-demand-capacity-reservation", "capacity-block", "interruptible-capacity-reservation"


def special(aws: Aws, **more: Any) -> str:
    odcr = aws.control.reservation(
        **{
            "InstanceType": TYPE,
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": ZONE,
            "InstanceCount": 1,
            "InstanceMatchCriteria": "targeted",
            **more,
        }
    )
    return str(odcr["CapacityReservationId"])


def reserved_fleet(
    ec2: Any, template_id: str, total: int = 1, overrides: tuple[Any, ...] = (), **options: Any
) -> Any:
    return fleet(
        ec2,
        pool(template_id, *overrides),
        total=total,
        kind="reserved-capacity",
        ReservedCapacityOptions=options,
    )


def where(ec2: Any, answer: Any) -> list[str | None]:
    ids = launched(answer)
    return places(instances(ec2, ids)) if ids else []


def test_kinds_are_used_in_the_order_that_they_are_named(aws: Aws, ec2: Any) -> None:
    plain, spare = aws.reserve(ec2), special(aws, interruptible=True)
    block = special(aws, reservation_type="capacity-block")
    answer = reserved_fleet(
        ec2,
        template(ec2),
        3,
        ReservationTypes=[SPARE, ODCR, BLOCK],
        CapacityReservationTarget={"CapacityReservationIds": [plain, block, spare]},
    )
    assert where(ec2, answer) == [spare, plain, block]
    assert [entry["Lifecycle"] for entry in answer["Instances"]] == [SPARE, "on-demand", BLOCK]
    assert answer["Errors"] == []


def test_full_reservation_is_an_error_of_the_pool_and_nothing_runs_on_demand(aws: Aws, ec2: Any) -> None:
    plain = aws.reserve(ec2)
    options: dict[str, Any] = {
        "ReservationTypes": [ODCR],
        "CapacityReservationTarget": {"CapacityReservationIds": [plain]},
    }
    answer = reserved_fleet(ec2, template(ec2), 2, **options)
    assert where(ec2, answer) == [plain]
    (error,) = answer["Errors"]
    assert (error["ErrorCode"], error["Lifecycle"]) == ("ReservationCapacityExceeded", ODCR)
    with_fallback = reserved_fleet(
        ec2, template(ec2), 2, **options, ReservedCapacityFallbackOptions={"MarketTypes": ["on-demand"]}
    )
    assert where(ec2, with_fallback) == [None, None]
    assert with_fallback["Errors"] == []


def test_the_reservations_of_a_group_and_open_ones_without_a_target(aws: Aws, ec2: Any) -> None:
    members = [aws.reserve(ec2), aws.reserve(ec2, InstanceType=OTHER_TYPE)]
    arn = aws.group("pool", *members)
    overrides = tuple({"InstanceType": kind, "AvailabilityZone": ZONE} for kind in (TYPE, OTHER_TYPE))
    answer = reserved_fleet(
        ec2,
        template(ec2),
        2,
        overrides,
        ReservationTypes=[ODCR],
        CapacityReservationTarget={"CapacityReservationResourceGroupArns": [arn]},
    )
    assert sorted(filter(None, where(ec2, answer))) == sorted(members)
    opened = aws.reserve(ec2, InstanceMatchCriteria="open")
    assert where(ec2, reserved_fleet(ec2, template(ec2))) == [opened]
    assert codes(reserved_fleet(ec2, template(ec2))) == ["ReservationCapacityExceeded"]


def test_priorities_count_when_the_strategy_is_prioritized(aws: Aws, ec2: Any) -> None:
    first = aws.reserve(ec2, InstanceMatchCriteria="open")
    second = aws.reserve(ec2, InstanceMatchCriteria="open", AvailabilityZone=OTHER_ZONE)
    overrides = (
        {"InstanceType": TYPE, "AvailabilityZone": ZONE, "Priority": 2.0},
        {"InstanceType": TYPE, "AvailabilityZone": OTHER_ZONE, "Priority": 1.0},
    )
    answer = reserved_fleet(
        ec2, template(ec2), 2, overrides, AllocationStrategy="prioritized", ReservationTypes=[ODCR]
    )
    assert where(ec2, answer) == [second, first]


def test_an_id_that_is_not_there_is_named(aws: Aws, ec2: Any) -> None:
    target = {"CapacityReservationIds": ["cr-0123456789abcdef0"]}
    answer = reserved_fleet(ec2, template(ec2), ReservationTypes=[ODCR], CapacityReservationTarget=target)
    assert codes(answer) == ["InvalidCapacityReservationId.NotFound"]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"AllocationStrategy": "lowest-price"}, "InvalidParameterValue", "prioritized"),
        ({"ReservationTypes": ["spot"]}, "InvalidParameterValue", "capacity-block"),
        (
            {"ReservedCapacityFallbackOptions": {"MarketTypes": ["spot"]}},
            "InvalidParameterValue",
            "on-demand",
        ),
        (
            {
                "CapacityReservationTarget": {
                    "CapacityReservationIds": ["cr-0123456789abcdef0"],
                    "CapacityReservationResourceGroupArns": ["arn:aws:resource-groups:x"],
                }
            },
            "InvalidParameterCombination",
            "not both",
        ),
    ],
)
def test_options_that_are_refused(ec2: Any, options: dict[str, Any], code: str, text: str) -> None:
    with refused(code, text=text):
        reserved_fleet(ec2, template(ec2), **options)


def test_the_options_are_for_instant_fleets_of_reserved_capacity(ec2: Any) -> None:
    options = {"ReservationTypes": [ODCR]}
    with refused("InvalidParameterCombination", text="reserved-capacity"):
        fleet(ec2, pool(template(ec2)), ReservedCapacityOptions=options)
    with refused("InvalidParameterCombination", text="instant"):
        ec2.create_fleet(
            Type="request",
            LaunchTemplateConfigs=[pool(template(ec2, ImageId=LINUX))],
            TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"},
            ReservedCapacityOptions=options,
        )
