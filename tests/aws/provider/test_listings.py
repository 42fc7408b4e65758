"""Repeated long listings show EC2's present state, and decode only new parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.aws import instances, reservations
from providers.aws.listings import items

from .world import World


def test_second_listing_shows_changed_and_unchanged_items(world: World) -> None:
    kept, resized = world.reserve(2), world.reserve(3)
    first = {odcr.id: odcr for odcr in world.aws.reservations()}
    world.ec2.modify_capacity_reservation(CapacityReservationId=resized, InstanceCount=5)
    world.ec2.create_tags(Resources=[kept], Tags=[{"Key": "team", "Value": "ml"}])
    created = world.reserve(1)
    second = {odcr.id: odcr for odcr in world.aws.reservations()}
    assert set(second) == {kept, resized, created}
    assert (second[resized].total, second[resized].available) == (5, 5)
    assert dict(second[kept].tags) == {"team": "ml"} and not first[kept].tags
    assert world.aws.reservations() == sorted(second.values(), key=lambda odcr: odcr.id)


def test_unchanged_items_are_not_decoded_again(world: World) -> None:
    for _ in range(3):
        world.reserve(1)
    decoded: list[str] = []
    aws = world.provider()._aws
    listing = reservations.listing(aws)
    plain, listing._decode = listing._decode, lambda item: decoded.append(item) or plain(item)  # type: ignore[func-returns-value]
    first = listing.read()
    assert len(decoded) == 3
    assert listing.read() == first
    assert len(decoded) == 3


def test_page_that_changed_is_read_beside_pages_that_did_not(world: World) -> None:
    ids = [world.reserve(1) for _ in range(5)]
    listing = reservations.listing(world.provider()._aws)
    for changed in (None, *ids):
        if changed is not None:
            world.ec2.modify_capacity_reservation(CapacityReservationId=changed, InstanceCount=3)
        listed = {odcr.id: odcr.total for odcr in listing.read(MaxResults=2)}
        assert listed == {odcr.id: odcr.total for odcr in reservations.listing(world.provider()._aws).read()}
    assert {*listed.values()} == {3}


def test_listed_instances_are_those_that_the_sdk_decodes(world: World) -> None:
    image = world.image()
    launched = world.ec2.run_instances(
        ImageId=image,
        MinCount=3,
        MaxCount=3,
        InstanceType="m5.large",
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [
                    {"Key": "capacity-broker.io/cluster", "Value": "blue"},
                    {"Key": "odd <item>", "Value": "</reservationSet>"},
                ],
            }
        ],
    )["Instances"]
    ids = [instance["InstanceId"] for instance in launched]
    listed = world.aws.instances()
    assert [i.id for i in listed] == sorted(ids)
    assert listed == world.aws.instances(ids) == world.aws.instances()
    world.ec2.terminate_instances(InstanceIds=ids[:1])
    assert {i.id: i.alive for i in world.aws.instances()} == {id_: id_ != ids[0] for id_ in ids}


def test_a_call_that_is_no_listing_is_left_alone(world: World) -> None:
    world.reserve(1)
    world.aws.reservations()
    assert len(world.aws._aws.ec2.describe_capacity_reservations()["CapacityReservations"]) == 1


@pytest.mark.parametrize("unread", [[], instances.UNREAD])
@given(depths=st.lists(st.integers(0, 3), max_size=5))
def test_outermost_items_with_any_content(unread: list[str], depths: list[int]) -> None:
    def nested(depth: int) -> bytes:
        inner = b"<set>" + nested(depth - 1) * 2 + b"</set>" if depth else b"x"
        return b"<item>" + inner + b"</item>"

    listed = [nested(depth) for depth in depths]
    assert [*items(b"\n  ".join(listed))] == listed
