"""Placement groups: made, found, named by launches and reservations, deleted when nothing uses them."""

from __future__ import annotations

from typing import Any

from tests.aws.local.kit import TYPE, ZONE, Aws, codes, fleet, pool, refused, run, template


def test_a_group_is_made_found_and_deleted(ec2: Any) -> None:
    group = ec2.create_placement_group(
        GroupName="together",
        Strategy="partition",
        PartitionCount=3,
        TagSpecifications=[{"ResourceType": "placement-group", "Tags": [{"Key": "team", "Value": "ml"}]}],
    )["PlacementGroup"]
    ec2.create_placement_group(GroupName="apart", Strategy="spread")
    assert group["GroupArn"] == "arn:aws:ec2:us-east-1:123456789012:placement-group/together"
    assert (group["Strategy"], group["PartitionCount"], group["State"]) == ("partition", 3, "available")
    for name, value in (
        ("group-name", "toge*"),
        ("group-arn", group["GroupArn"]),
        ("strategy", "partition"),
        ("tag:team", "ml"),
    ):
        reply = ec2.describe_placement_groups(Filters=[{"Name": name, "Values": [value]}])
        assert reply["PlacementGroups"] == [group], name
    assert ec2.describe_placement_groups(GroupIds=[group["GroupId"]])["PlacementGroups"] == [group]
    assert ec2.describe_placement_groups(GroupNames=["together"])["PlacementGroups"] == [group]
    with refused("InvalidPlacementGroup.Duplicate"):
        ec2.create_placement_group(GroupName="together")
    ec2.delete_placement_group(GroupName="together")
    with refused("InvalidPlacementGroup.Unknown", text="together"):
        ec2.describe_placement_groups(GroupNames=["together"])
    with refused("InvalidPlacementGroupId.NotFound"):
        ec2.describe_placement_groups(GroupIds=[group["GroupId"]])


def test_a_group_in_use_stays(aws: Aws, ec2: Any) -> None:
    arn = ec2.create_placement_group(GroupName="together")["PlacementGroup"]["GroupArn"]
    (inside,) = run(ec2, Placement={"AvailabilityZone": ZONE, "GroupName": "together"})
    with refused("InvalidPlacementGroup.InUse"):
        ec2.delete_placement_group(GroupName="together")
    ec2.terminate_instances(InstanceIds=[inside["InstanceId"]])
    reservation_id = aws.reserve(ec2, PlacementGroupArn=arn)
    with refused("InvalidPlacementGroup.InUse"):
        ec2.delete_placement_group(GroupName="together")
    ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    ec2.delete_placement_group(GroupName="together")


def test_a_launch_into_no_group(aws: Aws, ec2: Any) -> None:
    with refused("InvalidPlacementGroup.Unknown", text="nowhere"):
        run(ec2, Placement={"AvailabilityZone": ZONE, "GroupName": "nowhere"})
    answer = fleet(ec2, pool(template(ec2, InstanceType=TYPE, Placement={"GroupName": "nowhere"})))
    assert codes(answer) == ["InvalidPlacementGroup.Unknown"]


def test_invalid_groups_are_refused(ec2: Any) -> None:
    with refused("InvalidParameterValue", text="PartitionCount"):
        ec2.create_placement_group(GroupName="g", Strategy="cluster", PartitionCount=2)
    with refused("InvalidParameterValue", text="Strategy"):
        ec2.create_placement_group(GroupName="g", Strategy="scatter")
