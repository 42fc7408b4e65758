"""The queue's promises, each by an example, and all of them together against a model."""

from __future__ import annotations

import threading

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.kube.queue import ShutDown, WorkQueue
from tests.support.clock import FakeClock

KEYS = st.sampled_from("abc")


def queue(clock: FakeClock) -> WorkQueue[str]:
    return WorkQueue("test", clock=clock, first=1.0, longest=8.0)


def test_a_key_added_twice_is_delivered_once() -> None:
    q = queue(FakeClock())
    q.add("a")
    q.add("b")
    q.add("a")
    assert [q.get(), q.get()] == ["a", "b"]
    assert len(q) == 0


def test_a_key_added_while_it_is_processed_is_delivered_again() -> None:
    q = queue(FakeClock())
    q.add("a")
    assert q.get() == "a"
    q.add("a")
    assert len(q) == 0  # no other worker may process it meanwhile
    q.done("a")
    assert q.get() == "a"


def test_a_delayed_key_is_delivered_at_its_earliest_time() -> None:
    clock = FakeClock()
    q = queue(clock)
    q.add_after("a", 10)
    q.add_after("a", 5)
    q.add_after("a", 20)
    clock.advance(4.9)
    assert len(q) == 0
    clock.advance(0.1)
    assert q.get() == "a"
    q.done("a")
    clock.advance(60)
    assert len(q) == 0


def test_failures_double_the_delay_up_to_a_limit_until_a_success() -> None:
    q = queue(FakeClock())
    assert [q.retry("a") for _ in range(5)] == [1, 2, 4, 8, 8]
    assert q.retry("b") == 1  # each key has its own
    q.forget("a")
    assert q.retry("a") == 1
    assert q.retry("a", at_least=30) == 30  # the server's Retry-After


def test_a_waiting_worker_gets_added_and_due_keys() -> None:
    clock = FakeClock()
    q = queue(clock)
    got: list[str] = []

    def work() -> None:
        for _ in range(2):
            got.append(q.get())

    worker = threading.Thread(target=work)
    worker.start()
    clock.threads(1)
    q.add("now")
    clock.until(lambda: got == ["now"])
    q.add_after("later", 3)
    clock.threads(1, within=3)
    clock.advance(3)
    worker.join()
    assert got == ["now", "later"]


def test_a_delayed_key_is_delivered_on_time_while_a_worker_is_busy() -> None:
    """The worker that waited for the delayed key takes another first; the key is still delivered in time."""
    clock = FakeClock()
    q = queue(clock)
    got: list[str] = []
    workers = [threading.Thread(target=lambda: got.append(q.get())) for _ in range(2)]
    for worker in workers:
        worker.start()
    clock.threads(2)
    q.add_after("later", 3)
    clock.threads(1, within=3)
    q.add("now")
    clock.until(lambda: got == ["now"])
    clock.threads(1, within=3)
    clock.advance(3)
    for worker in workers:
        worker.join()
    assert got == ["now", "later"]


def test_shutdown_wakes_every_worker_and_delivers_no_more_keys() -> None:
    clock = FakeClock()
    q = queue(clock)
    ended: list[str] = []

    def work() -> None:
        with pytest.raises(ShutDown):
            q.get()
        ended.append("ended")

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    clock.threads(3)
    q.shut_down()
    for worker in workers:
        worker.join()
    q.add("late")
    with pytest.raises(ShutDown):
        q.get()
    assert len(ended) == 3


class QueueModel(RuleBasedStateMachine):
    """Against sets: the ready keys, the keys in process, and the due times."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.q = queue(self.clock)
        self.ready: list[str] = []
        self.active: set[str] = set()
        self.again: list[str] = []  # added while active, in the order of completion
        self.due: dict[str, float] = {}
        self.failures: dict[str, int] = {}

    def _add(self, key: str) -> None:
        if key in self.active:
            if key not in self.again:
                self.again.append(key)
        elif key not in self.ready:
            self.ready.append(key)

    def _promote(self) -> None:
        now = self.clock.monotonic()
        for key in [k for k, at in self.due.items() if at <= now]:
            del self.due[key]
            self._add(key)

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self._promote()
        len(self.q)  # the queue checks the time on each call
        self._add(key)
        self.q.add(key)

    @rule(key=KEYS, seconds=st.sampled_from([0.5, 1.0, 2.5]))
    def add_after(self, key: str, seconds: float) -> None:
        due = self.clock.monotonic() + seconds
        self.due[key] = min(due, self.due.get(key, due))
        self.q.add_after(key, seconds)

    @rule(seconds=st.sampled_from([0.3, 1.1]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._promote()

    @precondition(lambda self: self.ready)
    @rule()
    def get(self) -> None:
        key = self.q.get()
        self.ready.remove(key)  # two that are due together have no order
        self.active.add(key)

    @precondition(lambda self: self.active)
    @rule(data=st.data(), failed=st.booleans())
    def done(self, data: st.DataObject, failed: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.active)))
        if failed:
            self.failures[key] = self.failures.get(key, 0) + 1
            delay = self.q.retry(key)
            assert delay == min(8.0, 2.0 ** (self.failures[key] - 1))
            due = self.clock.monotonic() + delay
            self.due[key] = min(due, self.due.get(key, due))
        else:
            self.failures.pop(key, None)
            self.q.forget(key)
        self.q.done(key)
        self.active.discard(key)
        if key in self.again:
            self.again.remove(key)
            self.ready.append(key)

    @invariant()
    def agrees(self) -> None:
        self._promote()
        assert len(self.q) == len(self.ready)
        assert {*self.q._active} == {*self.active}
        assert not set(self.ready) & self.active
        for key in "abc":
            assert self.q.failures(key) == self.failures.get(key, 0)


TestQueueModel = QueueModel.TestCase
