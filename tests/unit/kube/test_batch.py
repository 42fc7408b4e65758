"""The window that collects items for a joint decision, and the loop that decides."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.kube.batch import Batcher
from broker.kube.controller import Result
from broker.kube.errors import TooManyRequests, Unavailable
from broker.kube.singleton import Singleton
from tests.support.clock import FakeClock


def batcher(clock: FakeClock, most: int = 1000) -> Batcher[str]:
    return Batcher("test", clock=clock, idle=0.035, longest=1.0, most=most)


class Taker:
    """A thread that takes one batch after another; each is recorded with its time."""

    def __init__(self, b: Batcher[str], clock: FakeClock) -> None:
        self.batches: list[tuple[float, list[str]]] = []
        self._b, self._clock, self._start = b, clock, clock.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while batch := self._b.take():
            self.batches.append((round(self._clock.monotonic() - self._start, 3), batch))

    def end(self) -> None:
        self._b.close()
        self._thread.join()


def test_a_batch_is_delivered_after_a_quiet_period() -> None:
    clock = FakeClock()
    b = batcher(clock)
    taker = Taker(b, clock)
    clock.threads(1)
    b.add("a")
    clock.threads(1, within=0.035)
    clock.advance(0.03)
    b.add("b", "a")
    clock.threads(1, within=0.035)
    clock.advance(0.034)
    assert taker.batches == []
    clock.advance(0.001)
    clock.until(lambda: bool(taker.batches))
    assert taker.batches == [(0.065, ["a", "b"])]
    taker.end()


def test_a_constant_stream_of_items_is_delivered_after_the_longest_wait() -> None:
    clock = FakeClock()
    b = batcher(clock)
    for n in range(50):
        b.add(str(n))
        clock.advance(0.02)
    assert len(b.take()) == 50  # a second has passed: at once


def test_a_full_batch_does_not_wait_and_the_rest_is_the_next_batch() -> None:
    clock = FakeClock()
    b = batcher(clock, most=3)
    b.add(*"abcde")
    assert b.take() == ["a", "b", "c"]
    assert len(b) == 2
    clock.advance(0.035)
    assert b.take() == ["d", "e"]


def test_no_item_within_the_timeout_is_an_empty_batch() -> None:
    clock = FakeClock()
    b = batcher(clock)
    taken: list[list[str]] = []
    thread = threading.Thread(target=lambda: taken.append(b.take(5)))
    thread.start()
    clock.threads(1, within=5)
    clock.advance(5)
    thread.join()
    assert taken == [[]]


def test_closing_wakes_a_waiting_taker() -> None:
    clock = FakeClock()
    b = batcher(clock)
    taker = Taker(b, clock)
    clock.threads(1)
    taker.end()
    b.add("late")
    assert b.take() == []


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([0.0, 0.01, 0.04, 0.5])), max_size=30))
def test_every_item_is_delivered_exactly_once(adds: list[tuple[str, float]]) -> None:
    clock = FakeClock()
    b = batcher(clock, most=4)
    waiting: list[str] = []
    for item, pause in adds:
        b.add(item)
        if item not in waiting:
            waiting.append(item)
        clock.advance(pause)
        if pause >= 0.035:
            batch = b.take()
            assert batch == waiting[:4]
            del waiting[:4]


class Loop:
    """A singleton in a thread; `fail` holds the exceptions of its next runs."""

    def __init__(self, clock: FakeClock, *, every: float | None = None, again: float | None = None) -> None:
        self.clock = clock
        self.batcher = batcher(clock)
        self.runs: list[list[str]] = []
        self.fail: list[Exception] = []
        self.synced = True
        self.again = again
        self.singleton: Singleton[str] = Singleton(
            "test",
            self.run,
            batcher=self.batcher,
            clock=clock,
            synced=lambda: self.synced,
            every=every,
            expected=(LookupError,),
            random=lambda: 1.0,
        )
        self.singleton.start()

    def run(self, items: Sequence[str]) -> Result | None:
        self.runs.append([*items])
        if self.fail:
            raise self.fail.pop(0)
        return None if self.again is None else Result(requeue_after=self.again)

    def add(self, *items: str) -> None:
        self.clock.threads(1)
        self.batcher.add(*items)

    def expect(self, count: int, *, step: float = 0.035) -> None:
        self.clock.until(lambda: len(self.runs) >= count, step=step)


def test_the_loop_runs_once_per_batch() -> None:
    loop = Loop(FakeClock())
    loop.add("a", "b")
    loop.expect(1)
    loop.add("c")
    loop.expect(2)
    assert loop.singleton.stop()
    assert loop.runs == [["a", "b"], ["c"]]


def test_the_loop_does_not_run_before_every_cache_is_synced() -> None:
    loop = Loop(FakeClock())
    loop.synced = False
    loop.add("a")
    clock = loop.clock
    for _ in range(50):
        clock.advance(0.1)
        clock.threads(1, within=0.1)
    assert loop.runs == []
    loop.synced = True
    loop.expect(1)
    assert loop.singleton.stop()


@pytest.mark.parametrize(
    "error", [Unavailable(503, "ServiceUnavailable", ""), LookupError("provider"), ZeroDivisionError("a bug")]
)
def test_items_of_a_failed_run_are_in_the_next_run(error: Exception) -> None:
    loop = Loop(FakeClock())
    loop.fail = [error]
    loop.add("a")
    loop.expect(1)
    loop.clock.threads(1, within=0.2)
    loop.batcher.add("b")
    loop.expect(2)
    assert loop.singleton.stop()
    assert [sorted(run) for run in loop.runs] == [["a"], ["a", "b"]]


def test_failures_back_off_exponentially() -> None:
    loop = Loop(FakeClock())
    loop.fail = [Unavailable(503, "", "") for _ in range(12)]
    loop.add("a")
    start = loop.clock.monotonic()
    loop.expect(13, step=1)
    assert loop.clock.monotonic() - start >= 0.2 * (2**9 - 1) + 2 * 60
    assert loop.singleton.stop()


def test_the_loop_waits_for_retry_after() -> None:
    loop = Loop(FakeClock())
    loop.fail = [TooManyRequests(429, "", "", {"retryAfterSeconds": 30})]
    loop.add("a")
    start = loop.clock.monotonic()
    loop.expect(2, step=0.5)
    assert loop.clock.monotonic() - start >= 30
    assert loop.singleton.stop()


def test_a_periodic_loop_runs_at_start_and_every_period() -> None:
    loop = Loop(FakeClock(), every=60)
    loop.clock.until(lambda: len(loop.runs) == 1)
    start = loop.clock.monotonic()
    while len(loop.runs) < 3:
        loop.clock.threads(1)  # it has run, and waits
        loop.clock.advance(1)
        loop.clock.threads(1)
    assert 120 <= loop.clock.monotonic() - start < 125
    assert loop.runs == [[], [], []]
    assert loop.singleton.stop()


def test_requeue_after_runs_the_loop_without_an_item() -> None:
    loop = Loop(FakeClock(), again=10)
    loop.add("a")
    loop.expect(1)
    start = loop.clock.monotonic()
    loop.expect(2, step=0.5)
    assert loop.clock.monotonic() - start >= 10
    assert loop.singleton.stop()
    assert loop.runs[1] == []
