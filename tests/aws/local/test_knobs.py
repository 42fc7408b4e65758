"""The knobs: finite pools, slow slots, describe lag, the clock, the calls."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from local.aws.control import ControlError
from local.aws.ec2_responses.pipeline import NOW
from tests.aws.local.kit import (
    LINUX,
    OTHER_ZONE,
    TYPE,
    ZONE,
    Aws,
    codes,
    fleet,
    free,
    instances,
    launched,
    places,
    pool,
    refused,
    run,
    seen,
    template,
    to_id,
)

WHEN = datetime(2030, 1, 1, tzinfo=UTC)
LAUNCH = {
    "ImageId": LINUX,
    "InstanceType": TYPE,
    "MinCount": 1,
    "MaxCount": 1,
    "Placement": {"AvailabilityZone": ZONE},
}


# ---- pools


def test_on_demand_runs_dry_in_one_zone_and_comes_back(aws: Aws, ec2: Any) -> None:
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=2)
    first, _ = run(ec2, 2)
    with refused("InsufficientInstanceCapacity", status=500, text=ZONE):
        run(ec2)
    assert len(run(ec2, Placement={"AvailabilityZone": OTHER_ZONE})) == 1
    ec2.terminate_instances(InstanceIds=[first["InstanceId"]])
    assert len(run(ec2)) == 1
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=None)
    assert len(run(ec2, 5)) == 5


def test_reservations_come_out_of_the_pool_used_or_not(aws: Aws, ec2: Any) -> None:
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=3)
    reservation_id = aws.reserve(ec2, 2)
    (outside,) = run(ec2)
    with refused("InsufficientInstanceCapacity", status=500):
        run(ec2)
    assert places(run(ec2, 2, specification=to_id(reservation_id))) == [reservation_id] * 2
    with refused("InsufficientInstanceCapacity", status=500):
        aws.reserve(ec2)
    with refused("InsufficientInstanceCapacity", status=500):
        ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, InstanceCount=3)
    ec2.terminate_instances(InstanceIds=[outside["InstanceId"]])
    ec2.modify_capacity_reservation(CapacityReservationId=reservation_id, InstanceCount=3)
    ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    assert [entry["free"] for entry in aws.control.pools()] == [1]  # two run on, outside


def test_open_reservation_of_running_instances_needs_no_more_room(aws: Aws, ec2: Any) -> None:
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=2)
    run(ec2, 2)
    with refused("InsufficientInstanceCapacity", status=500):
        aws.reserve(ec2, 2)
    reservation_id = aws.reserve(ec2, 2, InstanceMatchCriteria="open")
    assert free(ec2, reservation_id) == 0


def test_a_pool_counts_beside_the_reservations_that_are_there(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 2)
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=1)
    assert len(run(ec2)) == 1
    with refused("InsufficientInstanceCapacity", status=500):
        run(ec2)
    ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    assert len(run(ec2, 2)) == 2


# ---- slots that take their time


def test_a_slot_comes_free_a_while_after_its_instance_ended(aws: Aws, ec2: Any) -> None:
    aws.control.freeze()
    aws.control.slot_release(300)
    reservation_id = aws.reserve(ec2)
    (inside,) = run(ec2, specification=to_id(reservation_id))
    ec2.terminate_instances(InstanceIds=[inside["InstanceId"]])
    (shutting_down,) = instances(ec2, [inside["InstanceId"]])
    assert shutting_down["State"]["Name"] == "shutting-down"
    with refused("ReservationCapacityExceeded"):
        run(ec2, specification=to_id(reservation_id))
    aws.control.advance(299)
    assert free(ec2, reservation_id) == 0
    aws.control.advance(1)
    assert free(ec2, reservation_id) == 1
    (gone,) = instances(ec2, [inside["InstanceId"]])
    assert gone["State"]["Name"] == "terminated"
    assert places(run(ec2, specification=to_id(reservation_id))) == [reservation_id]


def test_a_pools_slots_are_slow_as_well(aws: Aws, ec2: Any) -> None:
    aws.control.freeze()
    aws.control.slot_release(60)
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=1)
    (only,) = run(ec2)
    ec2.terminate_instances(InstanceIds=[only["InstanceId"], only["InstanceId"]])
    ec2.terminate_instances(InstanceIds=[only["InstanceId"]])
    with refused("InsufficientInstanceCapacity", status=500):
        run(ec2)
    aws.control.advance(60)
    assert len(run(ec2)) == 1
    with refused("InsufficientInstanceCapacity", status=500):  # ending it twice freed it once
        run(ec2)


# ---- describe lag


def test_describe_shows_counts_and_states_of_a_while_ago(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    reservation_id = aws.reserve(ec2, 3)
    aws.control.lag(30)
    aws.control.advance(60)
    run_id = launched(fleet(ec2, pool(template(ec2, CapacityReservationSpecification=to_id(reservation_id)))))
    assert free(ec2, reservation_id) == 3
    aws.control.advance(29)
    assert free(ec2, reservation_id) == 3
    aws.control.advance(1)
    assert free(ec2, reservation_id) == 2
    ec2.terminate_instances(InstanceIds=run_id)
    ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    assert (seen(ec2, reservation_id)["State"], free(ec2, reservation_id)) == ("active", 2)
    state = {"Name": "state", "Values": ["active"]}
    assert ec2.describe_capacity_reservations(Filters=[state])["CapacityReservations"]
    aws.control.advance(30)
    assert seen(ec2, reservation_id)["State"] == "cancelled"
    assert not ec2.describe_capacity_reservations(Filters=[state])["CapacityReservations"]


def test_a_reservation_younger_than_the_lag_shows_as_pending(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    aws.control.lag(10)
    reservation_id = aws.reserve(ec2)
    assert seen(ec2, reservation_id)["State"] == "pending"
    assert ec2.get_capacity_reservation_usage(CapacityReservationId=reservation_id)["State"] == "pending"
    aws.control.advance(10)
    assert seen(ec2, reservation_id)["State"] == "active"


def test_caller_can_read_without_lag(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    aws.control.lag(10)
    reservation_id = aws.reserve(ec2)
    session: Any = boto3.Session(aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1")
    prompt = session.client("ec2", endpoint_url=aws.endpoint)
    prompt.meta.events.register("before-sign", lambda request, **_: request.headers.add_header(NOW, "1"))
    assert seen(prompt, reservation_id)["State"] == "active"
    assert seen(ec2, reservation_id)["State"] == "pending"


def test_instances_show_late(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    aws.control.lag(10)
    reservation_id = aws.reserve(ec2)
    launch = ec2.run_instances(**LAUNCH, CapacityReservationSpecification=to_id(reservation_id))
    ids = [instance["InstanceId"] for instance in launch["Instances"]]
    with refused("InvalidInstanceID.NotFound"):
        instances(ec2, ids)
    by_reservation = [{"Name": "capacity-reservation-id", "Values": [reservation_id]}]
    assert ec2.describe_instances(Filters=by_reservation)["Reservations"] == []
    aws.control.advance(10)
    (shown,) = instances(ec2, ids)
    assert (shown["InstanceId"], shown["State"]["Name"]) == (ids[0], "running")
    assert shown["CapacityReservationId"] == reservation_id
    ec2.terminate_instances(InstanceIds=ids)
    (late,) = instances(ec2, ids)
    assert (late["State"]["Name"], late["CapacityReservationId"]) == ("running", reservation_id)
    assert len(ec2.describe_instances(Filters=by_reservation)["Reservations"]) == 1
    aws.control.advance(10)
    (gone,) = instances(ec2, ids)
    assert gone["State"]["Name"] == "terminated"
    assert "CapacityReservationId" not in gone


# ---- the rest


def test_an_instance_can_be_terminated_again(aws: Aws, ec2: Any) -> None:
    """EC2 accepts it, since callers that see an older state have to repeat it."""
    subnets = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [ZONE]}])["Subnets"]
    network = {"DeviceIndex": 0, "SubnetId": subnets[0]["SubnetId"], "DeleteOnTermination": True}
    first, second = run(ec2, 2, NetworkInterfaces=[network])
    ec2.terminate_instances(InstanceIds=[first["InstanceId"]])
    both = [first["InstanceId"], second["InstanceId"]]
    for _ in range(2):
        answer = ec2.terminate_instances(InstanceIds=both)
        assert {i["InstanceId"] for i in answer["TerminatingInstances"]} == {*both}
    assert [i["State"]["Name"] for i in instances(ec2, both)] == ["terminated"] * 2


def test_one_protected_instance_keeps_those_of_its_zone_and_no_other(aws: Aws, ec2: Any) -> None:
    first, second = run(ec2, 2)
    (other,) = run(ec2, Placement={"AvailabilityZone": OTHER_ZONE})
    ids = [instance["InstanceId"] for instance in (first, second, other)]
    ec2.modify_instance_attribute(InstanceId=ids[1], DisableApiTermination={"Value": True})
    with refused("OperationNotPermitted", text=ids[1]):
        ec2.terminate_instances(InstanceIds=ids)
    assert [i["State"]["Name"] for i in instances(ec2, ids)] == ["running", "running", "terminated"]


def test_calls_are_counted_and_logged(aws: Aws, ec2: Any) -> None:
    aws.control.clear_calls()
    reservation_id = aws.reserve(ec2)
    with pytest.raises(ClientError):
        run(ec2, specification=to_id("cr-12345678901234567"))
    free(ec2, reservation_id)
    free(ec2, reservation_id)
    assert aws.control.calls() == {
        "CreateCapacityReservation": 1,
        "RunInstances": 1,
        "DescribeCapacityReservations": 2,
    }
    (entry,) = aws.control.log("RunInstances")
    assert entry["status"] == 400
    assert entry["code"] == "InvalidCapacityReservationId.NotFound"
    assert entry["params"]["InstanceType"] == TYPE


def test_log_names_callers_by_access_key(aws: Aws) -> None:
    aws.control.clear_calls()
    for key in ("AKIAFIRST00000000000", "AKIASECOND0000000000"):
        session = boto3.Session(aws_access_key_id=key, aws_secret_access_key="x", region_name="us-east-1")
        session.client("ec2", endpoint_url=aws.endpoint).describe_subnets()
    keys = [entry["access_key"] for entry in aws.control.log("DescribeSubnets")]
    assert keys == ["AKIAFIRST00000000000", "AKIASECOND0000000000"]


def test_every_answer_has_a_request_id_of_its_own(aws: Aws, ec2: Any) -> None:
    responses = []
    token = {"ClientToken": "t", "InstanceType": TYPE, "InstancePlatform": "Linux/UNIX"}
    for _ in range(2):
        answer = ec2.create_capacity_reservation(**token, AvailabilityZone=ZONE, InstanceCount=1)
        responses.append(answer["ResponseMetadata"])
        responses.append(fleet(ec2, pool(template(ec2)))["ResponseMetadata"])
        responses.append(ec2.describe_subnets()["ResponseMetadata"])
        with pytest.raises(ClientError) as refusal:
            seen(ec2, "cr-12345678901234567")
        responses.append(refusal.value.response["ResponseMetadata"])
    ids = [metadata["RequestId"] for metadata in responses]
    assert len(set(ids)) == 8
    assert ids == [metadata["HTTPHeaders"]["x-amzn-requestid"] for metadata in responses]
    assert {entry["request_id"] for entry in aws.control.log()} >= set(ids)


def test_reset_puts_every_knob_back_and_keeps_resources(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2)
    aws.control.freeze(WHEN)
    aws.control.lag(60)
    aws.control.slot_release(60)
    aws.control.pending(60)
    aws.control.check_offerings()
    aws.control.code("group-unknown", "Nope")
    aws.control.pool(instance_type=TYPE, zone=ZONE, size=0)
    aws.control.fault(action="RunInstances", code="InternalError", times=-1)
    aws.control.reset()
    state = aws.control.state()
    assert (state["frozen"], state["pools"], state["faults"], state["calls"]) == (False, [], [], {})
    assert (state["describe_lag_s"], state["slot_release_s"], state["pending_s"]) == (0, 0, 0)
    assert state["codes"]["group-unknown"] != "Nope"
    assert state["check_offerings"] is False
    assert free(ec2, reservation_id) == 1
    assert len(run(ec2)) == 1


def test_the_clock_runs_on_from_where_it_stood(aws: Aws) -> None:
    aws.control.freeze(WHEN)
    assert aws.control.now() == WHEN
    aws.control.advance(3600)
    assert (aws.control.now() - WHEN).total_seconds() == 3600
    aws.control.unfreeze()
    aws.control.advance(3600)
    assert 7200 <= (aws.control.now() - WHEN).total_seconds() < 7800


def test_types_that_a_zone_does_not_offer(aws: Aws, ec2: Any) -> None:
    location: dict[str, Any] = {"InstanceType": "p5en.48xlarge", "AvailabilityZone": "us-east-1b"}
    assert aws.reserve(ec2, **location)
    aws.control.check_offerings()
    with refused("Unsupported", text="us-east-1b"):
        aws.reserve(ec2, **location)
    answer = fleet(ec2, pool(template(ec2), location))
    assert codes(answer) == ["Unsupported"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.fault(action="RunInstances", stage="later", code="X"), "stage"),
        (lambda c: c.fault(action="RunInstances"), "code"),
        (lambda c: c.fault(action="RunInstances", stage="launch"), "code"),
        (lambda c: c.fault(action="RunInstances", code="X", times=-2), "times"),
        (lambda c: c.pool(instance_type=TYPE, zone=ZONE, size=-1), "size"),
        (lambda c: c.pool(instance_type=TYPE, zone=ZONE, size=1, capacity_type="reserved"), "reserved"),
        (lambda c: c.lag(-1), "describe_lag_s"),
        (lambda c: c.advance(-1), "advance"),
        (lambda c: c.code("no-such-situation", "X"), "no-such-situation"),
        (lambda c: c.clear_faults("fault-99"), "fault-99"),
        (lambda c: c.reservation(InstanceType=TYPE), "InstancePlatform"),
        (lambda c: c.reservation(reservation_type="other"), "reservation_type"),
        (lambda c: c.set_reservation("cr-1", state="active"), "cr-1"),
        (lambda c: c._call("POST", "knobs"), "knobs"),
        (lambda c: c._call("POST", "faults", {"acton": "RunInstances"}), "acton"),
    ],
)
def test_invalid_control_call_is_refused_with_a_reason(aws: Aws, call: Any, text: str) -> None:
    with pytest.raises(ControlError, match=text):
        call(aws.control)


def test_ten_slots_take_ten_of_twenty_four_launches_at_once(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 10)
    outcomes: list[str] = []
    start = threading.Barrier(6)

    def launch() -> None:
        start.wait()
        for _ in range(4):
            try:
                ec2.run_instances(**LAUNCH, CapacityReservationSpecification=to_id(reservation_id))
                outcomes.append("in")
            except ClientError as error:
                outcomes.append(error.response["Error"]["Code"])

    threads = [threading.Thread(target=launch) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["ReservationCapacityExceeded"] * 14 + ["in"] * 10
    assert free(ec2, reservation_id) == 0
    assert len(ec2.describe_instances()["Reservations"]) == 10


def test_an_auto_scaling_group_draws_on_reservations(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 2, InstanceMatchCriteria="open")
    scaling = aws.client("autoscaling")
    template_id = template(ec2, InstanceType=TYPE)
    scaling.create_auto_scaling_group(
        AutoScalingGroupName="nodes",
        LaunchTemplate={"LaunchTemplateId": template_id, "Version": "$Latest"},
        MinSize=0,
        MaxSize=5,
        DesiredCapacity=3,
        AvailabilityZones=[ZONE],
    )
    launched_instances = [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]
    assert sorted(place or "" for place in places(launched_instances)) == ["", reservation_id, reservation_id]
    scaling.delete_auto_scaling_group(AutoScalingGroupName="nodes", ForceDelete=True)
    assert free(ec2, reservation_id) == 2
