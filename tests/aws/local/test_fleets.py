"""CreateFleet of type instant: its pools, its listed errors, all or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.aws.local.kit import (
    NONE,
    ONLY,
    OPEN,
    OTHER_TYPE,
    OTHER_ZONE,
    TYPE,
    ZONE,
    Aws,
    codes,
    fleet,
    free,
    instances,
    launched,
    places,
    pool,
    refused,
    template,
    to_group,
    to_id,
)

HERE = {"InstanceType": TYPE, "AvailabilityZone": ZONE}
THERE = {"InstanceType": TYPE, "AvailabilityZone": OTHER_ZONE}
OTHER = {"InstanceType": OTHER_TYPE, "AvailabilityZone": ZONE}
FIRST = {"CapacityReservationOptions": {"UsageStrategy": "use-capacity-reservations-first"}}


def reserved(ec2: Any, reservation_id: str) -> str:
    return template(ec2, CapacityReservationSpecification=to_id(reservation_id, **ONLY))


def test_one_answer_entry_a_pool_names_its_instances(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 3)
    template_id = reserved(ec2, reservation_id)
    answer = fleet(ec2, pool(template_id, HERE), total=3)
    (entry,) = answer["Instances"]
    assert answer["Errors"] == []
    assert entry["LaunchTemplateAndOverrides"] == {
        "LaunchTemplateSpecification": {"LaunchTemplateId": template_id, "Version": "1"},
        "Overrides": HERE,
    }
    assert (entry["Lifecycle"], entry["InstanceType"]) == ("on-demand", TYPE)
    assert (entry["AvailabilityZone"], entry["AvailabilityZoneId"]) == (ZONE, "use1-az6")
    assert len(entry["InstanceIds"]) == 3
    launched_instances = instances(ec2, entry["InstanceIds"])
    assert places(launched_instances) == [reservation_id] * 3
    assert {instance["SubnetId"] for instance in launched_instances} == {entry["SubnetId"]}
    assert free(ec2, reservation_id) == 0


def test_missing_instances_are_an_error_of_the_pool_and_the_call_succeeds(aws: Aws, ec2: Any) -> None:
    full, template_id = aws.reserve(ec2), template(ec2)
    first = reserved(ec2, full)
    answer = fleet(ec2, pool(first, HERE), total=3)
    assert len(launched(answer)) == 1
    (error,) = answer["Errors"]
    assert error["ErrorCode"] == "ReservationCapacityExceeded"
    assert full in error["ErrorMessage"]
    assert error["Lifecycle"] == "on-demand"
    assert error["LaunchTemplateAndOverrides"]["LaunchTemplateSpecification"]["LaunchTemplateId"] == first
    assert error["LaunchTemplateAndOverrides"]["Overrides"] == HERE
    nothing = fleet(ec2, pool(first, HERE))
    assert (nothing["Instances"], codes(nothing)) == ([], ["ReservationCapacityExceeded"])
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=0)
    dry = fleet(ec2, pool(template_id, HERE))
    assert (dry["Instances"], codes(dry)) == ([], ["InsufficientInstanceCapacity"])


@pytest.mark.parametrize(
    ("specification", "inside"),
    [({}, True), (OPEN, True), (NONE, False), (ONLY, True)],
)
def test_open_and_none(aws: Aws, ec2: Any, specification: dict[str, Any], inside: bool) -> None:
    reservation_id = aws.reserve(ec2, InstanceMatchCriteria="open")
    data = {"CapacityReservationSpecification": specification} if specification else {}
    answer = fleet(ec2, pool(template(ec2, **data)))
    assert places(instances(ec2, launched(answer))) == [reservation_id if inside else None]


def test_a_group_spills_to_on_demand_unless_it_is_only_reservations(aws: Aws, ec2: Any) -> None:
    arn = aws.group("pool", aws.reserve(ec2))
    spilling = template(ec2, CapacityReservationSpecification=to_group(arn))
    strict = template(ec2, CapacityReservationSpecification=to_group(arn, **ONLY))
    placements = places(instances(ec2, launched(fleet(ec2, pool(spilling), total=2))))
    assert sorted(place is None for place in placements) == [False, True]
    assert codes(fleet(ec2, pool(strict))) == ["ReservationCapacityExceeded"]


def test_full_reservations_are_passed_over_for_the_next_pool(aws: Aws, ec2: Any) -> None:
    full, room = aws.reserve(ec2), aws.reserve(ec2, AvailabilityZone=OTHER_ZONE)
    fleet(ec2, pool(reserved(ec2, full), HERE))
    answer = fleet(ec2, pool(reserved(ec2, full), HERE), pool(reserved(ec2, room), THERE))
    assert places(instances(ec2, launched(answer))) == [room]
    assert codes(answer) == ["ReservationCapacityExceeded"]


def test_duplicate_pools_are_refused_whole(aws: Aws, ec2: Any) -> None:
    first, second = (reserved(ec2, aws.reserve(ec2)) for _ in range(2))
    with refused("InvalidFleetConfig", text="The fleet configuration contains duplicate instance pools."):
        fleet(ec2, pool(first, HERE), pool(second, HERE))
    (subnet,) = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [ZONE]}])["Subnets"]
    with refused("InvalidFleetConfig"):  # the same pool in another notation
        fleet(ec2, pool(first, HERE, {"InstanceType": TYPE, "SubnetId": subnet["SubnetId"]}))
    assert ec2.describe_instances()["Reservations"] == []


def test_priorities_and_prices_order_the_pools(aws: Aws, ec2: Any) -> None:
    template_id = template(ec2, CapacityReservationSpecification=NONE)
    overrides: list[dict[str, Any]] = [
        {**HERE, "Priority": 5},
        {**OTHER, "Priority": 1},
        {**THERE, "InstanceType": "m5.xlarge"},
    ]

    def order(**options: Any) -> list[str]:
        for override in overrides:
            aws.control.pool(
                instance_type=override["InstanceType"], zone=override["AvailabilityZone"], size=1
            )
        answer = fleet(ec2, pool(template_id, *overrides), total=3, **options)
        ec2.terminate_instances(InstanceIds=launched(answer))
        return [entry["InstanceType"] for entry in answer["Instances"]]

    prioritized = {"OnDemandOptions": {"AllocationStrategy": "prioritized"}}
    assert order(**prioritized) == [OTHER_TYPE, TYPE, "m5.xlarge"]  # without a priority: last
    assert order() == [OTHER_TYPE, TYPE, "m5.xlarge"]
    overrides[0]["Priority"], overrides[2]["Priority"] = 0, 0.5
    assert order(**prioritized) == [TYPE, "m5.xlarge", OTHER_TYPE]
    assert order() == [OTHER_TYPE, TYPE, "m5.xlarge"]


def test_reservations_first_takes_every_pools_reservations_before_on_demand(aws: Aws, ec2: Any) -> None:
    dear = aws.reserve(ec2, 2, InstanceType="m5.4xlarge", InstanceMatchCriteria="open")
    template_id = template(ec2)
    pools = pool(template_id, HERE, {"InstanceType": "m5.4xlarge", "AvailabilityZone": ZONE})
    answer = fleet(ec2, pools, total=3, OnDemandOptions={**FIRST, "AllocationStrategy": "lowest-price"})
    launched_instances = instances(ec2, launched(answer))
    inside = [i["InstanceType"] for i in launched_instances if i.get("CapacityReservationId") == dear]
    outside = [i["InstanceType"] for i in launched_instances if "CapacityReservationId" not in i]
    assert (inside, outside) == (["m5.4xlarge"] * 2, [TYPE])
    assert free(ec2, dear) == 0
    assert answer["Errors"] == []
    without = fleet(ec2, pools, total=1)
    assert without["Instances"][0]["InstanceType"] == TYPE


def test_reservations_first_leaves_targeted_ones_alone(aws: Aws, ec2: Any) -> None:
    targeted = aws.reserve(ec2)
    by_id = fleet(ec2, pool(reserved(ec2, targeted)), OnDemandOptions=FIRST)
    assert (by_id["Instances"], codes(by_id)) == ([], ["InvalidFleetConfig"])
    plain = fleet(ec2, pool(template(ec2)), OnDemandOptions=FIRST)
    assert places(instances(ec2, launched(plain))) == [None]
    arn = aws.group("pool", targeted)
    by_group = fleet(
        ec2,
        pool(template(ec2, CapacityReservationSpecification=to_group(arn))),
        total=2,
        OnDemandOptions=FIRST,
    )
    placements = places(instances(ec2, launched(by_group)))
    assert sorted(place or "" for place in placements) == ["", targeted]
    assert len(by_group["Instances"]) == 1  # one pool, one entry


def test_below_its_minimum_a_fleet_launches_nothing(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 3)
    template_id = reserved(ec2, reservation_id)
    options = {"MinTargetCapacity": 4, "SingleInstanceType": True}
    answer = fleet(ec2, pool(template_id), total=4, OnDemandOptions=options)
    assert (answer["Instances"], codes(answer)) == ([], ["ReservationCapacityExceeded"])
    assert ec2.describe_instances()["Reservations"] == []
    assert free(ec2, reservation_id) == 3
    enough = fleet(ec2, pool(template_id), total=4, OnDemandOptions={**options, "MinTargetCapacity": 3})
    assert len(launched(enough)) == 3
    with refused("InvalidParameterCombination", text="SingleAvailabilityZone"):
        fleet(ec2, pool(template_id), OnDemandOptions={"MinTargetCapacity": 1})


def test_a_fleet_in_a_single_zone_takes_the_zone_that_holds_it(aws: Aws, ec2: Any) -> None:
    template_id = template(ec2)
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=2)
    single = {"SingleAvailabilityZone": True, "MinTargetCapacity": 4}
    answer = fleet(ec2, pool(template_id, HERE, THERE, OTHER), total=5, OnDemandOptions=single)
    launched_instances = instances(ec2, launched(answer))
    assert {instance["Placement"]["AvailabilityZone"] for instance in launched_instances} == {ZONE}
    assert sorted(instance["InstanceType"] for instance in launched_instances).count(OTHER_TYPE) >= 3
    aws.control.pool(instance_type=OTHER_TYPE, zone=ZONE, size=0)
    elsewhere = fleet(ec2, pool(template_id, HERE, THERE, OTHER), total=4, OnDemandOptions=single)
    zones = {i["Placement"]["AvailabilityZone"] for i in instances(ec2, launched(elsewhere))}
    assert zones == {OTHER_ZONE}


@pytest.mark.parametrize(
    ("kind", "market", "target_type", "options"),
    [
        ({"reservation_type": "capacity-block"}, "capacity-block", "capacity-block", {}),
        (
            {"interruptible": True},
            "interruptible-capacity-reservation",
            "reserved-capacity",
            {"ReservedCapacityOptions": {"ReservationTypes": ["interruptible-capacity-reservation"]}},
        ),
    ],
)
def test_blocks_and_interruptible_reservations(
    aws: Aws, ec2: Any, kind: dict[str, Any], market: str, target_type: str, options: dict[str, Any]
) -> None:
    reservation_id = aws.control.reservation(
        InstanceType=TYPE,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=ZONE,
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
        **kind,
    )["CapacityReservationId"]
    template_id = template(
        ec2,
        CapacityReservationSpecification=to_id(reservation_id, **ONLY),
        InstanceMarketOptions={"MarketType": market},
    )
    answer = fleet(ec2, pool(template_id), kind=target_type, total=2, **options)
    assert [entry["Lifecycle"] for entry in answer["Instances"]] == [market]
    (instance,) = instances(ec2, launched(answer))
    assert (instance["CapacityReservationId"], instance["InstanceLifecycle"]) == (reservation_id, market)
    assert codes(answer) == ["ReservationCapacityExceeded"]
    assert answer["Errors"][0]["Lifecycle"] == market


def test_reserved_capacity_falls_back_to_on_demand_only_on_request(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2)
    target = {"CapacityReservationTarget": {"CapacityReservationIds": [reservation_id]}}
    kinds = {"ReservationTypes": ["on-demand-capacity-reservation"], **target}
    template_id = template(ec2)

    def reserved_fleet(**more: Any) -> Any:
        return fleet(
            ec2,
            pool(template_id),
            total=2,
            kind="reserved-capacity",
            ReservedCapacityOptions={**kinds, **more},
        )

    without = reserved_fleet()
    assert places(instances(ec2, launched(without))) == [reservation_id]
    assert codes(without) == ["ReservationCapacityExceeded"]
    with_fallback = reserved_fleet(ReservedCapacityFallbackOptions={"MarketTypes": ["on-demand"]})
    assert places(instances(ec2, launched(with_fallback))) == [None, None]


def test_spot_fleets_have_pools_of_their_own(aws: Aws, ec2: Any) -> None:
    aws.reserve(ec2, InstanceMatchCriteria="open")
    aws.control.pool(capacity_type="spot", instance_type=TYPE, zone=ZONE, size=1)
    answer = fleet(ec2, pool(template(ec2)), total=2, kind="spot")
    (instance,) = instances(ec2, launched(answer))
    assert instance["InstanceLifecycle"] == "spot"
    assert "CapacityReservationId" not in instance
    assert answer["Instances"][0]["Lifecycle"] == "spot"
    assert [(error["ErrorCode"], error["Lifecycle"]) for error in answer["Errors"]] == [
        ("InsufficientInstanceCapacity", "spot")
    ]


def test_a_broken_pool_is_its_own_error_and_the_others_launch(aws: Aws, ec2: Any) -> None:
    good = template(ec2)
    bad = template(ec2, SecurityGroupIds=["sg-00000000000000000"])
    no_profile = template(ec2, IamInstanceProfile={"Name": "nobody"})
    unknown = reserved(ec2, "cr-12345678901234567")
    answer = fleet(
        ec2,
        pool(bad, HERE),
        pool(unknown, THERE),
        pool(no_profile, OTHER),
        pool(good, {"InstanceType": "t3.micro", "SubnetId": "subnet-00000000"}),
        pool(good, {"InstanceType": "m5.xlarge", "AvailabilityZone": ZONE}),
        OnDemandOptions={"AllocationStrategy": "prioritized"},
    )
    assert [entry["InstanceType"] for entry in answer["Instances"]] == ["m5.xlarge"]
    assert sorted(codes(answer)) == [
        "InvalidCapacityReservationId.NotFound",
        "InvalidGroup.NotFound",
        "InvalidParameterValue",
        "InvalidSubnetID.NotFound",
    ]


def test_invalid_fleets_are_refused_whole(aws: Aws, ec2: Any) -> None:
    with refused("InvalidLaunchTemplateId.NotFound"):
        fleet(ec2, pool("lt-00000000000000000"))
    with refused("InvalidLaunchTemplateName.NotFoundException"):
        fleet(
            ec2,
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": "none", "Version": "1"},
                "Overrides": [HERE],
            },
        )
    gone = template(ec2)
    config = pool(gone)
    config["LaunchTemplateSpecification"]["Version"] = "7"
    with refused("InvalidLaunchTemplateId.VersionNotFound"):
        fleet(ec2, config)
    with refused("InvalidParameterValue", text="DefaultTargetCapacityType"):
        fleet(ec2, pool(gone), kind="free")
    many = [{**HERE, "Priority": float(number)} for number in range(301)]
    with refused("InvalidFleetConfig", text="301 launch template overrides"):
        fleet(ec2, pool(gone, *many))
    with refused("DryRunOperation", status=412):
        fleet(ec2, pool(gone), DryRun=True)
    assert ec2.describe_instances()["Reservations"] == []


def test_weights_count_towards_the_target(aws: Aws, ec2: Any) -> None:
    weighted = {**HERE, "WeightedCapacity": 4}
    assert len(launched(fleet(ec2, pool(template(ec2), weighted), total=10))) == 3


def test_a_fleet_can_be_described_and_deleted_with_its_instances(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 2)
    answer = fleet(ec2, pool(reserved(ec2, reservation_id)), total=3)
    (shown,) = ec2.describe_fleets(FleetIds=[answer["FleetId"]])["Fleets"]
    assert [entry["InstanceIds"] for entry in shown["Instances"]] == [launched(answer)]
    assert [error["ErrorCode"] for error in shown["Errors"]] == ["ReservationCapacityExceeded"]
    assert shown["FulfilledCapacity"] == 2
    active = ec2.describe_fleet_instances(FleetId=answer["FleetId"])["ActiveInstances"]
    assert {entry["InstanceId"] for entry in active} == set(launched(answer))
    ec2.delete_fleets(FleetIds=[answer["FleetId"]], TerminateInstances=True)
    assert free(ec2, reservation_id) == 2
