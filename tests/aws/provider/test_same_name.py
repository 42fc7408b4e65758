"""Resources of another cluster of the same name are never changed, ended or used: its UID differs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from providers.aws import AwsProvider
from providers.launch import Template
from providers.model import ErrorClass, OdcrRequest, ProviderError

from .world import P5, ZONE, World

UID = "capacity-broker.io/cluster-uid"


def of(world: World, uid: str) -> AwsProvider:
    provider = world.provider()
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
    (found,) = world.aws.reservations()
    assert (found.total, found.state) == (1, "active")


@pytest.mark.covers("SAF-04")
@pytest.mark.parametrize("change", CHANGES)
def test_own_reservation_carries_the_uid_and_can_be_changed(world: World, change: str) -> None:
    ours = of(world, "uid-of-this")
    id_ = reserved(ours)
    (found,) = ours.reservations()
    assert (found.tags[UID], found.ownership) == ("uid-of-this", "ours")
    CHANGES[change](ours, id_)
    (found,) = of(world, "uid-of-another").reservations()
    assert found.ownership == "foreign"


@pytest.mark.covers("SAF-04")
def test_group_of_another_uid_is_not_taken_over(world: World) -> None:
    of(world, "uid-of-another").create_group(name="team", tags={})
    with pytest.raises(ProviderError, match=f"{UID}=uid-of-this"):
        of(world, "uid-of-this").create_group(name="team", tags={})


@pytest.mark.covers("SAF-04")
def test_group_of_another_uid_is_neither_filled_nor_emptied(world: World) -> None:
    theirs, ours = of(world, "uid-of-another"), of(world, "uid-of-this")
    kept, other = world.reserve(1), world.reserve(1)
    arn = theirs.create_group(name="team", tags={}).arn
    theirs.add_to_group(arn, [world.arn(kept)])
    for change, id_ in ((ours.add_to_group, other), (ours.remove_from_group, kept)):
        with pytest.raises(ProviderError, match=f"{UID}=uid-of-this"):
            change(arn, [world.arn(id_)])
    assert theirs.group(arn).member_ids == (kept,)


@pytest.mark.covers("SAF-04")
def test_templates_of_two_uids_are_two_and_each_sees_its_own(world: World) -> None:
    ours, theirs = of(world, "uid-of-this"), of(world, "uid-of-another")
    content = Template(image_id=world.image())
    mine, other = ours.ensure_template(content, owner="gpu"), theirs.ensure_template(content, owner="gpu")
    assert mine.name != other.name
    assert [each.name for each in ours.templates()] == [mine.name]
    assert [each.name for each in theirs.templates()] == [other.name]


@pytest.mark.covers("SAF-04")
@pytest.mark.parametrize(
    ("carried", "listed", "ownership"),
    [
        ({UID: "uid-of-this"}, True, "ours"),
        ({UID: "uid-of-another"}, False, "foreign"),
        ({}, True, "unproven"),
    ],
    ids=["ours", "foreign", "unproven"],
)
def test_instances_are_judged_by_their_uid(
    world: World, carried: dict[str, str], listed: bool, ownership: str
) -> None:
    made = world.ec2.run_instances(ImageId=world.image(), InstanceType="m5.large", MinCount=1, MaxCount=1)
    id_ = made["Instances"][0]["InstanceId"]
    given = {"capacity-broker.io/cluster": "blue", **carried}
    world.ec2.create_tags(Resources=[id_], Tags=[{"Key": k, "Value": v} for k, v in given.items()])
    provider = of(world, "uid-of-this")
    assert [each.id for each in provider.instances()] == ([id_] if listed else [])
    assert [each.ownership for each in provider.instances([id_])] == [ownership]
