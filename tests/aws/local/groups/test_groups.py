"""A group's life: configuration, name and ARN, filters, tags, deletion, and the texts of refusals."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from local.aws import groups
from tests.aws.local.groups.test_membership import POOL, make_pool
from tests.aws.local.groups.world import FakeEc2

QUERY = {
    "Type": "TAG_FILTERS_1_0",
    "Query": json.dumps(
        {
            "ResourceTypeFilters": ["AWS::EC2::Instance"],
            "TagFilters": [{"Key": "team", "Values": ["ml"]}],
        }
    ),
}


def generic(*parameters: tuple[str, list[str]]) -> dict[str, Any]:
    return {
        "Type": "AWS::ResourceGroups::Generic",
        "Parameters": [{"Name": name, "Values": values} for name, values in parameters],
    }


RESERVATIONS_ONLY = ("allowed-resource-types", ["AWS::EC2::CapacityReservation"])


def refusal(call: Any, **parameters: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    return f"{error['Code']}: {error['Message']}"


def test_create_answers_the_group_and_its_configuration_in_effect(client: Any) -> None:
    reply = client.create_group(Name="training", Description="GPUs", Configuration=POOL, Tags={"team": "ml"})
    arn = "arn:aws:resource-groups:us-east-1:123456789012:group/training"
    assert reply["Group"] == {"GroupArn": arn, "Name": "training", "Description": "GPUs"}
    assert reply["GroupConfiguration"] == {"Configuration": POOL, "Status": "UPDATE_COMPLETE"}
    assert reply["Tags"] == {"team": "ml"}
    assert "ResourceQuery" not in reply


@pytest.mark.parametrize("by", ["name", "arn"])
@pytest.mark.parametrize("field", ["Group", "GroupName"])
def test_every_action_takes_the_group_by_name_and_arn(client: Any, by: str, field: str) -> None:
    arn = make_pool(client)
    group = {"name": "training", "arn": arn}[by]
    named = {field: group}
    assert client.get_group(**named)["Group"]["GroupArn"] == arn
    assert client.update_group(**named, Description="new words")["Group"]["Description"] == "new words"
    assert client.update_group(**named, Description="")["Group"]["Description"] == ""
    assert refusal(client.get_group_query, **named).startswith("BadRequestException")
    assert client.get_group_configuration(Group=group)["GroupConfiguration"] == {
        "Configuration": POOL,
        "Status": "UPDATE_COMPLETE",
    }
    protected = [POOL[0], generic(RESERVATIONS_ONLY, ("deletion-protection", ["UNLESS_EMPTY"]))]
    client.put_group_configuration(Group=group, Configuration=protected)
    assert client.get_group_configuration(Group=group)["GroupConfiguration"]["Configuration"] == protected
    assert client.list_group_resources(**named)["Resources"] == []
    assert client.list_grouping_statuses(Group=group)["GroupingStatuses"] == []
    assert client.delete_group(**named)["Group"]["GroupArn"] == arn
    assert refusal(client.get_group, **named).startswith("NotFoundException")


@pytest.mark.parametrize(
    ("action", "parameters"),
    [
        ("get_group", {}),
        ("delete_group", {}),
        ("update_group", {"Description": "x"}),
        ("get_group_query", {}),
        ("update_group_query", {"ResourceQuery": QUERY}),
        ("get_group_configuration", {}),
        ("put_group_configuration", {"Configuration": POOL}),
        ("group_resources", {"ResourceArns": ["arn:aws:s3:::bucket"]}),
        ("ungroup_resources", {"ResourceArns": ["arn:aws:s3:::bucket"]}),
        ("list_group_resources", {}),
        ("list_grouping_statuses", {}),
    ],
)
def test_an_unknown_group_is_not_found(client: Any, action: str, parameters: dict[str, Any]) -> None:
    assert refusal(getattr(client, action), Group="nowhere", **parameters).startswith("NotFoundException")


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ([POOL[0]], "CapacityReservationPool needs an item of type AWS::ResourceGroups::Generic"),
        ([POOL[0], generic()], "allowed-resource-types is [AWS::EC2::CapacityReservation]"),
        ([POOL[0], generic(("allowed-resource-types", ["AWS::EC2::Host"]))], "CapacityReservationPool needs"),
        (
            [{"Type": "AWS::EC2::CapacityReserationPool"}, POOL[1]],
            "'AWS::EC2::CapacityReserationPool' is not",
        ),
        ([POOL[1], POOL[1]], "repeats a type"),
        ([*POOL, {"Type": "AWS::EC2::HostManagement"}], "has 3 items, a group takes at most 2"),
        ([POOL[0], generic(("allowed-types", ["x"]))], "Parameter 'allowed-types' is not valid for"),
        (
            [POOL[0], generic(("allowed-resource-types", ["AWS::EC2::Instance"]))],
            "Value 'AWS::EC2::Instance'",
        ),
        ([POOL[0], generic(RESERVATIONS_ONLY, RESERVATIONS_ONLY)], "is given twice"),
        ([POOL[0], generic(("allowed-resource-types", []))], "needs at least one value"),
        (
            [POOL[0], generic(RESERVATIONS_ONLY, ("deletion-protection", ["ALWAYS"]))],
            "valid values: UNLESS_EMPTY",
        ),
        (
            [
                {
                    "Type": "AWS::EC2::CapacityReservationPool",
                    "Parameters": [{"Name": "size", "Values": ["1"]}],
                },
                POOL[1],
            ],
            "Parameter 'size' is not valid for AWS::EC2::CapacityReservationPool; valid parameters: none",
        ),
    ],
)
def test_a_configuration_aws_would_refuse(client: Any, configuration: Any, words: str) -> None:
    created = refusal(client.create_group, Name="bad", Configuration=configuration)
    assert created.startswith("BadRequestException")
    assert words in created
    assert client.list_groups()["Groups"] == [], "nothing was made"

    make_pool(client)
    assert words in refusal(client.put_group_configuration, Group="training", Configuration=configuration)
    kept = client.get_group_configuration(Group="training")["GroupConfiguration"]["Configuration"]
    assert kept == POOL


def test_a_group_has_a_query_or_a_pool_not_both(client: Any) -> None:
    both = refusal(client.create_group, Name="both", Configuration=POOL, ResourceQuery=QUERY)
    assert both == "BadRequestException: A group can have a ResourceQuery or a Configuration, not both"
    client.create_group(Name="by-tag", ResourceQuery=QUERY)
    assert client.get_group_query(Group="by-tag")["GroupQuery"]["ResourceQuery"] == QUERY
    assert refusal(client.get_group_configuration, Group="by-tag").startswith("BadRequestException")
    assert "can't become a pool" in refusal(
        client.put_group_configuration, Group="by-tag", Configuration=POOL
    )
    make_pool(client)
    assert "takes no resource query" in refusal(
        client.update_group_query, Group="training", ResourceQuery=QUERY
    )


def test_a_name_is_taken_once(client: Any) -> None:
    make_pool(client)
    assert "already exists" in refusal(client.create_group, Name="training", Configuration=POOL)


def test_deletion_protection_holds_until_the_group_is_empty(client: Any, fake: FakeEc2) -> None:
    protected = [POOL[0], generic(RESERVATIONS_ONLY, ("deletion-protection", ["UNLESS_EMPTY"]))]
    client.create_group(Name="kept", Configuration=protected)
    odcr = fake.reserve("cr-1")
    client.group_resources(Group="kept", ResourceArns=[odcr])
    assert "deletion-protection is UNLESS_EMPTY" in refusal(client.delete_group, Group="kept")
    assert "has members" in refusal(
        client.put_group_configuration, Group="kept", Configuration=[generic(RESERVATIONS_ONLY)]
    )
    client.ungroup_resources(Group="kept", ResourceArns=[odcr])
    client.delete_group(Group="kept")
    assert client.list_groups()["Groups"] == []


def test_a_new_group_of_an_old_name_is_empty(client: Any, fake: FakeEc2) -> None:
    make_pool(client)
    client.group_resources(Group="training", ResourceArns=[fake.reserve("cr-1")])
    client.delete_group(Group="training")
    make_pool(client)
    assert client.list_group_resources(Group="training")["Resources"] == []
    assert client.list_grouping_statuses(Group="training")["GroupingStatuses"] == []


def names(client: Any, *filters: tuple[str, list[str]]) -> list[str]:
    reply = client.list_groups(Filters=[{"Name": name, "Values": values} for name, values in filters])
    group_names = [entry["GroupName"] for entry in reply["GroupIdentifiers"]]
    assert group_names == [entry["Name"] for entry in reply["Groups"]], "the old and the new list agree"
    return group_names


def test_list_groups_by_filter(client: Any) -> None:
    make_pool(client)
    client.create_group(Name="by-tag", ResourceQuery=QUERY)
    client.create_group(
        Name="app",
        Configuration=[{"Type": "AWS::ResourceGroups::ApplicationGroup"}],
        Owner="ml team",
        DisplayName="Shop",
        Criticality=3,
    )
    pool, application = "AWS::EC2::CapacityReservationPool", "AWS::ResourceGroups::ApplicationGroup"
    assert names(client) == ["training", "by-tag", "app"]
    assert names(client, ("configuration-type", [pool])) == ["training"]
    assert names(client, ("configuration-type", [pool, application])) == ["training", "app"]
    assert names(client, ("resource-type", ["AWS::EC2::Instance"])) == ["by-tag"]
    assert names(client, ("resource-type", ["AWS::EC2::CapacityReservation"])) == ["training"]
    assert names(client, ("owner", ["ml team"]), ("criticality", ["3"])) == ["app"]
    assert names(client, ("display-name", ["Shop"]), ("owner", ["someone"])) == []
    unknown = refusal(client.list_groups, Filters=[{"Name": "colour", "Values": ["red"]}])
    assert unknown.startswith("BadRequestException: Filter 'colour' is not valid; valid filters: ")
    assert client.get_group(Group="app")["Group"]["Criticality"] == 3


def test_groups_come_in_pages(client: Any) -> None:
    for number in range(5):
        make_pool(client, f"g{number}")
    paginator = client.get_paginator("list_groups").paginate(PaginationConfig={"PageSize": 2})
    pages = [[entry["Name"] for entry in page["Groups"]] for page in paginator]
    assert pages == [["g0", "g1"], ["g2", "g3"], ["g4"]]
    assert "MaxResults is 51, it takes 1 to 50" in refusal(client.list_groups, MaxResults=51)
    assert "NextToken 'eA==' is not one" in refusal(client.list_groups, NextToken="eA==")


def test_tags_of_a_group(client: Any) -> None:
    arn = make_pool(client)
    client.tag(Arn=arn, Tags={"team": "ml", "cost": "7"})
    assert client.untag(Arn=arn, Keys=["cost", "never-there"])["Keys"] == ["cost", "never-there"]
    assert client.get_tags(Arn=arn)["Tags"] == {"team": "ml"}
    assert "must not start with 'aws:'" in refusal(client.tag, Arn=arn, Tags={"aws:x": "1"})
    assert client.get_tags(Arn=arn)["Tags"] == {"team": "ml"}
    nowhere = arn.replace("training", "nowhere")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("get_tags", {}),
        ("tag", {"Tags": {"a": "b"}}),
        ("untag", {"Keys": ["a"]}),
    ]
    for action, parameters in calls:
        assert refusal(getattr(client, action), Arn=nowhere, **parameters).startswith("NotFoundException")


def test_install_again_changes_nothing(client: Any) -> None:
    make_pool(client)
    groups.install()
    assert names(client) == ["training"]
