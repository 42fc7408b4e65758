"""Scripted failures: refused whole, refused a pool at a time, done with the reply lost; of every service."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import HTTPClientError

from tests.aws.local.kit import (
    ONLY,
    OTHER_ZONE,
    TYPE,
    ZONE,
    Aws,
    codes,
    fleet,
    free,
    launched,
    pool,
    refused,
    run,
    seen,
    template,
    to_id,
)


def test_a_call_refused_whole_so_many_times(aws: Aws, ec2: Any) -> None:
    aws.control.fault(action="CreateFleet", code="RequestLimitExceeded", message="Slow down.", times=2)
    config = pool(template(ec2))
    for _ in range(2):
        with refused("RequestLimitExceeded", status=503, text="Slow down."):
            fleet(ec2, config)
    assert len(launched(fleet(ec2, config))) == 1
    assert [fault["hits"] for fault in aws.control.faults()] == [2]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("RequestLimitExceeded", 503),
        ("InsufficientInstanceCapacity", 500),
        ("InternalError", 500),
        ("UnauthorizedOperation", 403),
        ("VcpuLimitExceeded", 400),
        ("ReservationCapacityExceeded", 400),
    ],
)
def test_each_code_has_its_status(aws: Aws, ec2: Any, code: str, status: int) -> None:
    aws.control.fault(action="RunInstances", code=code)
    with refused(code, status=status):
        run(ec2)
    aws.control.fault(action="RunInstances", code=code, status=418)
    with refused(code, status=418):
        run(ec2)


def test_one_pool_is_refused_for_ever_and_the_next_launches(aws: Aws, ec2: Any) -> None:
    here = {"InstanceType": TYPE, "AvailabilityZone": ZONE}
    there = {"InstanceType": TYPE, "AvailabilityZone": OTHER_ZONE}
    fault = aws.control.fault(
        action="CreateFleet", stage="launch", code="RequestLimitExceeded", match=here, times=-1
    )
    template_id = template(ec2)
    for _ in range(3):
        answer = fleet(ec2, pool(template_id, here, there))
        assert [entry["AvailabilityZone"] for entry in answer["Instances"]] == [OTHER_ZONE]
        (error,) = answer["Errors"]
        assert error["ErrorCode"] == "RequestLimitExceeded"
        assert error["LaunchTemplateAndOverrides"]["Overrides"] == here
    aws.control.clear_faults(fault)
    assert codes(fleet(ec2, pool(template_id, here, there))) == []


@pytest.mark.parametrize(
    "match",
    [
        {"CapacityType": "reserved"},
        {"CapacityReservationId": None},
        {"LaunchTemplateId": None},
        {"InstanceType": ["c5.large", TYPE]},
    ],
)
def test_facts_that_match_a_launch(aws: Aws, ec2: Any, match: dict[str, Any]) -> None:
    reservation_id = aws.reserve(ec2)
    template_id = template(ec2, CapacityReservationSpecification=to_id(reservation_id, **ONLY))
    known = {"CapacityReservationId": reservation_id, "LaunchTemplateId": template_id}
    match = {key: known.get(key) if value is None else value for key, value in match.items()}
    aws.control.fault(action="CreateFleet", stage="launch", code="Unsupported", match=match)
    aws.control.fault(action="CreateFleet", stage="launch", code="Never", match={"CapacityType": "spot"})
    assert codes(fleet(ec2, pool(template_id))) == ["Unsupported"]


def test_a_lost_reply_has_done_its_work_once(aws: Aws, ec2: Any) -> None:
    aws.control.fault(action="CreateFleet", stage="response")
    config = pool(template(ec2))
    with pytest.raises(HTTPClientError):
        fleet(ec2, config, ClientToken="once")
    assert len(ec2.describe_instances()["Reservations"]) == 1
    assert len(launched(fleet(ec2, config, ClientToken="once"))) == 1
    assert len(ec2.describe_instances()["Reservations"]) == 1


def test_a_reply_lost_behind_a_server_error(aws: Aws, ec2: Any) -> None:
    aws.control.fault(action="CreateCapacityReservation", stage="response", code="InternalError")
    with refused("InternalError", status=500):
        aws.reserve(ec2)
    assert len(ec2.describe_capacity_reservations()["CapacityReservations"]) == 1


def test_faults_of_any_action_and_of_any_request_field(aws: Aws, ec2: Any) -> None:
    first, second = aws.reserve(ec2), aws.reserve(ec2)
    aws.control.fault(action="*", code="InternalError", match={"CapacityReservationIds": second}, times=-1)
    assert free(ec2, first) == 1
    with refused("InternalError", status=500):
        seen(ec2, second)


def test_a_slow_call(aws: Aws, ec2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("local.aws.faults.time.sleep", slept.append)
    aws.control.fault(action="DescribeCapacityReservations", delay_s=7.5)
    ec2.describe_capacity_reservations()
    assert slept == [7.5]


@pytest.mark.parametrize(
    ("service", "action", "call", "parameters"),
    [
        ("resource-groups", "ListGroupResources", "list_group_resources", {"Group": "pool"}),
        ("ssm", "GetParameter", "get_parameter", {"Name": "/aws/service/x"}),
        ("iam", "GetInstanceProfile", "get_instance_profile", {"InstanceProfileName": "node"}),
        ("sqs", "ListQueues", "list_queues", {}),
    ],
)
def test_other_services_can_be_refused_and_are_counted(
    aws: Aws, service: str, action: str, call: str, parameters: dict[str, Any]
) -> None:
    client = aws.client(service)
    aws.control.clear_calls()
    aws.control.fault(action=action, code="AccessDeniedException", status=403, message="No <way>.")
    with refused("AccessDeniedException", status=403, text="No <way>."):
        getattr(client, call)(**parameters)
    aws.control.fault(action=action, stage="response")
    with pytest.raises(HTTPClientError):
        getattr(client, call)(**parameters)
    assert aws.control.calls() == {action: 2}
    assert [entry["params"].keys() >= parameters.keys() for entry in aws.control.log(action)] == [True, True]
