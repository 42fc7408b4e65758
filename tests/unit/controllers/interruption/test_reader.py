"""Deleted messages, returned messages, and no reaction after the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.controllers.interruption.reader import QueueReader
from broker.kube.clock import FakeClock
from broker.kube.controller import Run
from broker.kube.errors import Conflict, Unavailable
from broker.kube.suspects import Panic
from providers.model import Notice, NoticeKind, QueueMessage


def message(name: str) -> QueueMessage:
    return QueueMessage(receipt=name, notice=Notice(kind=NoticeKind.REBALANCE, instance_ids=(name,)))


class Sqs:
    """A queue that delivers a test's messages, and keeps each until it is settled."""

    def __init__(self, *names: str) -> None:
        self.held = [message(name) for name in names]
        self.on_receive: Callable[[], object] = lambda: None

    def receive(self, queue: str, *, wait: int) -> Sequence[QueueMessage]:
        self.on_receive()
        return [*self.held[:10]]

    def settle(self, queue: str, messages: Sequence[QueueMessage]) -> None:
        self.held = [each for each in self.held if each not in messages]

    def left(self) -> list[str]:
        return [each.receipt for each in self.held]


def reader(sqs: Sqs, take: Callable[[QueueMessage], None]) -> QueueReader:
    provider: Any = sqs
    return QueueReader(provider, "notices", take, clock=FakeClock(), synced=lambda: True, random=lambda: 0.0)


def test_what_was_answered_is_settled() -> None:
    sqs, taken = Sqs("a", "b"), []
    reader(sqs, lambda m: taken.append(m.receipt)).step()
    assert (taken, sqs.left()) == (["a", "b"], [])


@pytest.mark.parametrize("refusal", [Conflict(409, "Conflict", "x"), Unavailable(503, "x", "x")])
def test_a_message_whose_answer_failed_comes_back_and_the_others_do_not(refusal: Exception) -> None:
    sqs, broken = Sqs("a", "b", "c"), ["b"]

    def take(one: QueueMessage) -> None:
        if one.receipt in broken:
            raise refusal

    made = reader(sqs, take)
    with pytest.raises(type(refusal)):
        made.step()
    assert sqs.left() == ["b"]
    broken.clear()
    made.step()
    assert sqs.left() == []


def test_a_message_that_meets_a_bug_does_not_stay_forever() -> None:
    sqs = Sqs("a", "b")

    def take(one: QueueMessage) -> None:
        if one.receipt == "a":
            raise KeyError(one.receipt)

    reader(sqs, take).step()
    assert sqs.left() == []


def test_nothing_is_answered_after_the_end() -> None:
    """The long poll may still return a message: it is left for the next leader."""
    sqs, taken = Sqs("a"), []
    made = reader(sqs, lambda m: taken.append(m.receipt))
    sqs.on_receive = made.stop
    made.step()
    assert (taken, sqs.left()) == ([], ["a"])


def test_the_end_waits_for_an_answer_that_is_under_way() -> None:
    sqs = Sqs("a")
    begun, go_on, done = threading.Event(), threading.Event(), []

    def take(one: QueueMessage) -> None:
        begun.set()
        go_on.wait()
        done.append(one.receipt)

    made = reader(sqs, take)
    acting = threading.Thread(target=made.step)
    acting.start()
    begun.wait()

    def stop() -> None:
        made.stop()
        done.append("stopped")

    stopped = threading.Thread(target=stop)
    stopped.start()
    go_on.set()
    acting.join()
    stopped.join()
    assert done == ["a", "stopped"]
    assert sqs.left() == []


def test_a_bug_on_an_object_leaves_that_object_out_and_the_message_is_answered_for_the_others() -> None:
    sqs, poison, answered = Sqs("a"), ["claim"], []

    def take(message: QueueMessage) -> None:
        if poison:
            raise ZeroDivisionError
        answered.append(message.receipt)

    def isolate(failure: Panic, run: Run, about: str) -> Panic | None:
        assert failure.error and not about
        poison.clear()
        return run()

    made = reader(sqs, take)
    made.isolate = isolate
    made.step()
    assert (answered, sqs.left()) == (["a"], [])
