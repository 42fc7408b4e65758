"""Members of a reservation group: the permitted ones, the listed ones, and when they leave."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from local.aws import groups
from tests.aws.local.groups.world import ACCOUNT, REGION, FakeEc2, arn

POOL: list[dict[str, Any]] = [
    {"Type": "AWS::EC2::CapacityReservationPool"},
    {
        "Type": "AWS::ResourceGroups::Generic",
        "Parameters": [{"Name": "allowed-resource-types", "Values": ["AWS::EC2::CapacityReservation"]}],
    },
]


def make_pool(client: Any, name: str = "training") -> str:
    return str(client.create_group(Name=name, Configuration=POOL)["Group"]["GroupArn"])


def listed(client: Any, group: str) -> list[str]:
    reply = client.list_group_resources(Group=group)
    identifiers = [entry["Identifier"] for entry in reply["Resources"]]
    assert identifiers == reply["ResourceIdentifiers"], "the old and the new list agree"
    assert {entry["ResourceType"] for entry in identifiers} <= {"AWS::EC2::CapacityReservation"}
    return [entry["ResourceArn"] for entry in identifiers]


@pytest.mark.parametrize("by", ["name", "arn"])
def test_a_reservation_joins_and_leaves_by_the_groups_name_or_arn(
    client: Any, fake: FakeEc2, by: str
) -> None:
    group_arn = make_pool(client)
    group = {"name": "training", "arn": group_arn}[by]
    first, second = fake.reserve("cr-1"), fake.reserve("cr-2", "pending")

    joined = client.group_resources(Group=group, ResourceArns=[first, second])
    assert (joined["Succeeded"], joined["Failed"], joined["Pending"]) == ([first, second], [], [])
    assert listed(client, group) == [first, second]
    assert client.list_group_resources(GroupName=group)["ResourceIdentifiers"], "deprecated, still served"

    left = client.ungroup_resources(Group=group, ResourceArns=[first])
    assert (left["Succeeded"], left["Failed"], left["Pending"]) == ([first], [], [])
    assert listed(client, group) == [second]


def test_joining_twice_lists_once_and_leaving_twice_succeeds(client: Any, fake: FakeEc2) -> None:
    make_pool(client)
    odcr = fake.reserve("cr-1")
    for _ in range(2):
        assert client.group_resources(Group="training", ResourceArns=[odcr])["Succeeded"] == [odcr]
    assert listed(client, "training") == [odcr]
    for _ in range(2):
        assert client.ungroup_resources(Group="training", ResourceArns=[odcr])["Succeeded"] == [odcr]
    assert listed(client, "training") == []


@pytest.mark.parametrize(
    ("stranger", "code"),
    [
        (arn("cr-nowhere"), "RESOURCE_NOT_FOUND"),
        (arn("cr-gone"), "RESOURCE_NOT_FOUND"),
        (arn("cr-1", account="210987654321"), "RESOURCE_NOT_FOUND"),
        (arn("cr-1", region="eu-west-1"), "RESOURCE_REGION_MISMATCH"),
        (f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/i-1", "RESOURCE_TYPE_NOT_ALLOWED"),
        ("arn:aws:s3:::bucket", "RESOURCE_TYPE_NOT_ALLOWED"),
    ],
)
def test_invalid_member_fails_alone(client: Any, fake: FakeEc2, stranger: str, code: str) -> None:
    make_pool(client)
    good = fake.reserve("cr-1")
    fake.reserve("cr-gone", "cancelled")

    reply = client.group_resources(Group="training", ResourceArns=[stranger, good])

    assert reply["Succeeded"] == [good]
    [failure] = reply["Failed"]
    assert (failure["ResourceArn"], failure["ErrorCode"]) == (stranger, code)
    assert failure["ErrorMessage"]
    assert listed(client, "training") == [good]


def test_grouping_status_is_the_last_action_on_the_resource(client: Any, fake: FakeEc2) -> None:
    group_arn = make_pool(client)
    first, second = fake.reserve("cr-1"), fake.reserve("cr-2")
    client.group_resources(Group="training", ResourceArns=[first, second, arn("cr-nowhere")])
    client.ungroup_resources(Group="training", ResourceArns=[second])

    reply = client.list_grouping_statuses(Group=group_arn)
    assert reply["Group"] == group_arn
    rows = {row["ResourceArn"]: (row["Action"], row["Status"]) for row in reply["GroupingStatuses"]}
    assert rows == {
        first: ("GROUP", "SUCCESS"),
        second: ("UNGROUP", "SUCCESS"),
        arn("cr-nowhere"): ("GROUP", "FAILED"),
    }

    failed = client.list_grouping_statuses(
        Group="training", Filters=[{"Name": "status", "Values": ["FAILED"]}]
    )
    assert [row["ErrorCode"] for row in failed["GroupingStatuses"]] == ["RESOURCE_NOT_FOUND"]
    of_first = client.list_grouping_statuses(
        Group="training", Filters=[{"Name": "resource-arn", "Values": [first]}]
    )
    assert [row["ResourceArn"] for row in of_first["GroupingStatuses"]] == [first]


def test_members_come_in_pages(client: Any, fake: FakeEc2) -> None:
    make_pool(client)
    arns = [fake.reserve(f"cr-{number:02}") for number in range(53)]
    for start in range(0, len(arns), 10):
        client.group_resources(Group="training", ResourceArns=arns[start : start + 10])

    first = client.list_group_resources(Group="training")
    assert len(first["Resources"]) == 50, "the default page is the largest"
    pages = client.get_paginator("list_group_resources").paginate(
        Group="training", PaginationConfig={"PageSize": 20}
    )
    sizes, seen = [], []
    for page in pages:
        sizes.append(len(page["Resources"]))
        seen += [entry["Identifier"]["ResourceArn"] for entry in page["Resources"]]
    assert (sizes, seen) == ([20, 20, 13], arns)


def test_members_by_resource_type(client: Any, fake: FakeEc2) -> None:
    make_pool(client)
    odcr = fake.reserve("cr-1")
    client.group_resources(Group="training", ResourceArns=[odcr])

    def by_type(resource_type: str) -> Any:
        filters = [{"Name": "resource-type", "Values": [resource_type]}]
        return client.list_group_resources(Group="training", Filters=filters)["Resources"]

    assert [entry["Identifier"]["ResourceArn"] for entry in by_type("AWS::EC2::CapacityReservation")] == [
        odcr
    ]
    with pytest.raises(ClientError, match=r"(?s)BadRequestException.*AWS::S3::Bucket"):
        by_type("AWS::S3::Bucket")


@pytest.mark.parametrize("ended", ["cancelled", "expired", None])
def test_a_reservation_that_ends_leaves_its_groups(client: Any, fake: FakeEc2, ended: str | None) -> None:
    make_pool(client)
    odcr, other = fake.reserve("cr-1"), fake.reserve("cr-2")
    client.group_resources(Group="training", ResourceArns=[odcr, other])
    if ended:
        fake.reserve("cr-1", ended)
    else:
        del fake.states[odcr]

    assert groups.groups_of(ACCOUNT, REGION, odcr) == []
    assert groups.members(ACCOUNT, REGION, "training") == [other]
    assert listed(client, "training") == [other]


def test_ec2_can_read_members_and_groups(client: Any, fake: FakeEc2) -> None:
    training, inference = make_pool(client, "training"), make_pool(client, "inference")
    odcr = fake.reserve("cr-1")
    for name in ("training", "inference"):
        client.group_resources(Group=name, ResourceArns=[odcr])

    assert groups.members(ACCOUNT, REGION, training) == groups.members(ACCOUNT, REGION, "training") == [odcr]
    assert groups.groups_of(ACCOUNT, REGION, odcr) == [
        {"GroupArn": training, "OwnerId": ACCOUNT},
        {"GroupArn": inference, "OwnerId": ACCOUNT},
    ]
    with pytest.raises(LookupError, match="nowhere"):
        groups.members(ACCOUNT, REGION, "nowhere")


def test_every_membership_change_reaches_ec2(client: Any, fake: FakeEc2) -> None:
    make_pool(client)
    odcr = fake.reserve("cr-1")
    client.group_resources(Group="training", ResourceArns=[arn("cr-nowhere")])
    assert fake.changes == [], "nothing joined"
    client.group_resources(Group="training", ResourceArns=[odcr])
    client.ungroup_resources(Group="training", ResourceArns=[odcr])
    client.group_resources(Group="training", ResourceArns=[odcr])
    client.delete_group(Group="training")
    assert fake.changes == [(ACCOUNT, REGION)] * 4
    assert groups.groups_of(ACCOUNT, REGION, odcr) == []


def test_resources_join_no_group_of_another_kind(client: Any, fake: FakeEc2) -> None:
    query = (
        '{"ResourceTypeFilters": ["AWS::AllSupported"], "TagFilters": [{"Key": "team", "Values": ["ml"]}]}'
    )
    client.create_group(Name="by-tag", ResourceQuery={"Type": "TAG_FILTERS_1_0", "Query": query})
    with pytest.raises(ClientError, match=r"(?s)BadRequestException.*AWS::EC2::CapacityReservationPool"):
        client.group_resources(Group="by-tag", ResourceArns=[fake.reserve("cr-1")])


@pytest.mark.parametrize("action", ["group_resources", "ungroup_resources"])
def test_a_request_takes_one_to_ten_arns(client: Any, fake: FakeEc2, action: str) -> None:
    make_pool(client)
    arns = [fake.reserve(f"cr-{number}") for number in range(11)]
    with pytest.raises(
        ClientError, match=r"(?s)BadRequestException.*ResourceArns has 11 entries, it takes 1 to 10"
    ):
        getattr(client, action)(Group="training", ResourceArns=arns)
    with pytest.raises(ClientError, match=r"(?s)BadRequestException.*'not-an-arn-at-all' is not an ARN"):
        getattr(client, action)(Group="training", ResourceArns=["not-an-arn-at-all"])
