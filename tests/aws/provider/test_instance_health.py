"""The problems that EC2 reports about instances, and reboots."""

from __future__ import annotations

from typing import Any

import pytest

from providers.aws import instance_health
from providers.errors import ErrorClass, ProviderError

from .world import World

pytestmark = pytest.mark.covers("FUL-20")


def launched(world: World, count: int) -> list[str]:
    reply = world.ec2.run_instances(
        ImageId=world.image(), InstanceType="m5.large", MinCount=count, MaxCount=count
    )
    return [instance["InstanceId"] for instance in reply["Instances"]]


def test_well_instances_have_no_problem(world: World) -> None:
    launched(world, 2)
    assert world.aws.problems() == []
    assert world.control.calls()["DescribeInstanceStatus"] == 3


def test_failed_checks_and_events_are_problems(world: World) -> None:
    broken, retired, _ = launched(world, 3)
    world.control.impair(broken, "instance")
    world.control.impair(broken, "system")
    world.control.schedule_event(retired, "instance-retirement", in_s=600)
    world.control.schedule_event(retired, "system-reboot")
    world.control.schedule_event(retired, "system-reboot", over=True)
    problems = {(problem.id, problem.kind): problem for problem in world.aws.problems()}
    assert problems.keys() == {(broken, "instance"), (broken, "system"), (retired, "event")}
    assert problems[broken, "system"].message == "EC2's system status check fails (reachability)"
    assert problems[broken, "system"].since is not None
    event = problems[retired, "event"]
    assert (event.code, event.since) == ("instance-retirement", None)
    assert event.message.startswith("EC2 schedules instance-retirement at 20")


def test_all_pages_are_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_health, "PAGE", 5)
    ids = launched(world, 7)
    for id_ in ids:
        world.control.impair(id_)
    assert [problem.id for problem in world.aws.problems()] == sorted(ids)
    assert world.control.calls()["DescribeInstanceStatus"] == 4


@pytest.mark.covers("FUL-21")
def test_reboot_is_one_call(world: World) -> None:
    (id_,) = launched(world, 1)
    world.aws.reboot(id_)
    assert world.control.reboots(id_) == 1
    with pytest.raises(ProviderError) as unknown:
        world.aws.reboot("i-0123456789abcdef0")
    assert unknown.value.class_ is ErrorClass.NOT_FOUND


@pytest.mark.covers("FUL-21")
@pytest.mark.parametrize(
    "fault",
    [{"stage": "response"}, {"stage": "response", "code": "InternalError", "status": 500}],
    ids=["no-answer", "error"],
)
def test_reboot_with_a_lost_answer_is_not_repeated(world: World, fault: dict[str, Any]) -> None:
    (id_,) = launched(world, 1)
    world.control.fault(action="RebootInstances", **fault)
    with pytest.raises(ProviderError) as lost:
        world.aws.reboot(id_)
    assert lost.value.lost
    assert world.control.reboots(id_) == 1


@pytest.mark.covers("FUL-21")
def test_throttled_reboot_is_repeated(world: World) -> None:
    (id_,) = launched(world, 1)
    world.control.fault(action="RebootInstances", code="RequestLimitExceeded", status=503, times=2)
    world.aws.reboot(id_)
    assert world.control.reboots(id_) == 1
