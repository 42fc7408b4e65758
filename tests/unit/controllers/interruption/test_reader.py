"""Deleted messages, returned messages, and no reaction after the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.controllers.interruption.reader import QueueReader
from broker.kube.errors import Conflict, Unavailable
from providers.notices import Notice, NoticeKind, QueueMessage
from tests.support.clock import FakeClock


def message(name: str) -> QueueMessage:
    return QueueMessage(receipt=name, notice=Notice(kind=NoticeKind.REBALANCE, instance_ids=(name,)))


class Sqs:
    """A queue that delivers a test's messages, and keeps each until it is deleted."""

    def __init__(self, *names: str) -> None:
        self.held = [message(name) for name in names]
        self.on_receive: Callable[[], object] = lambda: None

    def receive(self, queue: str, *, wait: int) -> Sequence[QueueMessage]:
        self.on_receive()
        return [*self.held[:10]]

    def delete_messages(self, queue: str, messages: Sequence[QueueMessage]) -> None:
        self.held = [message for message in self.held if message not in messages]

    def left(self) -> list[str]:
        return [message.receipt for message in self.held]


def reader(sqs: Sqs, take: Callable[[QueueMessage], None]) -> QueueReader:
    provider: Any = sqs
    return QueueReader(provider, "notices", take, clock=FakeClock(), synced=lambda: True, random=lambda: 0.0)


def test_handled_messages_are_deleted() -> None:
    sqs, taken = Sqs("a", "b"), []
    reader(sqs, lambda m: taken.append(m.receipt)).step()
    assert (taken, sqs.left()) == (["a", "b"], [])


@pytest.mark.parametrize("refusal", [Conflict(409, "Conflict", "x"), Unavailable(503, "x", "x")])
def test_only_a_failed_message_is_redelivered(refusal: Exception) -> None:
    sqs, broken = Sqs("a", "b", "c"), ["b"]

    def take(message: QueueMessage) -> None:
        if message.receipt in broken:
            raise refusal

    queue_reader = reader(sqs, take)
    with pytest.raises(type(refusal)):
        queue_reader.step()
    assert sqs.left() == ["b"]
    broken.clear()
    queue_reader.step()
    assert sqs.left() == []


def test_a_message_that_causes_a_panic_is_deleted() -> None:
    sqs = Sqs("a", "b")

    def take(message: QueueMessage) -> None:
        if message.receipt == "a":
            raise KeyError(message.receipt)

    reader(sqs, take).step()
    assert sqs.left() == []


def test_no_message_is_handled_after_the_stop() -> None:
    """The long poll may still return a message: it is left for the next leader."""
    sqs, taken = Sqs("a"), []
    queue_reader = reader(sqs, lambda m: taken.append(m.receipt))
    sqs.on_receive = queue_reader.stop
    queue_reader.step()
    assert (taken, sqs.left()) == ([], ["a"])


def test_the_stop_waits_for_the_current_message() -> None:
    sqs = Sqs("a")
    begun, go_on, done = threading.Event(), threading.Event(), []

    def take(message: QueueMessage) -> None:
        begun.set()
        go_on.wait()
        done.append(message.receipt)

    queue_reader = reader(sqs, take)
    acting = threading.Thread(target=queue_reader.step)
    acting.start()
    begun.wait()

    def stop() -> None:
        queue_reader.stop()
        done.append("stopped")

    stopped = threading.Thread(target=stop)
    stopped.start()
    go_on.set()
    acting.join()
    stopped.join()
    assert done == ["a", "stopped"]
    assert sqs.left() == []
