"""The tags of an EC2NodeClass are on all that is made for it, so that a policy can ask for them."""

from __future__ import annotations

from typing import Any

import pytest

from .world import World

TAGS = {"cost-center": "42", "Team": "blue"}


def pairs(listed: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in listed}


def role(world: World) -> Any:
    iam = world.client("iam")
    iam.create_role(RoleName="nodes", AssumeRolePolicyDocument="{}")
    return iam


def profile_tags(iam: Any, name: str) -> dict[str, str]:
    return pairs(iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Tags"])


@pytest.mark.covers("FLT-08")
@pytest.mark.parametrize("market", ["on-demand", "spot"])
def test_template_and_all_that_a_launch_makes_have_the_tags_of_the_class(world: World, market: str) -> None:
    template = world.template(tags=TAGS, market=market)
    (shown,) = world.ec2.describe_launch_templates()["LaunchTemplates"]
    assert pairs(shown["Tags"]).items() >= TAGS.items()
    (version,) = world.ec2.describe_launch_template_versions(LaunchTemplateName=template.name)[
        "LaunchTemplateVersions"
    ]
    tagged = {
        item["ResourceType"]: pairs(item["Tags"])
        for item in version["LaunchTemplateData"]["TagSpecifications"]
        if item["ResourceType"] != "launch-template"  # moto lists the template's own tags here too
    }
    kinds = ["instance", "volume", "network-interface", *["spot-instances-request"] * (market == "spot")]
    assert tagged == dict.fromkeys(kinds, TAGS)


@pytest.mark.covers("FLT-08")
def test_profile_made_for_a_role_has_the_tags_of_the_class(world: World) -> None:
    iam = role(world)
    name = world.aws.instance_profile(role="nodes", profile="", labels=TAGS)
    assert profile_tags(iam, name).items() >= TAGS.items()
    assert profile_tags(iam, name)["capacity-broker.io/cluster"] == "blue"


@pytest.mark.covers("FLT-08")
def test_profile_that_exists_gets_the_tags_it_lacks_and_keeps_its_own(world: World) -> None:
    iam = role(world)
    name = world.aws.instance_profile(role="nodes", profile="", labels={})
    iam.tag_instance_profile(InstanceProfileName=name, Tags=[{"Key": "team", "Value": "red"}])
    for provider in (world.aws, world.provider()):  # the same after a restart
        assert provider.instance_profile(role="nodes", profile="", labels=TAGS) == name
        tags = profile_tags(iam, name)
        assert tags["cost-center"] == "42"
        assert tags["team"] == "red" and "Team" not in tags  # IAM's keys ignore case
    calls = world.control.calls()
    assert calls["TagInstanceProfile"] == 2  # this test's own, and the broker's


@pytest.mark.covers("FLT-08")
def test_given_profile_is_left_as_it_is(world: World) -> None:
    iam = world.client("iam")
    iam.create_instance_profile(InstanceProfileName="theirs")
    assert world.aws.instance_profile(role="", profile="theirs", labels=TAGS) == "theirs"
    assert profile_tags(iam, "theirs") == {}
