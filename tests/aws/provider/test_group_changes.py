"""Groups of reservations made, filled, emptied and deleted: only the broker's own, and never twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from providers.errors import ErrorClass, ProviderError
from providers.launch import ReservationTarget

from .world import POOL, World

TAGS = {"capacity-broker.io/reservation": "ml/training", "cost-center": "42"}
NAME = "ml--training"


def groups(world: World) -> list[str]:
    """Resource Groups' own list."""
    return [entry["Name"] for entry in world.client("resource-groups").list_groups()["Groups"]]


def members(world: World, arn: str) -> set[str]:
    return set(world.aws.group(arn).member_ids)


def create_group(world: World, *reservations: str) -> str:
    arn = world.aws.create_group(name=NAME, tags=TAGS).arn
    if reservations:
        world.aws.add_to_group(arn, [world.arn(reservation) for reservation in reservations])
    world.control.clear_calls()
    return arn


def test_a_group_is_made_with_its_tags_and_launches_may_target_it(world: World) -> None:
    cr = world.reserve(1)
    group = world.aws.create_group(name=NAME, tags=TAGS)
    world.aws.add_to_group(group.arn, [world.arn(cr)])
    client = world.client("resource-groups")
    configuration = client.get_group_configuration(Group=NAME)["GroupConfiguration"]["Configuration"]
    assert configuration == POOL
    assert client.get_tags(Arn=group.arn)["Tags"] == {**TAGS, "capacity-broker.io/cluster": "blue"}
    (instance,) = world.launch(
        ReservationTarget(preference="capacity-reservations-only", group_arn=group.arn)
    ).instances
    assert instance.reservation_id == cr


@pytest.mark.parametrize(("code", "status"), [(None, None), ("InternalServerErrorException", 500)])
def test_group_is_made_once_despite_any_lost_reply(
    world: World, code: str | None, status: int | None
) -> None:
    world.control.fault(action="CreateGroup", stage="response", code=code, status=status)
    first = world.aws.create_group(name=NAME, tags=TAGS)
    assert world.provider().create_group(name=NAME, tags=TAGS) == first
    assert groups(world) == [NAME]


def test_a_group_that_is_there_is_given_with_its_members_and_nothing_is_written(world: World) -> None:
    cr = world.reserve(1)
    arn = create_group(world, cr)
    assert world.aws.create_group(name=NAME, tags=TAGS).member_ids == (cr,)
    assert not {"CreateGroup", "PutGroupConfiguration", "GroupResources"} & set(world.control.calls())
    assert arn.endswith(f"group/{NAME}")


def test_a_changed_cost_label_is_no_other_group(world: World) -> None:
    arn = create_group(world)
    assert world.aws.create_group(name=NAME, tags={**TAGS, "cost-center": "43"}).arn == arn


@pytest.mark.parametrize(
    ("cluster", "tags"),
    [("green", TAGS), ("blue", {"capacity-broker.io/reservation": "ml/other"})],
    ids=["another-cluster", "another-reservation"],
)
def test_foreign_group_of_that_name_is_neither_used_nor_deleted(
    world: World, cluster: str, tags: dict[str, str]
) -> None:
    arn = world.provider(cluster=cluster).create_group(name=NAME, tags=tags).arn
    with pytest.raises(ProviderError, match="ForeignGroup") as caught:
        world.aws.create_group(name=NAME, tags=TAGS)
    assert caught.value.class_ is ErrorClass.CONFIGURATION and arn in str(caught.value)
    assert "DeleteGroup" not in world.control.calls()


def test_terraforms_group_is_neither_used_nor_deleted(world: World) -> None:
    arn = world.group(world.reserve(1), name=NAME)
    for change in (
        lambda: world.aws.create_group(name=NAME, tags=TAGS),
        lambda: world.aws.delete_group(arn),
    ):
        with pytest.raises(ProviderError, match="ForeignGroup"):
            change()
    assert groups(world) == [NAME]


def test_a_pool_configuration_taken_off_by_hand_is_put_back(world: World) -> None:
    arn = create_group(world)
    client = world.client("resource-groups")
    client.put_group_configuration(Group=NAME, Configuration=[POOL[1]])
    world.aws.create_group(name=NAME, tags=TAGS)
    world.aws.add_to_group(arn, [world.arn(world.reserve(1))])
    assert len(members(world, arn)) == 1


def test_refused_create_is_reported(world: World) -> None:
    for code, class_ in (
        ("BadRequestException", ErrorClass.CONFIGURATION),
        ("ForbiddenException", ErrorClass.PERMISSION),
        ("TooManyRequestsException", ErrorClass.THROTTLING),
    ):
        fault = world.control.fault(action="CreateGroup", code=code, times=-1)
        with pytest.raises(ProviderError, match=code) as caught:
            world.aws.create_group(name=NAME, tags=TAGS)
        assert caught.value.class_ is class_
        world.control.clear_faults(fault)
    assert groups(world) == []


def test_members_join_by_tens_and_a_second_time_changes_nothing(world: World) -> None:
    crs = [world.reserve(1) for _ in range(53)]
    arn = create_group(world)
    for _ in range(2):
        world.aws.add_to_group(arn, [world.arn(cr) for cr in crs])
        assert members(world, arn) == set(crs), "two pages of fifty"
    sizes = [len(call["params"]["ResourceArns"]) for call in world.control.log("GroupResources")]
    assert sizes == [10, 10, 10, 10, 10, 3] * 2
    world.aws.remove_from_group(arn, [world.arn(cr) for cr in crs[1:]])
    assert members(world, arn) == {crs[0]}


def test_permitted_members_join_and_the_others_are_named(world: World) -> None:
    good, ended = world.reserve(1), world.reserve(1)
    gone = world.arn(ended)
    world.ec2.cancel_capacity_reservation(CapacityReservationId=ended)
    arn = create_group(world)
    bucket = "arn:aws:s3:us-east-1:123456789012:capacity-reservation"
    with pytest.raises(ProviderError) as caught:
        world.aws.add_to_group(arn, [world.arn(good), gone, bucket])
    assert members(world, arn) == {good}
    assert caught.value.operation == "GroupResources"
    for named in ("2 of 3", gone, bucket):
        assert named in str(caught.value)


def test_another_accounts_shared_reservation_joins(world: World) -> None:
    shared = world.shared()
    arn = create_group(world, shared)
    assert members(world, arn) == {shared}
    (instance,) = world.launch(
        ReservationTarget(preference="capacity-reservations-only", group_arn=arn)
    ).instances
    assert instance.reservation_id == shared


@pytest.mark.parametrize("method", ["add_to_group", "remove_from_group"])
def test_a_lost_reply_about_members_is_no_trouble(world: World, method: str) -> None:
    cr = world.reserve(1)
    arn = create_group(world, *([cr] if method == "remove_from_group" else []))
    world.control.fault(action="*", stage="response", match={"ResourceArns": [world.arn(cr)]})
    getattr(world.aws, method)(arn, [world.arn(cr)])
    assert members(world, arn) == ({cr} if method == "add_to_group" else set())


def test_leaving_twice_and_leaving_a_group_that_is_gone_are_success(world: World) -> None:
    cr = world.reserve(1)
    arn, odcr = create_group(world, cr), world.arn(cr)
    for _ in range(2):
        world.aws.remove_from_group(arn, [odcr])
        assert members(world, arn) == set()
    world.aws.delete_group(arn)
    world.aws.remove_from_group(arn, [odcr])


def test_joining_a_deleted_group_is_reported(world: World) -> None:
    arn = create_group(world)
    world.aws.delete_group(arn)
    with pytest.raises(ProviderError) as caught:
        world.aws.add_to_group(arn, [world.arn(world.reserve(1))])
    assert caught.value.class_ is ErrorClass.NOT_FOUND


def test_adding_no_members_makes_no_call(world: World) -> None:
    arn = create_group(world)
    world.aws.add_to_group(arn, [])
    world.aws.remove_from_group(arn, [])
    assert world.control.calls() == {}


@pytest.mark.parametrize("stage", ["request", "response"])
def test_a_group_is_deleted_once_and_its_members_stay(world: World, stage: str) -> None:
    cr = world.reserve(1)
    arn = create_group(world, cr)
    world.control.fault(action="DeleteGroup", stage=stage, code="InternalServerErrorException", status=500)
    world.aws.delete_group(arn)
    world.aws.delete_group(arn)
    assert groups(world) == []
    assert world.free(cr) == 1


@pytest.mark.parametrize("member", [True, False])
def test_result_of_a_refusal_is_read_from_the_group(world: World, member: bool) -> None:
    """AWS documents no codes of single members' refusals: removing a non-member succeeds."""
    cr = world.reserve(1)
    arn, odcr = create_group(world, *([cr] if member else [])), world.arn(cr)
    refused = {"ResourceArn": odcr, "ErrorCode": "RESOURCE_BUSY", "ErrorMessage": "try later"}

    def refuse(**_: object) -> Any:
        return SimpleNamespace(status_code=200), {"Succeeded": [], "Failed": [refused], "Pending": []}

    for operation in ("GroupResources", "UngroupResources"):
        world.aws._aws.groups.meta.events.register_first(f"before-call.resource-groups.{operation}", refuse)
    works, fails = world.aws.add_to_group, world.aws.remove_from_group
    if not member:
        works, fails = fails, works
    works(arn, [odcr])
    with pytest.raises(ProviderError, match=r"1 of 1.*try later") as caught:
        fails(arn, [odcr])
    assert caught.value.code == "RESOURCE_BUSY"
