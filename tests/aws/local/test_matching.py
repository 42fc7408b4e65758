"""Where RunInstances puts an instance: every line of EC2's rules on preference, target and room."""

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
    WINDOWS,
    ZONE,
    Aws,
    free,
    instances,
    places,
    refused,
    run,
    seen,
    template,
    to_group,
    to_id,
)


@pytest.mark.parametrize(
    ("specification", "criteria", "inside"),
    [
        (None, "open", True),
        (None, "targeted", False),
        (OPEN, "open", True),
        (OPEN, "targeted", False),
        (NONE, "open", False),
        (ONLY, "open", True),
    ],
)
def test_without_a_target(
    aws: Aws, ec2: Any, specification: dict[str, Any] | None, criteria: str, inside: bool
) -> None:
    reservation_id = aws.reserve(ec2, InstanceMatchCriteria=criteria)
    assert places(run(ec2, specification=specification)) == [reservation_id if inside else None]
    assert free(ec2, reservation_id) == (0 if inside else 1)


@pytest.mark.parametrize("criteria", ["open", "targeted"])
@pytest.mark.parametrize("preference", [{}, ONLY])
def test_an_id_reaches_its_reservation_and_fails_when_it_is_full(
    aws: Aws, ec2: Any, criteria: str, preference: dict[str, str]
) -> None:
    reservation_id = aws.reserve(ec2, InstanceMatchCriteria=criteria)
    specification = to_id(reservation_id, **preference)
    (inside,) = run(ec2, specification=specification)
    assert inside["CapacityReservationId"] == reservation_id
    assert inside["CapacityReservationSpecification"] == specification
    with refused("ReservationCapacityExceeded", text=reservation_id):
        run(ec2, specification=specification)
    assert len(ec2.describe_instances()["Reservations"]) == 1


def test_a_group_spills_to_on_demand_unless_it_is_only_reservations(aws: Aws, ec2: Any) -> None:
    members = [aws.reserve(ec2), aws.reserve(ec2)]
    arn = aws.group("pool", *members)
    assert sorted(filter(None, places(run(ec2, 3, specification=to_group(arn))))) == sorted(members)
    assert places(run(ec2, specification=to_group(arn))) == [None]
    with refused("ReservationCapacityExceeded", text="pool"):
        run(ec2, specification=to_group(arn, **ONLY))


def test_only_reservations_without_a_target_never_runs_on_demand(aws: Aws, ec2: Any) -> None:
    aws.reserve(ec2, InstanceMatchCriteria="targeted")
    with refused("ReservationCapacityExceeded"):
        run(ec2, specification=ONLY)


@pytest.mark.parametrize("preference", [OPEN, NONE])
def test_a_target_with_open_or_none_is_refused(aws: Aws, ec2: Any, preference: dict[str, str]) -> None:
    specification = to_id(aws.reserve(ec2), **preference)
    with refused("InvalidParameterCombination", text="CapacityReservationPreference"):
        run(ec2, specification=specification)
    with refused("InvalidParameterCombination", text="CapacityReservationPreference"):
        template(ec2, CapacityReservationSpecification=specification)


def test_invalid_targets_are_refused(aws: Aws, ec2: Any) -> None:
    both = {
        "CapacityReservationTarget": {
            "CapacityReservationId": aws.reserve(ec2),
            "CapacityReservationResourceGroupArn": aws.group("pool"),
        }
    }
    with refused("InvalidParameterCombination", text="not both"):
        run(ec2, specification=both)
    with refused("InvalidCapacityReservationId.Malformed", text="cr-x"):
        run(ec2, specification=to_id("cr-x"))
    with refused("InvalidCapacityReservationId.NotFound", text="cr-12345678901234567"):
        run(ec2, specification=to_id("cr-12345678901234567"))
    with refused("InvalidParameterValue", text="no-such-group"):
        run(ec2, specification=to_group("arn:aws:resource-groups:us-east-1:123456789012:group/no-such-group"))
    with refused("InvalidParameterValue", text="always"):
        run(ec2, specification={"CapacityReservationPreference": "always"})


@pytest.mark.parametrize(
    "difference",
    [
        {"InstanceType": OTHER_TYPE},
        {"Placement": {"AvailabilityZone": OTHER_ZONE}},
        {"Placement": {"AvailabilityZone": ZONE, "Tenancy": "dedicated"}},
        {"Placement": {"AvailabilityZone": ZONE, "GroupName": "together"}},
        {"ImageId": WINDOWS},
    ],
)
def test_different_launch_does_not_run_in_the_reservation(
    aws: Aws, ec2: Any, difference: dict[str, Any]
) -> None:
    ec2.create_placement_group(GroupName="together")
    reservation_id = aws.reserve(ec2, InstanceMatchCriteria="open")
    assert places(run(ec2, **difference)) == [None]
    with refused("ReservationCapacityExceeded", text="compatible"):
        run(ec2, specification=to_id(reservation_id), **difference)
    assert free(ec2, reservation_id) == 1


def test_a_windows_image_runs_in_a_windows_reservation(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, InstanceMatchCriteria="open", InstancePlatform="Windows")
    (inside,) = run(ec2, ImageId=WINDOWS)
    assert inside["CapacityReservationId"] == reservation_id
    assert inside["PlatformDetails"] == "Windows"
    (image,) = ec2.describe_images(ImageIds=[WINDOWS])["Images"]
    assert image["PlatformDetails"] == "Windows"


def test_a_placement_groups_reservation_is_reached_from_that_group(aws: Aws, ec2: Any) -> None:
    arn = ec2.create_placement_group(GroupName="together")["PlacementGroup"]["GroupArn"]
    inside_group = aws.reserve(ec2, InstanceMatchCriteria="open", PlacementGroupArn=arn)
    outside = aws.reserve(ec2)
    assert places(run(ec2)) == [None]
    placement = {"AvailabilityZone": ZONE, "GroupName": "together"}
    (instance,) = run(ec2, Placement=placement)
    assert instance["CapacityReservationId"] == inside_group
    assert instance["Placement"]["GroupName"] == "together"
    ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    # from a group of reservations, those outside any placement group come first
    pool = aws.group("pool", inside_group, outside)
    assert places(run(ec2, 2, specification=to_group(pool, **ONLY))) == [outside, inside_group]


def test_more_than_fits_goes_on_demand_and_counts_are_honoured(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 2, InstanceMatchCriteria="open")
    launched_instances = run(ec2, 3)
    assert sorted(place or "" for place in places(launched_instances)) == ["", reservation_id, reservation_id]


def test_min_and_max_count(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 3)
    specification = to_id(reservation_id)
    assert len(run(ec2, specification=specification, MinCount=1, MaxCount=2)) == 2
    assert len(run(ec2, specification=specification, MinCount=1, MaxCount=5)) == 1
    with refused("ReservationCapacityExceeded"):
        run(ec2, specification=specification, MinCount=1, MaxCount=5)
    with refused("InvalidParameterValue", text="MaxCount"):
        run(ec2, MinCount=2, MaxCount=1)


def test_too_few_places_launch_nothing(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 3)
    with refused("ReservationCapacityExceeded"):
        run(ec2, 4, specification=to_id(reservation_id))
    assert free(ec2, reservation_id) == 3
    assert ec2.describe_instances()["Reservations"] == []


@pytest.mark.parametrize(
    ("kind", "market"),
    [
        ({"reservation_type": "capacity-block"}, "capacity-block"),
        ({"interruptible": True}, "interruptible-capacity-reservation"),
    ],
)
def test_blocks_and_interruptible_reservations_need_their_market_type(
    aws: Aws, ec2: Any, kind: dict[str, Any], market: str
) -> None:
    reservation_id = aws.control.reservation(
        InstanceType=TYPE,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=ZONE,
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
        **kind,
    )["CapacityReservationId"]
    shown = seen(ec2, reservation_id)
    assert shown["ReservationType"] == kind.get("reservation_type", "default")
    assert shown.get("Interruptible", False) is kind.get("interruptible", False)
    with refused("InvalidParameterValue", text=market):
        run(ec2, specification=to_id(reservation_id))
    with refused("InvalidParameterCombination", text=market):
        run(ec2, InstanceMarketOptions={"MarketType": market})
    (inside,) = run(ec2, specification=to_id(reservation_id), InstanceMarketOptions={"MarketType": market})
    assert (inside["CapacityReservationId"], inside["InstanceLifecycle"]) == (reservation_id, market)
    with refused("ReservationCapacityExceeded"):
        run(ec2, specification=to_id(reservation_id), InstanceMarketOptions={"MarketType": market})
    arn = aws.group("blocks", reservation_id)
    with refused("ReservationCapacityExceeded"):
        run(ec2, specification=to_group(arn), InstanceMarketOptions={"MarketType": market})


def test_a_block_that_has_not_started_and_one_being_reclaimed(aws: Aws, ec2: Any) -> None:
    body = {
        "InstanceType": TYPE,
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": ZONE,
        "InstanceCount": 1,
        "InstanceMatchCriteria": "targeted",
    }
    block = aws.control.reservation(reservation_type="capacity-block", state="scheduled", **body)
    with refused("InvalidCapacityReservationState.PendingActivation"):
        run(
            ec2,
            specification=to_id(block["CapacityReservationId"]),
            InstanceMarketOptions={"MarketType": "capacity-block"},
        )
    spare = aws.control.reservation(interruptible=True, **body)["CapacityReservationId"]
    aws.control.set_reservation(spare, state="unavailable")
    with refused("InvalidCapacityReservationState.Unavailable"):
        run(
            ec2,
            specification=to_id(spare),
            InstanceMarketOptions={"MarketType": "interruptible-capacity-reservation"},
        )
    with refused("OperationNotPermitted", text="Capacity Block"):
        ec2.cancel_capacity_reservation(CapacityReservationId=block["CapacityReservationId"])


def test_spot_is_never_reserved(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, InstanceMatchCriteria="open")
    (instance,) = run(ec2, InstanceMarketOptions={"MarketType": "spot"})
    assert instance["InstanceLifecycle"] == "spot"
    assert "CapacityReservationId" not in instance
    assert free(ec2, reservation_id) == 1


@pytest.mark.parametrize(
    ("situation", "code"),
    [
        ("group-only-exhausted", "InsufficientInstanceCapacity"),
        ("open-only-exhausted", "InsufficientInstanceCapacity"),
        ("target-with-preference", "InvalidParameterValue"),
        ("id-target-mismatch", "InvalidParameterValue"),
        ("id-target-not-usable", "IncorrectState"),
    ],
)
def test_codes_that_aws_does_not_document_can_be_chosen(
    aws: Aws, ec2: Any, situation: str, code: str
) -> None:
    aws.control.code(situation, code)
    reservation_id = aws.reserve(ec2)
    launches: dict[str, dict[str, Any]] = {
        "group-only-exhausted": {"specification": to_group(aws.group("empty"), **ONLY)},
        "open-only-exhausted": {"specification": ONLY},
        "target-with-preference": {"specification": to_id(reservation_id, **OPEN)},
        "id-target-mismatch": {"specification": to_id(reservation_id), "InstanceType": OTHER_TYPE},
        "id-target-not-usable": {"specification": to_id(reservation_id)},
    }
    if situation == "id-target-not-usable":
        ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    with refused(code, status=500 if code == "InsufficientInstanceCapacity" else 400):
        run(ec2, **launches[situation])


# ---- instances that are there already


def test_new_open_reservation_absorbs_open_instances(aws: Aws, ec2: Any) -> None:
    (plain,) = run(ec2)
    (open_instance,) = run(ec2, specification=OPEN)
    (never,) = run(ec2, specification=NONE)
    reservation_id = aws.reserve(ec2, 2, InstanceMatchCriteria="open")
    placements = {
        i["InstanceId"]: place
        for i in (plain, open_instance, never)
        for place in places(instances(ec2, [i["InstanceId"]]))
    }
    assert placements == {
        plain["InstanceId"]: reservation_id,
        open_instance["InstanceId"]: reservation_id,
        never["InstanceId"]: None,
    }


def test_a_reservation_that_joins_a_group_takes_in_the_groups_instances(aws: Aws, ec2: Any) -> None:
    arn = aws.group("pool")
    (waiting,) = run(ec2, specification=to_group(arn))
    assert places([waiting]) == [None]
    reservation_id = aws.reserve(ec2)
    aws.client("resource-groups").group_resources(
        Group="pool", ResourceArns=[seen(ec2, reservation_id)["CapacityReservationArn"]]
    )
    assert places(instances(ec2, [waiting["InstanceId"]])) == [reservation_id]


def test_a_slot_that_comes_free_takes_in_the_next(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, InstanceMatchCriteria="open")
    (first,) = run(ec2)
    (second,) = run(ec2)
    assert places([first, second]) == [reservation_id, None]
    ec2.terminate_instances(InstanceIds=[first["InstanceId"]])
    assert places(instances(ec2, [second["InstanceId"]])) == [reservation_id]


@pytest.mark.covers("CUR-11")
@pytest.mark.parametrize("event", ["freed", "grown", "joined"])
def test_a_slot_of_a_group_takes_in_an_instance_that_spilled_from_it(aws: Aws, ec2: Any, event: str) -> None:
    full = aws.reserve(ec2)
    arn = aws.group("pool", full)
    (first,) = run(ec2, specification=to_group(arn))
    (spilled,) = run(ec2, specification=to_group(arn))
    (plain,) = run(ec2, specification=OPEN)
    (never,) = run(ec2, specification=NONE)
    assert places([first, spilled]) == [full, None]
    if event == "freed":
        ec2.terminate_instances(InstanceIds=[first["InstanceId"]])
    elif event == "grown":
        ec2.modify_capacity_reservation(CapacityReservationId=full, InstanceCount=3)
    else:
        other = aws.reserve(ec2, 2)
        aws.client("resource-groups").group_resources(
            Group="pool", ResourceArns=[seen(ec2, other)["CapacityReservationArn"]]
        )
        full = other
    ids = [instance["InstanceId"] for instance in (spilled, plain, never)]
    assert places(instances(ec2, ids)) == [full, None, None]
    assert free(ec2, full) == (0 if event == "freed" else 1)


@pytest.mark.covers("CUR-11")
@pytest.mark.parametrize("release_s", [0, 60])
def test_a_freed_slot_stays_free_if_ec2_is_set_so_and_later_room_is_taken(
    aws: Aws, ec2: Any, release_s: int
) -> None:
    aws.control.freed_slot_absorbs(False)
    aws.control.slot_release(release_s)
    reservation_id = aws.reserve(ec2, InstanceMatchCriteria="open")
    (first,) = run(ec2)
    (second,) = run(ec2)
    ec2.terminate_instances(InstanceIds=[first["InstanceId"]])
    aws.control.advance(release_s)
    assert places(instances(ec2, [second["InstanceId"]])) == [None]
    assert free(ec2, reservation_id) == 1
    other = aws.reserve(ec2, InstanceMatchCriteria="open")
    assert places(instances(ec2, [second["InstanceId"]])) == [other]
    assert free(ec2, reservation_id) == 1


def test_stop_gives_the_slot_back_and_start_takes_one_again(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2)
    (inside,) = run(ec2, specification=to_id(reservation_id))
    ids = [inside["InstanceId"]]
    ec2.stop_instances(InstanceIds=ids)
    assert free(ec2, reservation_id) == 1
    assert places(instances(ec2, ids)) == [None]
    ec2.start_instances(InstanceIds=ids)
    assert places(instances(ec2, ids)) == [reservation_id]
    ec2.stop_instances(InstanceIds=ids)
    run(ec2, specification=to_id(reservation_id))
    with refused("ReservationCapacityExceeded"):
        ec2.start_instances(InstanceIds=ids)
    (stopped,) = instances(ec2, ids)
    assert stopped["State"]["Name"] == "stopped"


def test_a_stopped_instance_can_be_pointed_elsewhere(aws: Aws, ec2: Any) -> None:
    first, second = aws.reserve(ec2), aws.reserve(ec2)
    (inside,) = run(ec2, specification=to_id(first))
    change = {"InstanceId": inside["InstanceId"], "CapacityReservationSpecification": to_id(second)}
    with refused("IncorrectInstanceState"):
        ec2.modify_instance_capacity_reservation_attributes(**change)
    ec2.stop_instances(InstanceIds=[inside["InstanceId"]])
    assert ec2.modify_instance_capacity_reservation_attributes(**change)["Return"] is True
    ec2.start_instances(InstanceIds=[inside["InstanceId"]])
    (after,) = instances(ec2, [inside["InstanceId"]])
    assert after["CapacityReservationId"] == second
    assert after["CapacityReservationSpecification"] == to_id(second)


def test_describe_instances_filters_by_reservation_and_lifecycle(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2)
    (inside,) = run(ec2, specification=to_id(reservation_id))
    (spot,) = run(ec2, InstanceMarketOptions={"MarketType": "spot"})
    for name, value, instance in (
        ("capacity-reservation-id", reservation_id, inside),
        ("instance-lifecycle", "spot", spot),
    ):
        answer = ec2.describe_instances(Filters=[{"Name": name, "Values": [value]}])
        ids = [i["InstanceId"] for r in answer["Reservations"] for i in r["Instances"]]
        assert ids == [instance["InstanceId"]]


def test_pages_of_instances_go_on_where_one_was_terminated(aws: Aws, ec2: Any) -> None:
    ids = [run(ec2)[0]["InstanceId"] for _ in range(15)]
    running = [{"Name": "instance-state-name", "Values": ["running"]}]
    first = ec2.describe_instances(Filters=running, MaxResults=5)
    ec2.terminate_instances(InstanceIds=[ids[4], ids[5]])
    second = ec2.describe_instances(Filters=running, MaxResults=100, NextToken=first["NextToken"])
    pages = [
        [i["InstanceId"] for r in answer["Reservations"] for i in r["Instances"]]
        for answer in (first, second)
    ]
    assert pages == [ids[:5], ids[6:]]
    assert "NextToken" not in second
    with refused("InvalidParameterValue", text="NextToken"):
        ec2.describe_instances(NextToken="r-nonsense")


def test_template_targets_a_reservation_and_the_request_overrides_it(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 2)
    template_id = template(ec2, InstanceType=TYPE, CapacityReservationSpecification=to_id(reservation_id))
    launch = {
        "LaunchTemplate": {"LaunchTemplateId": template_id},
        "MinCount": 1,
        "MaxCount": 1,
        "Placement": {"AvailabilityZone": ZONE},
    }
    by_template = ec2.run_instances(**launch)["Instances"]
    assert places(by_template) == [reservation_id]
    by_request = ec2.run_instances(**launch, CapacityReservationSpecification=NONE)["Instances"]
    assert places(by_request) == [None]
