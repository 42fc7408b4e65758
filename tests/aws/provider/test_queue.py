"""The interruption queue against local AWS's SQS: messages received, deleted and returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from providers.errors import ErrorClass, ProviderError
from providers.notices import NoticeKind
from tests.support import events

from .world import World

QUEUE = "notices"
ID = "i-0123456789abcdef0"


@dataclass(frozen=True)
class Queue:
    sqs: Any
    url: str

    def put(self, body: str) -> None:
        self.sqs.send_message(QueueUrl=self.url, MessageBody=body)


@pytest.fixture
def queue(world: World) -> Queue:
    """Messages that are not deleted are there again at once."""
    sqs = world.client("sqs")
    reply = sqs.create_queue(QueueName=QUEUE, Attributes={"VisibilityTimeout": "0"})
    return Queue(sqs=sqs, url=reply["QueueUrl"])


def test_messages_come_as_notices_and_are_gone_when_acknowledged(world: World, queue: Queue) -> None:
    for body in (events.spot_interruption(ID), events.rebalance(ID)):
        queue.put(body)
    received = world.aws.receive(QUEUE, wait=0)
    assert {m.notice.kind for m in received if m.notice} == {
        NoticeKind.SPOT_INTERRUPTION,
        NoticeKind.REBALANCE,
    }
    first = next(m for m in received if m.notice and m.notice.kind is NoticeKind.REBALANCE)
    world.aws.delete_messages(QUEUE, [first])
    (left,) = world.aws.receive(QUEUE, wait=0)
    assert left.notice and left.notice.kind is NoticeKind.SPOT_INTERRUPTION, (
        "an unacknowledged message comes back"
    )


def test_a_message_that_is_no_notice_is_handed_out_with_its_problem(world: World, queue: Queue) -> None:
    queue.put("hello")
    (message,) = world.aws.receive(QUEUE, wait=0)
    assert (message.notice, message.body) == (None, "hello")
    assert "not JSON" in message.problem
    world.aws.delete_messages(QUEUE, [message])
    assert world.aws.receive(QUEUE, wait=0) == []


def test_a_queue_by_its_url_needs_no_lookup(world: World, queue: Queue) -> None:
    queue.put(events.rebalance(ID))
    assert len(world.aws.receive(queue.url, wait=0)) == 1
    assert world.control.calls().get("GetQueueUrl", 0) == 0


def test_more_than_one_batch_is_acknowledged(world: World, queue: Queue) -> None:
    queue.sqs.set_queue_attributes(QueueUrl=queue.url, Attributes={"VisibilityTimeout": "600"})
    for _ in range(25):
        queue.put(events.rebalance(ID))
    got = [m for _ in range(3) for m in world.aws.receive(QUEUE, wait=0)]
    assert len(got) == 25
    world.aws.delete_messages(QUEUE, got)
    shown = queue.sqs.get_queue_attributes(QueueUrl=queue.url, AttributeNames=["All"])["Attributes"]
    assert shown["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_missing_queue_is_reported(world: World) -> None:
    with pytest.raises(ProviderError, match=r"does not exist") as caught:
        world.aws.receive("nowhere", wait=0)
    assert caught.value.class_ is ErrorClass.NOT_FOUND
