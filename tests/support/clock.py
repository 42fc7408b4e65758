"""A clock that a test moves on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from broker.kube.clock import Signal

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE = 120.0  # real seconds after which a test that waits for other threads has failed


class FakeClock:
    """A clock that stands still until `advance`; threads that wait on it sleep for real, and wake when due.

    `threads` and `until` let a test meet other threads without ever sleeping.
    """

    def __init__(self, start: datetime = EPOCH) -> None:
        self._start = start
        self._seconds = 1000.0
        self._lock = threading.Condition()
        self._waiting: dict[object, tuple[float, threading.Condition]] = {}

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.monotonic() - 1000.0)

    def monotonic(self) -> float:
        with self._lock:
            return self._seconds

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        if isinstance(signal, threading.Condition):
            return self._wait(signal, timeout, None)
        condition: threading.Condition = vars(signal)[
            "_cond"
        ]  # an Event offers no other way to be woken early
        with condition:
            return self._wait(condition, timeout, signal.is_set)

    def _wait(
        self, condition: threading.Condition, timeout: float | None, done: Callable[[], bool] | None
    ) -> bool:
        token = object()
        due = float("inf") if timeout is None else self.monotonic() + max(timeout, 0.0)
        while True:
            if done is not None and done():
                return True
            with self._lock:
                if self._seconds >= due:
                    return False
                self._waiting[token] = (due, condition)
                self._lock.notify_all()
            try:
                if not condition.wait(3 * PATIENCE):
                    raise AssertionError("this clock was neither moved on nor notified")
            finally:
                with self._lock:
                    self._waiting.pop(token, None)
            if done is None:
                return self.monotonic() < due

    def sleep(self, seconds: float) -> None:
        self.wait(threading.Event(), seconds)

    def advance(self, seconds: float) -> int:
        """Moves time on and wakes the waiters; returns how many."""
        with self._lock:
            self._seconds = round(self._seconds + seconds, 6)  # ten steps of 0.1 are one second
            due = [token for token, (at, _) in self._waiting.items() if at <= self._seconds]
            woken = [self._waiting.pop(token)[1] for token in due]
        for condition in woken:
            with condition:
                condition.notify_all()
        return len(woken)

    def jump(self, seconds: float) -> None:
        """Moves time on without waking waiters, as for a paused process or a machine that slept."""
        with self._lock:
            self._seconds = round(self._seconds + seconds, 6)

    def threads(self, count: int = 1, *, within: float | None = None) -> None:
        """Returns when `count` threads wait on this clock (for at most `within` of its seconds)."""

        def waiting() -> bool:
            last = float("inf") if within is None else self._seconds + within
            return sum(at <= last for at, _ in self._waiting.values()) >= count

        with self._lock:
            if not self._lock.wait_for(waiting, PATIENCE):
                raise AssertionError(f"fewer than {count} threads came to wait: {self._waiting}")

    def until(self, done: Callable[[], bool], *, step: float = 0.0) -> None:
        """Returns when `done()`. Between checks it moves time on by `step` and lets the woken threads run."""
        deadline = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > deadline:
                raise AssertionError("the condition of the test was not met in time")
            self._step(step)

    def _step(self, seconds: float) -> None:
        with self._lock:
            before = len(self._waiting)
        woken = self.advance(seconds) if seconds else 0
        with self._lock:
            # A waiter that ends, or waits for something else, does not come back: the wait for it is short.
            self._lock.wait_for(lambda: woken > 0 and len(self._waiting) >= before, 0.5 if woken else 0.001)
