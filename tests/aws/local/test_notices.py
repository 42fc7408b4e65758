"""AWS's own events: EventBridge's JSON in an SQS queue, by rules or directly by the control plane."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from local.aws.control import ControlError
from tests.aws.local.kit import REGION, TYPE, ZONE, Aws, instances, run, to_id

WHEN = datetime(2030, 1, 1, tzinfo=UTC)
ACCOUNT = "123456789012"
Drain = Callable[[], list[dict[str, Any]]]


def queue_of(aws: Aws, name: str = "interruptions") -> tuple[str, Drain]:
    """A queue's URL, and all that is in it, taken out."""
    sqs = aws.client("sqs")
    url = sqs.create_queue(QueueName=name)["QueueUrl"]

    def drain() -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        while True:
            answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
            if not answer.get("Messages"):
                return out
            for message in answer["Messages"]:
                out.append(json.loads(message["Body"]))
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    return str(url), drain


def rule(aws: Aws, name: str, *detail_types: str, queue: str = "interruptions", **more: Any) -> None:
    events = aws.client("events")
    pattern = {"source": ["aws.ec2", "aws.health"], "detail-type": list(detail_types)}
    events.put_rule(Name=name, EventPattern=json.dumps(pattern), **more)
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}"
    events.put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": arn}])


def test_spot_interruption_is_delivered_by_its_rule(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    _, drain = queue_of(aws)
    rule(aws, "spot", "EC2 Spot Instance Interruption Warning")
    (spot,) = run(ec2, InstanceMarketOptions={"MarketType": "spot"})
    sent = aws.control.notice("spot-interruption", instance_id=spot["InstanceId"])
    (event,) = drain()
    assert event == sent
    assert event == {
        "version": "0",
        "id": event["id"],
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "source": "aws.ec2",
        "account": ACCOUNT,
        "time": "2030-01-01T00:00:00Z",
        "region": REGION,
        "resources": [f"arn:aws:ec2:{ZONE}:instance/{spot['InstanceId']}"],
        "detail": {"instance-id": spot["InstanceId"], "instance-action": "terminate"},
    }


def test_announced_end_happens_on_request(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    (spot,) = run(ec2, InstanceMarketOptions={"MarketType": "spot"})
    ec2.modify_instance_attribute(InstanceId=spot["InstanceId"], DisableApiTermination={"Value": True})
    aws.control.notice("spot-interruption", instance_id=spot["InstanceId"], ends=True)
    aws.control.advance(119)
    assert instances(ec2, [spot["InstanceId"]])[0]["State"]["Name"] == "running"
    aws.control.advance(1)
    assert instances(ec2, [spot["InstanceId"]])[0]["State"]["Name"] == "terminated"


def test_states_of_an_instance_are_sent_in_order(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    _, drain = queue_of(aws)
    rule(aws, "states", "EC2 Instance State-change Notification")
    (instance,) = run(ec2)
    only = [instance["InstanceId"]]
    ec2.stop_instances(InstanceIds=only)
    ec2.start_instances(InstanceIds=only)
    aws.control.slot_release(60)
    ec2.terminate_instances(InstanceIds=only)
    events = drain()
    assert [event["detail"]["state"] for event in events] == [
        *("pending", "running"),
        *("stopping", "stopped"),
        *("pending", "running"),
        "shutting-down",
    ]
    assert events[0]["resources"] == [f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{only[0]}"]
    aws.control.advance(60)
    assert [event["detail"]["state"] for event in drain()] == ["terminated"]


def test_end_of_a_stopped_instance_is_sent_once(aws: Aws, ec2: Any) -> None:
    (instance,) = run(ec2)
    only = [instance["InstanceId"]]
    ec2.stop_instances(InstanceIds=only)
    before = len(aws.control.notices())
    ec2.terminate_instances(InstanceIds=only)
    ec2.terminate_instances(InstanceIds=only)
    assert [event["detail"]["state"] for event in aws.control.notices()[before:]] == ["terminated"]


@pytest.mark.parametrize(
    ("kind", "detail_type"),
    [
        ("rebalance", "EC2 Instance Rebalance Recommendation"),
        ("instance-state", "EC2 Instance State-change Notification"),
        ("reservation-interruption", "EC2 Capacity Reservation Instance Interruption Warning"),
        ("health", "AWS Health Event"),
    ],
)
def test_notices_about_an_instance_go_straight_into_a_queue(
    aws: Aws, ec2: Any, kind: str, detail_type: str
) -> None:
    url, drain = queue_of(aws)
    (instance,) = run(ec2)
    aws.control.notice(kind, instance_id=instance["InstanceId"], queue=url)
    (event,) = drain()
    assert event["detail-type"] == detail_type
    assert instance["InstanceId"] in json.dumps([event["resources"], event["detail"]])
    assert aws.control.notices(detail_type)[-1]["delivered_to"] == [
        f"arn:aws:sqs:{REGION}:{ACCOUNT}:interruptions"
    ]


def test_health_event_names_the_event_and_the_resource(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    _, drain = queue_of(aws)
    rule(aws, "health", "AWS Health Event")
    (instance,) = run(ec2)
    aws.control.notice("health", instance_id=instance["InstanceId"], in_s=86400)
    (event,) = drain()
    assert event["source"] == "aws.health"
    assert event["resources"] == [instance["InstanceId"]]
    detail = event["detail"]
    assert (detail["service"], detail["eventTypeCategory"]) == ("EC2", "scheduledChange")
    assert detail["eventTypeCode"] == "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"
    assert detail["startTime"] == "Wed, 02 Jan 2030 00:00:00 GMT"
    assert [entity["entityValue"] for entity in detail["affectedEntities"]] == [instance["InstanceId"]]
    reservation_id = aws.reserve(ec2)
    aws.control.notice(
        "health",
        reservation_id=reservation_id,
        code="AWS_EC2_ODCR_UNDERUTILIZATION_NOTIFICATION",
        category="accountNotification",
    )
    (event,) = drain()
    assert event["resources"] == [reservation_id]


def test_only_enabled_rules_that_match_deliver_and_each_once(aws: Aws, ec2: Any) -> None:
    _, drain = queue_of(aws)
    _, drain_other = queue_of(aws, "other")
    kind = "EC2 Instance Rebalance Recommendation"
    rule(aws, "off", kind, State="DISABLED")
    rule(aws, "else", "AWS Health Event")
    rule(aws, "gone", kind, queue="deleted-since")
    rule(aws, "other", kind, queue="other")
    (instance,) = run(ec2)
    aws.control.notice("rebalance", instance_id=instance["InstanceId"])
    assert drain() == []
    (event,) = drain_other()
    (kept,) = aws.control.notices(kind)
    assert kept == {**event, "delivered_to": [f"arn:aws:sqs:{REGION}:{ACCOUNT}:other"]}


def test_an_input_transformer_shapes_the_message(aws: Aws, ec2: Any) -> None:
    _, drain = queue_of(aws)
    events = aws.client("events")
    events.put_rule(Name="r", EventPattern=json.dumps({"detail-type": [{"prefix": "EC2 Instance Rebal"}]}))
    events.put_targets(
        Rule="r",
        Targets=[
            {
                "Id": "q",
                "Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:interruptions",
                "InputTransformer": {
                    "InputPathsMap": {"id": "$.detail.instance-id"},
                    "InputTemplate": '{"lost": "<id>"}',
                },
            }
        ],
    )
    (instance,) = run(ec2)
    aws.control.notice("rebalance", instance_id=instance["InstanceId"])
    assert drain() == [{"lost": instance["InstanceId"]}]


def test_reading_the_queue_is_enough_for_time_to_have_passed(aws: Aws, ec2: Any) -> None:
    aws.control.freeze(WHEN)
    _, drain = queue_of(aws)
    rule(aws, "states", "EC2 Instance State-change Notification")
    aws.control.slot_release(30)
    reservation_id = aws.reserve(ec2)
    (instance,) = run(ec2, specification=to_id(reservation_id))
    ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    drain()
    aws.control.advance(30)
    assert [event["detail"]["state"] for event in drain()] == ["terminated"]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"kind": "eclipse"}, "kind: 'eclipse' is none of spot-interruption"),
        ({"kind": "rebalance"}, "instance_id: there is no instance None"),
        ({"kind": "rebalance", "instance_id": "i-0"}, "'i-0'"),
        ({"kind": "reservation-state", "reservation_id": "cr-0"}, "DescribeCapacityReservations lists"),
        ({"kind": "rebalance", "ends": True}, "ends: rebalance ends no instance"),
        ({"kind": "rebalance", "in_s": -1}, "in_s: -1 is invalid: it should be greater than or equal to 0"),
        ({"kind": "rebalance", "soon": 1}, "soon: there is no such field; it takes kind, instance_id"),
    ],
)
def test_a_notice_that_can_not_be_sent_is_refused_in_a_sentence(
    aws: Aws, parameters: dict[str, Any], text: str
) -> None:
    with pytest.raises(ControlError, match=text.replace("(", r"\(")):
        aws.control.notice(**parameters)


def test_a_notice_into_a_queue_that_is_not_there(aws: Aws, ec2: Any) -> None:
    (instance,) = run(ec2)
    with pytest.raises(ControlError, match="queue: 'none' does not exist; make it with SQS CreateQueue"):
        aws.control.notice("instance-state", instance_id=instance["InstanceId"], queue="none")
    with pytest.raises(ControlError, match="state: 'asleep' is none of pending, running"):
        aws.control.notice("instance-state", instance_id=instance["InstanceId"], state="asleep")
    assert instance["InstanceType"] == TYPE
