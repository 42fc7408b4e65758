"""Resources of another cluster of the same name are never changed, ended or used: its UID differs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from providers.aws import AwsProvider
from providers.errors import ErrorClass, ProviderError
from providers.launch import ProfileRef, Template
from providers.model import OdcrRequest

from .world import P5, ZONE, World

UID = "capacity-broker.io/cluster-uid"


def of(world: World, uid: str, *, cluster: str = "blue") -> AwsProvider:
    provider = world.provider(cluster=cluster)
    if uid:
        provider.identify(uid)
    return provider


def reserved(provider: AwsProvider) -> str:
    request = OdcrRequest(
        token=f"t-{id(provider)}", instance_type=P5, zone=ZONE, count=1, platform="Linux/UNIX"
    )
    return provider.create_reservation(request).id


CHANGES: dict[str, Callable[[AwsProvider, str], None]] = {
    "resize": lambda provider, id_: provider.resize_reservation(id_, count=2),
    "cancel": lambda provider, id_: provider.cancel_reservation(id_),
}


@pytest.mark.covers("SAF-04")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("maker", ["uid-of-another", ""], ids=["another", "an older version"])
def test_reservation_of_another_uid_or_of_none_is_not_changed(world: World, change: str, maker: str) -> None:
    id_ = reserved(of(world, maker))
    with pytest.raises(ProviderError) as caught:
        CHANGES[change](of(world, "uid-of-this"), id_)
    assert caught.value.class_ is ErrorClass.CONFIGURATION
    assert f"{UID}=uid-of-this" in str(caught.value)
    (odcr,) = world.aws.reservations()
    assert (odcr.total, odcr.state) == (1, "active")


@pytest.mark.covers("SAF-04")
@pytest.mark.parametrize("change", CHANGES)
def test_own_reservation_carries_the_uid_and_can_be_changed(world: World, change: str) -> None:
    this_cluster = of(world, "uid-of-this")
    id_ = reserved(this_cluster)
    (odcr,) = this_cluster.reservations()
    assert (odcr.tags[UID], odcr.ownership) == ("uid-of-this", "owned")
    CHANGES[change](this_cluster, id_)
    (odcr,) = of(world, "uid-of-another").reservations()
    assert odcr.ownership == "foreign"


@pytest.mark.covers("SAF-04")
def test_group_of_another_uid_is_not_taken_over(world: World) -> None:
    of(world, "uid-of-another").create_group(name="team", tags={})
    with pytest.raises(ProviderError, match=f"{UID}=uid-of-this"):
        of(world, "uid-of-this").create_group(name="team", tags={})


@pytest.mark.covers("SAF-04")
def test_group_of_another_uid_is_neither_filled_nor_emptied(world: World) -> None:
    other_cluster, this_cluster = of(world, "uid-of-another"), of(world, "uid-of-this")
    kept, other = world.reserve(1), world.reserve(1)
    arn = other_cluster.create_group(name="team", tags={}).arn
    other_cluster.add_to_group(arn, [world.arn(kept)])
    for change, id_ in ((this_cluster.add_to_group, other), (this_cluster.remove_from_group, kept)):
        with pytest.raises(ProviderError, match=f"{UID}=uid-of-this"):
            change(arn, [world.arn(id_)])
    assert other_cluster.group(arn).member_ids == (kept,)


def test_group_of_this_uid_is_changed_and_deleted_whatever_cluster_name_is_given(world: World) -> None:
    """A removal without the identity's ConfigMap knows the UID only, and lists the groups by it."""
    arn = of(world, "uid-of-this").create_group(name="capacity-broker.blue.team", tags={}).arn
    nameless = of(world, "uid-of-this", cluster="")
    assert [group.arn for group in nameless.groups_of("uid-of-this")] == [arn]
    reservation = world.reserve(1)
    nameless.add_to_group(arn, [world.arn(reservation)])
    assert nameless.group(arn).member_ids == (reservation,)
    nameless.delete_group(arn)
    assert nameless.groups_of("uid-of-this") == []


@pytest.mark.covers("SAF-04")
def test_each_cluster_uid_has_its_own_instance_profile_of_a_role(world: World) -> None:
    """Otherwise the profile of one cluster went with the last class of the other."""
    iam = world.client("iam")
    iam.create_role(RoleName="nodes", AssumeRolePolicyDocument="{}")
    this_cluster, other_cluster = of(world, "uid-of-this"), of(world, "uid-of-another")
    own_profile, other_profile = (
        provider.instance_profile(role="nodes", profile="", labels={})
        for provider in (this_cluster, other_cluster)
    )
    assert own_profile != other_profile
    assert [ref.name for ref in this_cluster.instance_profiles()] == [own_profile]
    with pytest.raises(ProviderError, match=f"{UID}.*uid-of-this"):
        this_cluster.delete_instance_profile(ProfileRef(name=other_profile, role="nodes"))
    assert this_cluster.delete_instance_profile(ProfileRef(name=own_profile, role="nodes"))
    assert [ref.name for ref in other_cluster.instance_profiles()] == [other_profile]


@pytest.mark.covers("SAF-04")
def test_instance_profile_of_a_version_without_uids_stays(world: World) -> None:
    """It may be that of another cluster of the same name."""
    world.client("iam").create_role(RoleName="nodes", AssumeRolePolicyDocument="{}")
    name = of(world, "").instance_profile(role="nodes", profile="", labels={})
    this_cluster = of(world, "uid-of-this")
    assert this_cluster.instance_profiles() == []
    with pytest.raises(ProviderError, match="cluster-uid=uid-of-this"):
        this_cluster.delete_instance_profile(ProfileRef(name=name, role="nodes"))


@pytest.mark.covers("SAF-04")
def test_each_cluster_uid_lists_only_its_own_templates(world: World) -> None:
    this_cluster, other_cluster = of(world, "uid-of-this"), of(world, "uid-of-another")
    content = Template(image_id=world.image())
    own_template, other_template = (
        this_cluster.ensure_template(content, owner="gpu"),
        other_cluster.ensure_template(content, owner="gpu"),
    )
    assert own_template.name != other_template.name
    assert [template.name for template in this_cluster.templates()] == [own_template.name]
    assert [template.name for template in other_cluster.templates()] == [other_template.name]


@pytest.mark.covers("SAF-04")
@pytest.mark.parametrize(
    ("carried", "listed", "ownership"),
    [
        ({UID: "uid-of-this"}, True, "owned"),
        ({UID: "uid-of-another"}, False, "foreign"),
        ({}, True, "unproven"),
    ],
    ids=["owned", "foreign", "unproven"],
)
def test_instance_ownership_follows_the_uid(
    world: World, carried: dict[str, str], listed: bool, ownership: str
) -> None:
    reply = world.ec2.run_instances(ImageId=world.image(), InstanceType="m5.large", MinCount=1, MaxCount=1)
    id_ = reply["Instances"][0]["InstanceId"]
    tags = {"capacity-broker.io/cluster": "blue", **carried}
    world.ec2.create_tags(Resources=[id_], Tags=[{"Key": k, "Value": v} for k, v in tags.items()])
    provider = of(world, "uid-of-this")
    assert [instance.id for instance in provider.instances()] == ([id_] if listed else [])
    assert [instance.ownership for instance in provider.instances([id_])] == [ownership]
