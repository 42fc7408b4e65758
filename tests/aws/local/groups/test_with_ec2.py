"""Groups and EC2 together: a group's members are EC2's reservations, and EC2 follows the group."""

from typing import Any

import pytest

from tests.aws.local.kit import LINUX, REGION, TYPE, ZONE, Aws

OTHERS = {
    "account": "222222222222",
    "InstanceType": TYPE,
    "InstancePlatform": "Linux/UNIX",
    "AvailabilityZone": ZONE,
    "InstanceCount": 1,
}


def members(aws: Aws, group: str) -> list[str]:
    reply = aws.client("resource-groups").list_group_resources(Group=group)
    return [entry["Identifier"]["ResourceArn"].rpartition("/")[2] for entry in reply["Resources"]]


def groups_of(ec2: Any, odcr: str) -> list[str]:
    reply = ec2.get_groups_for_capacity_reservation(CapacityReservationId=odcr)
    return [entry["GroupArn"] for entry in reply["CapacityReservationGroups"]]


def launch_into(ec2: Any, group: str) -> str:
    reply = ec2.run_instances(
        ImageId=LINUX,
        InstanceType=TYPE,
        MinCount=1,
        MaxCount=1,
        Placement={"AvailabilityZone": ZONE},
        CapacityReservationSpecification={
            "CapacityReservationTarget": {"CapacityReservationResourceGroupArn": group}
        },
    )
    return str(reply["Instances"][0]["InstanceId"])


def reservation_of(ec2: Any, instance: str) -> str | None:
    [reservation] = ec2.describe_instances(InstanceIds=[instance])["Reservations"]
    shown: dict[str, Any] = reservation["Instances"][0]
    return shown.get("CapacityReservationId")


def test_both_services_report_the_same_membership(aws: Aws, ec2: Any) -> None:
    first, second = aws.reserve(ec2), aws.reserve(ec2)
    training, inference = aws.group("training", first, second), aws.group("inference", first)
    assert members(aws, training) == [first, second]
    assert groups_of(ec2, first) == [training, inference]
    aws.client("resource-groups").delete_group(Group="training")
    assert groups_of(ec2, first) == [inference]
    assert groups_of(ec2, second) == []


def test_a_pending_member_is_listed_and_launched_into_only_later(aws: Aws, ec2: Any) -> None:
    aws.control.freeze()
    aws.control.grouping(60)
    odcr = aws.reserve(ec2)
    arn = f"arn:aws:ec2:{REGION}:123456789012:capacity-reservation/{odcr}"
    group, groups = aws.group("training"), aws.client("resource-groups")
    for _ in range(2):
        answer = groups.group_resources(Group="training", ResourceArns=[arn])
        assert (answer["Succeeded"], answer["Pending"]) == ([], [{"ResourceArn": arn}])
    status = groups.list_grouping_statuses(Group="training")["GroupingStatuses"]
    assert [entry["Status"] for entry in status] == ["IN_PROGRESS"]
    assert members(aws, "training") == groups_of(ec2, odcr) == []
    assert reservation_of(ec2, launch_into(ec2, group)) is None
    aws.control.advance(60)
    assert members(aws, "training") == [odcr]
    status = groups.list_grouping_statuses(Group="training")["GroupingStatuses"]
    assert [entry["Status"] for entry in status] == ["SUCCESS"]
    assert groups.group_resources(Group="training", ResourceArns=[arn])["Succeeded"] == [arn]


def test_a_cancelled_reservation_leaves_its_groups_for_good(aws: Aws, ec2: Any) -> None:
    gone, stays = aws.reserve(ec2), aws.reserve(ec2)
    training = aws.group("training", gone, stays)
    ec2.cancel_capacity_reservation(CapacityReservationId=gone)
    assert members(aws, training) == [stays]
    arn = f"arn:aws:ec2:{REGION}:123456789012:capacity-reservation/{gone}"
    reply = aws.client("resource-groups").group_resources(Group="training", ResourceArns=[arn])
    assert [failure["ResourceArn"] for failure in reply["Failed"]] == [arn]


def test_an_instance_follows_its_group(aws: Aws, ec2: Any) -> None:
    training = aws.group("training")
    instance = launch_into(ec2, training)
    assert reservation_of(ec2, instance) is None, "nothing in the group yet: On-Demand"

    odcr = aws.reserve(ec2)
    arn = f"arn:aws:ec2:{REGION}:123456789012:capacity-reservation/{odcr}"
    aws.client("resource-groups").group_resources(Group=training, ResourceArns=[arn])
    assert reservation_of(ec2, instance) == odcr, (
        "a reservation that joins takes the instances that wait for it"
    )


@pytest.mark.parametrize("shared", [False, True])
def test_another_accounts_reservation_joins_only_when_shared(aws: Aws, ec2: Any, shared: bool) -> None:
    odcr = aws.control.reservation(
        **OTHERS,
        shared_with=["123456789012"] if shared else [],
    )
    arn = f"arn:aws:ec2:{REGION}:222222222222:capacity-reservation/{odcr['CapacityReservationId']}"
    own_arn = arn.replace("222222222222", "123456789012")
    aws.group("training")
    reply = aws.client("resource-groups").group_resources(Group="training", ResourceArns=[arn, own_arn])
    assert reply["Succeeded"] == ([arn] if shared else [])
    assert [failure["ErrorCode"] for failure in reply["Failed"]] == ["RESOURCE_NOT_FOUND"] * (2 - shared)
