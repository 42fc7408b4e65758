"""EC2's notices in a queue: their effect on the claims that they name, and on all others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_status import instance_id
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, SPOT
from tests.cluster.stack import Stack
from tests.support import events

QUEUE = "notices"


class Queue:
    """The interruption queue, as EventBridge fills it."""

    def __init__(self, stack: Stack) -> None:
        self._sqs = stack.aws.client("sqs")
        self._url: str = self._sqs.create_queue(QueueName=QUEUE)["QueueUrl"]

    def put(self, body: str) -> None:
        self._sqs.send_message(QueueUrl=self._url, MessageBody=body)

    def empty(self) -> bool:
        """No message waits, and none was received without being deleted."""
        shown: dict[str, Any] = self._sqs.get_queue_attributes(QueueUrl=self._url, AttributeNames=["All"])
        keys = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        return all(shown["Attributes"][key] == "0" for key in keys)


@pytest.fixture
def queue(stack: Stack) -> Queue:
    return Queue(stack)


def launched(stack: Stack, *names_: str) -> list[str]:
    """On-demand claims with their nodes, and a broker that reads the queue; returns their instances."""
    stack.node_class(preference="none")
    for name in names_:
        stack.claim(name, capacity=(ON_DEMAND,))
    stack.start(interruption_queue=QUEUE)
    stack.until_ready(*names_)
    return [instance_id(stack.get(NodeClaim, name)) for name in names_]


@pytest.mark.covers("KRP-29")
@pytest.mark.parametrize(
    ("notice", "reason"),
    [
        (events.spot_interruption, "SpotInterrupted"),
        (events.reservation_interruption, "CapacityReservationInterrupted"),
        (events.health, "InstanceUnhealthy"),
        (lambda id_: events.state_change(id_, "stopping"), "InstanceStopping"),
        (lambda id_: events.state_change(id_, "shutting-down"), "InstanceTerminating"),
    ],
)
def test_a_notice_that_an_instance_ends_ends_its_claim(
    stack: Stack, queue: Queue, notice: Callable[[str], str], reason: str
) -> None:
    (instance, _) = launched(stack, "c-0", "c-1")
    node = stack.get(NodeClaim, "c-0").status.node_name
    queue.put(notice(instance))
    event = stack.until_event("c-0", reason)
    assert instance in event.message
    stack.until_event(node, reason, kind="Node")
    stack.until_gone(NodeClaim, "c-0")
    stack.until(queue.empty, "the message is deleted")
    assert stack.aws.instance(instance)["State"]["Name"] == "terminated"
    assert stack.is_true("c-1", names.READY), "no other claim ends"


@pytest.mark.both_servers
def test_the_node_is_drained_before_its_instance_ends(stack: Stack, queue: Queue) -> None:
    (instance,) = launched(stack, "c-0")
    node = stack.get(NodeClaim, "c-0").status.node_name
    stack.pod("web", node=node, labels={"app": "web"})
    stack.budget("web", app="web")
    queue.put(events.spot_interruption(instance))
    stack.until_event("c-0", "EvictionBlocked")
    assert any(t.key == names.DISRUPTED_TAINT for t in stack.get(Node, node).spec.taints), "cordoned"
    assert stack.aws.instance(instance)["State"]["Name"] == "running"


def test_the_end_of_a_capacity_block_ends_the_claims_in_it(stack: Stack, queue: Queue) -> None:
    """EventBridge reports the end; the block's end date has not been reached."""
    odcr = stack.aws.odcr("m5.large", A, 1)
    stack.node_class(id_=odcr)
    stack.claim("c-0")
    stack.start(interruption_queue=QUEUE)
    stack.until_ready("c-0")
    stack.until_shown("c-0")
    queue.put(events.block_expiration("cr-0ffffffffffffffff"))
    queue.put(events.block_expiration(odcr))
    event = stack.until_event("c-0", "CapacityBlockEnding")
    assert odcr in event.message
    stack.until_gone(NodeClaim, "c-0")


@pytest.mark.covers("KRP-19")
def test_pool_that_took_its_instance_back_is_not_tried_before_its_time(stack: Stack, queue: Queue) -> None:
    """EC2 would launch another spot instance at once, also in its placement group, and reclaim it soon."""
    stack.aws.ec2.create_placement_group(GroupName="ring", Strategy="cluster")
    stack.node_class(preference="none", zones=(A,), placementGroupSelector={"name": "ring"})
    stack.claim("c-0", capacity=(SPOT,))
    stack.start(interruption_queue=QUEUE)
    stack.until_ready("c-0")
    queue.put(events.spot_interruption(instance_id(stack.get(NodeClaim, "c-0"))))
    stack.until_gone(NodeClaim, "c-0")
    stack.claim("c-1", capacity=(SPOT,))
    condition = stack.until_waiting("c-1", "InsufficientCapacity")
    assert "SpotInterrupted" in condition.message
    stack.advance(181)
    stack.until_launched("c-1")


def test_rebalance_recommendation_is_only_reported(stack: Stack, queue: Queue) -> None:
    (instance,) = launched(stack, "c-0")
    queue.put(events.rebalance(instance))
    event = stack.until_event("c-0", "SpotRebalanceRecommendation")
    assert event.type == "Normal"
    stack.until(queue.empty, "the message is deleted")
    assert not stack.get(NodeClaim, "c-0").deleting


def test_messages_about_foreign_instances_and_other_messages_are_deleted_and_change_nothing(
    stack: Stack, queue: Queue
) -> None:
    launched(stack, "c-0")
    for body in (
        "hello",
        json.dumps({"detail-type": "x"}),
        events.spot_interruption("i-0ffffffffffffffff"),
        events.event("EC2 AMI State Change", {"State": "available"}),
    ):
        queue.put(body)
    stack.until(queue.empty, "every message is deleted")
    assert stack.is_true("c-0", names.READY)
    assert not stack.get(NodeClaim, "c-0").deleting


def test_message_that_comes_twice_is_reported_once(stack: Stack, queue: Queue) -> None:
    (instance, other) = launched(stack, "c-0", "c-1")
    queue.put(events.spot_interruption(instance))
    stack.until_gone(NodeClaim, "c-0")
    queue.put(events.spot_interruption(instance))
    queue.put(events.rebalance(other))
    stack.until_event("c-1", "SpotRebalanceRecommendation")
    stack.until(queue.empty, "every message is deleted")
    assert len([e for e in stack.events("c-0") if e.reason == "SpotInterrupted"]) == 1
