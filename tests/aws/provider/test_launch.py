"""Launches as EC2 sees them: into reservations, refused ones, repeated ones."""

from __future__ import annotations

import pytest

from providers.errors import ErrorClass, ProviderError
from providers.launch import ReservationTarget

from .world import P5, World


@pytest.mark.covers("KRP-05", "KRP-33")
@pytest.mark.parametrize("criteria", ["targeted", "open"])
def test_id_target_launches_into_that_reservation_with_any_criteria(world: World, criteria: str) -> None:
    cr = world.reserve(2, criteria=criteria)
    result = world.launch(ReservationTarget(reservation_id=cr), count=2)
    assert [i.reservation_id for i in result.instances] == [cr, cr]
    assert result.errors == ()
    assert world.free(cr) == 0
    assert {i["CapacityReservationId"] for i in world.running()} == {cr}


@pytest.mark.covers("KRP-17")
def test_full_reservation_is_reported_as_full_and_nothing_spills(world: World) -> None:
    cr = world.reserve(1)
    world.launch(ReservationTarget(reservation_id=cr))
    result = world.launch(ReservationTarget(reservation_id=cr), token="t-2")
    assert result.instances == ()
    (error,) = result.errors
    assert (error.code, error.class_) == ("ReservationCapacityExceeded", ErrorClass.RESERVATION_FULL)
    assert (error.instance_type, error.zone) == (P5, "us-east-1a")
    assert len(world.running()) == 1


@pytest.mark.covers("KRP-06")
def test_a_group_gives_its_members_and_fails_instead_of_spilling(world: World) -> None:
    crs = [world.reserve(1), world.reserve(1)]
    arn = world.group(*crs)
    result = world.launch(ReservationTarget(group_arn=arn), count=3)
    assert sorted(i.reservation_id for i in result.instances) == sorted(crs)
    assert [e.class_ for e in result.errors] in (
        [ErrorClass.RESERVATION_FULL],
        [ErrorClass.CAPACITY],
    )
    assert len(world.running()) == 2


@pytest.mark.covers("KRP-07")
def test_open_takes_open_reservations_and_none_leaves_them(world: World) -> None:
    cr = world.reserve(2, criteria="open")
    (plain,) = world.launch(ReservationTarget(preference="none")).instances
    assert plain.reservation_id == ""
    assert world.free(cr) == 2
    (matched,) = world.launch(ReservationTarget(preference="open"), token="t-2").instances
    assert matched.reservation_id == cr
    assert world.free(cr) == 1


@pytest.mark.covers("KRP-33")
def test_spill_is_seen_in_ec2s_description(world: World) -> None:
    cr = world.reserve(1, criteria="open")
    result = world.launch(ReservationTarget(preference="open"), count=2)
    assert sorted(i.reservation_id for i in result.instances) == ["", cr]


@pytest.mark.covers("KRP-05", "KRP-18")
def test_an_unknown_or_cancelled_reservation_is_gone(world: World) -> None:
    cr = world.reserve(1)
    world.ec2.cancel_capacity_reservation(CapacityReservationId=cr)
    for n, target in enumerate((cr, "cr-0123456789abcdef0")):
        try:
            classes = {
                e.class_
                for e in world.launch(ReservationTarget(reservation_id=target), token=f"t-{n}").errors
            }
        except ProviderError as error:
            classes = {error.class_}
        assert classes == {ErrorClass.RESERVATION_GONE}
    assert world.running() == []


@pytest.mark.covers("KRP-34")
@pytest.mark.parametrize(
    ("code", "class_"),
    [
        ("InsufficientInstanceCapacity", ErrorClass.CAPACITY),
        ("VcpuLimitExceeded", ErrorClass.QUOTA),
        ("InsufficientFreeAddressesInSubnet", ErrorClass.SUBNET),
        ("RequestLimitExceeded", ErrorClass.THROTTLING),
        ("Unsupported", ErrorClass.UNSUPPORTED),
    ],
)
def test_refusal_of_a_pool_is_classed_inside_the_response(
    world: World, code: str, class_: ErrorClass
) -> None:
    world.control.fault(action="CreateFleet", stage="launch", code=code, times=-1)
    result = world.launch()
    assert result.instances == ()
    assert {(e.code, e.class_) for e in result.errors} == {(code, class_)}
    assert world.control.calls()["CreateFleet"] == 1


@pytest.mark.covers("KRP-34")
def test_a_whole_call_that_is_out_of_capacity_is_not_repeated(world: World) -> None:
    world.control.fault(action="CreateFleet", code="InsufficientInstanceCapacity", status=500, times=-1)
    with pytest.raises(ProviderError) as caught:
        world.launch()
    assert caught.value.class_ is ErrorClass.CAPACITY
    assert caught.value.request_id
    assert world.control.calls()["CreateFleet"] == 1


def test_a_throttled_call_is_repeated_until_it_goes(world: World) -> None:
    world.control.fault(action="CreateFleet", code="RequestLimitExceeded", status=503, times=2)
    assert len(world.launch().instances) == 1
    assert world.control.calls()["CreateFleet"] == 3
    assert world.clock.slept


@pytest.mark.covers("KRP-25")
def test_a_lost_reply_launches_once(world: World) -> None:
    cr = world.reserve(4)
    world.control.fault(action="CreateFleet", stage="response", times=1)
    result = world.launch(ReservationTarget(reservation_id=cr), count=2)
    assert len(result.instances) == 2
    assert len(world.running()) == 2
    assert world.free(cr) == 2
    assert world.control.calls()["CreateFleet"] == 2


@pytest.mark.covers("KRP-25")
def test_the_same_token_after_a_restart_gives_the_same_instances(world: World) -> None:
    cr = world.reserve(4)
    first = world.launch(ReservationTarget(reservation_id=cr), count=2)
    world.aws = world.provider()
    again = world.launch(ReservationTarget(reservation_id=cr), count=2)
    assert {i.id for i in again.instances} == {i.id for i in first.instances}
    assert len(world.running()) == 2


def test_a_token_with_other_parameters_is_a_mistake_of_the_request(world: World) -> None:
    world.launch(count=1)
    with pytest.raises(ProviderError) as caught:
        world.launch(count=2)
    assert caught.value.code == "IdempotentParameterMismatch"
    assert caught.value.class_ is ErrorClass.CONFIGURATION


@pytest.mark.covers("KRP-21")
def test_equal_launches_are_one_call(world: World) -> None:
    cr = world.reserve(50)
    result = world.launch(ReservationTarget(reservation_id=cr), count=50)
    assert len(result.instances) == 50
    assert world.control.calls()["CreateFleet"] == 1


def test_priorities_choose_the_pool(world: World) -> None:
    pools = (world.pool("m5.large", priority=2), world.pool("c5.large", zone="us-east-1b", priority=1))
    (instance,) = world.launch(pools=pools).instances
    assert (instance.instance_type, instance.zone) == ("c5.large", "us-east-1b")


@pytest.mark.covers("KRP-22")
def test_all_or_nothing_leaves_nothing(world: World) -> None:
    cr = world.reserve(3)
    result = world.launch(ReservationTarget(reservation_id=cr), count=4, minimum=4)
    assert result.instances == ()
    assert result.errors
    assert world.running() == []
    assert world.free(cr) == 3


@pytest.mark.covers("KRP-26")
def test_our_instances_are_tagged_and_karpenter_does_not_see_them(world: World) -> None:
    world.launch(tags={"karpenter.k8s.aws/ec2nodeclass": "gpu"})
    (instance,) = world.running()
    keys = {tag["Key"] for tag in instance["Tags"]}
    assert {"capacity-broker.io/cluster", "karpenter.sh/nodepool"} <= keys
    assert "eks:eks-cluster-name" not in keys


def test_an_instance_that_is_not_described_yet_is_waited_for(world: World) -> None:
    cr = world.reserve(1)
    ref = ReservationTarget(reservation_id=cr)
    world.template(ref)
    slept = world.clock.sleep

    def sleep_and_catch_up(seconds: float, /) -> None:
        slept(seconds)
        world.control.lag(0)

    world.control.lag(3600)
    world.clock.sleep = sleep_and_catch_up  # type: ignore[method-assign]
    aws = world.provider()
    world.aws = aws
    result = world.launch(ref)
    assert [i.reservation_id for i in result.instances] == [cr]
    assert world.clock.slept


@pytest.mark.covers("KRP-15")
def test_a_capacity_block_is_launched_as_one(world: World) -> None:
    block = world.control.reservation(
        InstanceType=P5,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-1a",
        InstanceCount=2,
        InstanceMatchCriteria="targeted",
        reservation_type="capacity-block",
    )
    cr = str(block["CapacityReservationId"])
    result = world.launch(ReservationTarget(reservation_id=cr), count=2, market="capacity-block")
    assert [(i.reservation_id, i.lifecycle) for i in result.instances] == [(cr, "capacity-block")] * 2
