"""EC2's notices in a queue: their effect on the claims that they name, and on all others."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.capacity.shortages import Scope
from tests.aws.local.test_interruptible import keep, lend
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED, SPOT
from tests.cluster.stack import Stack
from tests.cluster.test_life_after_launch import MINUTE, extend
from tests.cluster.test_provisioning import bound, pods, pool, start
from tests.support import events

QUEUE = "notices"


class Queue:
    """The interruption queue, as EventBridge fills it."""

    def __init__(self, stack: Stack) -> None:
        self._sqs = stack.aws.client("sqs")
        again = {"VisibilityTimeout": "2"}  # real seconds until a message that was not handled is shown
        self._url: str = self._sqs.create_queue(QueueName=QUEUE, Attributes=again)["QueueUrl"]

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
    return [stack.get(NodeClaim, name).instance_id for name in names_]


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


@pytest.mark.covers("KRP-29")
def test_an_interruption_names_the_reservation_of_an_instance_that_ec2_does_not_show(
    stack: Stack, queue: Queue
) -> None:
    odcr = stack.aws.odcr(count=1)
    stack.node_class(id_=odcr)
    broker = stack.start(interruption_queue=QUEUE)
    stack.until_class("Launchable", "True")
    stack.advance(4000)
    stack.control.lag(3600)
    stack.claim("c-0")
    stack.until_launched("c-0")
    claim = stack.get(NodeClaim, "c-0")
    assert names.RESERVATION_ID not in claim.labels
    queue.put(events.reservation_interruption(claim.instance_id))
    event = stack.until_event("c-0", "CapacityReservationInterrupted")
    assert f"interruptible reservation {odcr} takes it back" in event.message

    def short() -> bool:
        """Also if EC2's next description, which comes late too, shows the slot as free."""
        return any(
            shortage.scope == Scope("reservation", odcr)
            for shortage in broker.launcher.shortages.remembered(stack.clock.now())
        )

    stack.until(short, "the next launch knows that the reservation has no room")


@pytest.mark.covers("KRP-29", "FUL-04")
def test_slot_that_its_owner_takes_back_is_kept_for_no_successor(stack: Stack, queue: Queue) -> None:
    """The pods get a machine outside while their node drains."""
    source = stack.aws.odcr(count=1)
    lent = lend(stack.aws.ec2, source, 1)
    stack.node_class(id_=lent, zones=(A,))
    only = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large"]}
    kinds = {"key": names.CAPACITY_TYPE, "operator": "In", "values": [RESERVED, ON_DEMAND]}
    pool(stack, template={"requirements": [kinds, only]})
    stack.budget("web", app="web")  # the node drains for as long as it may
    (pod,) = pods(stack, 1, labels={"app": "web"})
    start(stack, interruption_queue=QUEUE)
    stack.until(lambda: bound(stack, [pod]), "the pod runs in the slot", step=0.2)
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    stack.client.patch(Pod.KIND, pod, running, namespace="default", subresource="status")
    (claim,) = stack.all(NodeClaim)
    stack.until(
        lambda: stack.get(NodeClaim, claim.name).labels.get(names.RESERVATION_ID) == lent,
        "it is shown",
        step=1.0,
    )
    keep(stack.aws.ec2, source, 0)
    queue.put(events.reservation_interruption(claim.instance_id))

    def outside() -> bool:
        return any(c.labels.get(names.CAPACITY_TYPE) == ON_DEMAND for c in stack.all(NodeClaim))

    stack.until(outside, "a machine for its pods", step=1.0)
    assert stack.get(NodeClaim, claim.name).deleting
    assert stack.aws.instance(claim.instance_id)["State"]["Name"] == "running"


def in_block(stack: Stack) -> str:
    """A ready claim in a Capacity Block that ends in three hours. Returns the block."""
    block = stack.aws.capacity_block(ends=timedelta(minutes=180))
    stack.node_class(id_=block)
    stack.claim("c-0", types=("p5.48xlarge",))
    stack.start(interruption_queue=QUEUE)
    stack.until_ready("c-0")
    stack.until(lambda: stack.get(NodeClaim, "c-0").labels.get(names.RESERVATION_ID) == block, "it is shown")
    return block


def warn(stack: Stack, queue: Queue, block: str, *, step: float = 1.0) -> None:
    """EC2 announces the end of the block, and that of its instance. Returns when both are handled."""
    instance = stack.get(NodeClaim, "c-0").instance_id
    stack.control.notice("capacity-block-expiring", reservation_id=block, queue=QUEUE)
    stack.control.notice("reservation-interruption", instance_id=instance, queue=QUEUE)
    stack.until(queue.empty, "the messages are deleted", step=step)
    assert "CapacityReservationInterrupted" not in {event.reason for event in stack.events("c-0")}


@pytest.mark.covers("FUL-41", "KRP-29")
def test_warnings_of_a_block_end_its_claims_at_the_time_of_its_drain_only(stack: Stack, queue: Queue) -> None:
    block = in_block(stack)
    warn(stack, queue, block)
    assert not stack.get(NodeClaim, "c-0").deleting
    stack.advance(141 * MINUTE)
    event = stack.until_event("c-0", "CapacityBlockEnding")
    assert block in event.message
    stack.until_gone(NodeClaim, "c-0")


@pytest.mark.covers("FUL-41")
@pytest.mark.parametrize("minutes", [24, 26], ids=["being-paid", "paid"])
def test_warnings_end_no_claim_of_a_block_that_is_extended(
    stack: Stack, queue: Queue, minutes: float
) -> None:
    """The extension is paid 37 minutes before the end; the messages come before that, or after."""
    block = in_block(stack)
    stack.advance(118 * MINUTE)
    stack.control.payment(1500)
    extend(stack, block)
    stack.polls(2)
    stack.advance(minutes * MINUTE)
    stack.polls(2)
    warn(stack, queue, block)
    stack.passes()
    assert not stack.get(NodeClaim, "c-0").deleting
    for _ in range(3):
        stack.advance(2 * MINUTE)
        stack.polls(2)
    stack.passes()
    assert not stack.get(NodeClaim, "c-0").deleting


@pytest.mark.covers("FUL-41")
def test_warnings_of_a_block_that_is_not_described_yet_end_no_claim(stack: Stack, queue: Queue) -> None:
    block = in_block(stack)
    stack.stop()
    stack.control.fault(action="DescribeCapacityReservations", code="InternalError", status=500, times=-1)
    stack.start()
    warn(stack, queue, block, step=10.0)
    stack.control.clear_faults()
    stack.advance(60)  # the next try
    stack.polls()
    stack.advance(60)
    stack.polls()
    stack.passes()
    assert not stack.get(NodeClaim, "c-0").deleting


@pytest.mark.covers("KRP-19")
def test_pool_that_took_its_instance_back_is_not_tried_before_its_time(stack: Stack, queue: Queue) -> None:
    """EC2 would launch another spot instance at once, also in its placement group, and reclaim it soon."""
    stack.aws.ec2.create_placement_group(GroupName="ring", Strategy="cluster")
    stack.node_class(preference="none", zones=(A,), placementGroupSelector={"name": "ring"})
    stack.claim("c-0", capacity=(SPOT,))
    stack.start(interruption_queue=QUEUE)
    stack.until_ready("c-0")
    queue.put(events.spot_interruption(stack.get(NodeClaim, "c-0").instance_id))
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
