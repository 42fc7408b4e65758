"""Reads from EC2, Resource Groups, SSM and IAM."""

from __future__ import annotations

import pytest

from providers.errors import ErrorClass, ProviderError
from providers.model import Selector

from .world import P5, World


@pytest.mark.covers("KRP-11")
def test_every_reservation_in_every_state_by_pages(world: World) -> None:
    crs = [world.reserve(n + 1) for n in range(3)]
    world.ec2.cancel_capacity_reservation(CapacityReservationId=crs[0])
    world.ec2.create_tags(Resources=[crs[1]], Tags=[{"Key": "team", "Value": "ml"}])
    world.control.clear_calls()
    odcrs = {odcr.id: odcr for odcr in world.aws.reservations()}
    assert set(odcrs) == set(crs)
    assert odcrs[crs[0]].state == "cancelled"
    tagged = odcrs[crs[1]]
    assert (tagged.instance_type, tagged.zone, tagged.total, tagged.available) == (P5, "us-east-1a", 2, 2)
    assert (tagged.match_criteria, tagged.platform, tagged.tenancy) == ("targeted", "Linux/UNIX", "default")
    assert dict(tagged.tags) == {"team": "ml"}
    assert tagged.owner_id == world.aws.account_id()
    assert tagged.start is None or tagged.start.tzinfo is not None
    assert world.control.calls()["DescribeCapacityReservations"] == 1


@pytest.mark.covers("KRP-06")
def test_member_added_to_a_group_appears_in_the_next_read(world: World) -> None:
    first, second = world.reserve(1), world.reserve(1)
    arn = world.group(first)
    group = world.aws.group(arn)
    assert (group.name, group.member_ids) == ("gpu", (first,))
    world.client("resource-groups").group_resources(Group="gpu", ResourceArns=[world.arn(second)])
    assert set(world.aws.group(arn).member_ids) == {first, second}


@pytest.mark.covers("KRP-06")
def test_a_group_that_is_not_there_is_not_found(world: World) -> None:
    with pytest.raises(ProviderError) as caught:
        world.aws.group("arn:aws:resource-groups:us-east-1:123456789012:group/nobody")
    assert caught.value.class_ is ErrorClass.NOT_FOUND


def test_subnets_by_id_and_by_tag(world: World) -> None:
    a, b = world.subnet("us-east-1a"), world.subnet("us-east-1b")
    world.ec2.create_tags(Resources=[b], Tags=[{"Key": "discovery", "Value": "blue"}])
    by_id = world.aws.subnets([Selector(id=a), Selector(id="subnet-0123456789abcdef0")])
    assert [(s.id, s.zone) for s in by_id] == [(a, "us-east-1a")]
    assert by_id[0].available_addresses > 0
    assert [s.id for s in world.aws.subnets([Selector(tags={"discovery": "*"})])] == [b]
    assert [s.id for s in world.aws.subnets([Selector(tags={"discovery": "blue"})])] == [b]
    assert world.aws.subnets([Selector(tags={"discovery": "green"})]) == []
    both = world.aws.subnets([Selector(id=a), Selector(tags={"discovery": "*"}), Selector(id=b)])
    assert [s.id for s in both] == [a, b]


def test_security_groups_by_name(world: World) -> None:
    (group,) = world.aws.security_groups([Selector(name="default")])
    (described,) = world.ec2.describe_security_groups(GroupIds=[group.id])["SecurityGroups"]
    assert described["GroupName"] == "default"
    assert world.aws.security_groups([Selector(id=group.id)]) == [group]


@pytest.mark.covers("KRP-14")
def test_images_newest_first_and_deprecated_last(world: World) -> None:
    source = world.image()
    ids = [
        world.ec2.copy_image(Name=f"node-{n}", SourceImageId=source, SourceRegion="us-east-1")["ImageId"]
        for n in range(2)
    ]
    images = world.aws.images([Selector(id=i) for i in ids])
    assert {image.id for image in images} == set(ids)
    ages = [image.created.timestamp() for image in images if image.created]
    assert len(ages) == 2 and ages == sorted(ages, reverse=True)
    assert all(image.accelerator is None and image.platform == "Linux/UNIX" for image in images)
    by_name = world.aws.images([Selector(name="node-*")])
    assert {image.id for image in by_name} == set(ids)
    assert world.aws.images([Selector(id="ami-0123456789abcdef0")]) == []


@pytest.mark.covers("KRP-14")
def test_an_image_by_parameter(world: World) -> None:
    image = world.image()
    world.client("ssm").put_parameter(Name="/golden/image", Value=image, Type="String")
    (resolved,) = world.aws.images([Selector(ssm_parameter="/golden/image")])
    assert resolved.id == image
    with pytest.raises(ProviderError, match="/golden/other") as caught:
        world.aws.images([Selector(ssm_parameter="/golden/other")])
    assert caught.value.class_ is ErrorClass.NOT_FOUND


def test_types_with_their_zones(world: World) -> None:
    types = world.aws.instance_types()
    p5 = types[P5]
    assert (p5.vcpus, p5.memory_mib, p5.architecture) == (192, 2 * 1024 * 1024, "amd64")
    assert [(g.name, g.manufacturer, g.count) for g in p5.gpus] == [("H100", "NVIDIA", 8)]
    assert p5.zones and all(zone.startswith("us-east-1") for zone in p5.zones)
    assert p5.efa_interfaces == 32
    assert types["m5.large"].max_pods == 29
    assert types["m6g.large"].architecture == "arm64"
    assert types["inf2.xlarge"].neurons == 1
    calls = world.control.calls()["DescribeInstanceTypes"]
    assert world.aws.instance_types() is types
    assert world.control.calls()["DescribeInstanceTypes"] == calls


def test_a_profile_is_made_for_a_role_once(world: World) -> None:
    iam = world.client("iam")
    iam.create_role(RoleName="nodes", AssumeRolePolicyDocument="{}")
    name = world.aws.instance_profile(role="nodes", profile="", labels={})
    held = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    assert [role["RoleName"] for role in held["Roles"]] == ["nodes"]
    assert world.provider().instance_profile(role="nodes", profile="", labels={}) == name
    assert len(iam.list_instance_profiles()["InstanceProfiles"]) == 1


def test_foreign_profile_of_the_role_is_not_used(world: World) -> None:
    """Karpenter deletes its own with its class, and a node group's goes with the group."""
    iam = world.client("iam")
    iam.create_role(RoleName="nodes", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="theirs")
    iam.add_role_to_instance_profile(InstanceProfileName="theirs", RoleName="nodes")
    name = world.aws.instance_profile(role="nodes", profile="", labels={})
    assert name != "theirs"
    held = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    assert [role["RoleName"] for role in held["Roles"]] == ["nodes"]


def test_a_role_that_is_not_there_is_not_found(world: World) -> None:
    with pytest.raises(ProviderError, match="nobody") as caught:
        world.aws.instance_profile(role="nobody", profile="", labels={})
    assert caught.value.class_ is ErrorClass.NOT_FOUND
