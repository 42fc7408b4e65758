"""The health of instances: failed checks, scheduled events, pages, and reboots."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from local.aws.control import ControlError
from tests.aws.local.kit import Aws, refused, run

pytestmark = pytest.mark.covers("FUL-20")
WHEN = datetime(2030, 1, 1, tzinfo=UTC)


def statuses(ec2: Any, *filters: tuple[str, str], **more: Any) -> list[Any]:
    chosen = [{"Name": name, "Values": [value]} for name, value in filters]
    return list(ec2.describe_instance_status(Filters=chosen, **more)["InstanceStatuses"])


def test_failed_check_is_shown_with_its_begin_until_it_passes(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    broken, well = (instance["InstanceId"] for instance in run(ec2, 2))
    aws.control.impair(broken, "system")
    (status,) = statuses(ec2, ("system-status.status", "impaired"))
    assert status["InstanceId"] == broken
    assert status["SystemStatus"]["Status"] == "impaired"
    assert status["SystemStatus"]["Details"] == [
        {"Name": "reachability", "Status": "failed", "ImpairedSince": WHEN}
    ]
    assert status["InstanceStatus"]["Status"] == "ok"
    assert {status["InstanceId"] for status in statuses(ec2)} == {broken, well}
    assert not statuses(ec2, ("instance-status.status", "impaired"))
    aws.control.impair(broken, "system", over=True)
    assert not statuses(ec2, ("system-status.status", "impaired"))


def test_event_is_scheduled_and_completed(aws: Aws, ec2: Any) -> None:
    (instance,) = run(ec2)
    aws.control.schedule_event(instance["InstanceId"], "instance-retirement", in_s=600)
    (status,) = statuses(ec2, ("event.code", "instance-retirement"))
    (event,) = status["Events"]
    assert (event["Code"], event["Description"][:12]) == ("instance-retirement", "The instance")
    aws.control.schedule_event(instance["InstanceId"], "instance-retirement", over=True)
    (status,) = statuses(ec2, ("event.code", "instance-retirement"))
    assert status["Events"][0]["Description"].startswith("[Completed] ")
    assert not statuses(ec2, ("event.code", "system-reboot"))


def test_statuses_come_in_pages(aws: Aws, ec2: Any) -> None:
    ids = {instance["InstanceId"] for instance in run(ec2, 7)}
    first = ec2.describe_instance_status(MaxResults=5)
    assert len(first["InstanceStatuses"]) == 5
    rest = ec2.describe_instance_status(MaxResults=5, NextToken=first["NextToken"])
    listed = {item["InstanceId"] for page in (first, rest) for item in page["InstanceStatuses"]}
    assert listed == ids and "NextToken" not in rest
    with refused("InvalidParameterValue"):
        ec2.describe_instance_status(MaxResults=4)
    with refused("InvalidParameterCombination"):
        ec2.describe_instance_status(MaxResults=5, InstanceIds=[*ids])


def test_only_running_instances_have_a_status_by_default(aws: Aws, ec2: Any) -> None:
    stopped, running = (instance["InstanceId"] for instance in run(ec2, 2))
    aws.control.impair(stopped)
    ec2.stop_instances(InstanceIds=[stopped])
    assert [item["InstanceId"] for item in statuses(ec2)] == [running]
    (status,) = statuses(ec2, InstanceIds=[stopped], IncludeAllInstances=True)
    assert status["InstanceStatus"]["Status"] == "not-applicable"


@pytest.mark.covers("FUL-21")
def test_reboots_are_counted_and_a_stopped_instance_is_not_rebooted(aws: Aws, ec2: Any) -> None:
    (instance,) = run(ec2)
    id_ = instance["InstanceId"]
    assert aws.control.reboots(id_) == 0
    ec2.reboot_instances(InstanceIds=[id_])
    assert aws.control.reboots(id_) == 1
    ec2.stop_instances(InstanceIds=[id_])
    with refused("IncorrectInstanceState"):
        ec2.reboot_instances(InstanceIds=[id_])
    assert aws.control.reboots(id_) == 1


def test_invalid_control_call_names_its_field(aws: Aws, ec2: Any) -> None:
    (instance,) = run(ec2)
    with pytest.raises(ControlError, match="instance_id: there is no instance 'i-0'"):
        aws.control.impair("i-0")
    with pytest.raises(ControlError, match="event: 'reboot' is none of instance-reboot"):
        aws.control.schedule_event(instance["InstanceId"], "reboot")
    with pytest.raises(ControlError, match="check: 'disk' is invalid"):
        aws.control.impair(instance["InstanceId"], "disk")
