"""Time that a test can move forward while the broker's threads wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from broker.kube.clock import Signal

SLICE = 1.0
STEADY = 2.0


class MovableClock:
    """The machine's clock, moved ahead by the test. A move wakes the threads that are due.

    A thread at work sees a move at its next wait, or `STEADY` seconds after its last: no day passes between
    the reading of a time and the wait for it. A waiting thread looks again every `SLICE` seconds.
    """

    def __init__(self) -> None:
        self._ahead = 0.0
        self._seen = threading.local()
        self._lock = threading.Lock()
        self._waiting: dict[object, tuple[float, threading.Condition]] = {}

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._offset())

    def monotonic(self) -> float:
        return time.monotonic() + self._offset()

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._ahead += seconds
            time_now = time.monotonic() + self._ahead
            due = [condition for at, condition in self._waiting.values() if at <= time_now]
        self._refresh()
        if due:
            # Not in the caller's thread: another one may hold a condition's lock until the caller is done.
            threading.Thread(target=_notify, args=(due,), daemon=True).start()

    def _offset(self) -> float:
        if time.monotonic() < getattr(self._seen, "until", 0.0):
            return float(self._seen.ahead)
        return self._ahead

    def _refresh(self) -> None:
        self._seen.ahead, self._seen.until = self._ahead, time.monotonic() + STEADY

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        try:
            if isinstance(signal, threading.Condition):
                return self._wait(signal, timeout)
            condition: threading.Condition = vars(signal)["_cond"]  # an Event cannot be woken otherwise
            with condition:
                return self._until_set(signal.is_set, condition, timeout)
        finally:
            self._refresh()

    def _until_set(
        self, is_set: Callable[[], bool], condition: threading.Condition, timeout: float | None
    ) -> bool:
        due = float("inf") if timeout is None else self.monotonic() + timeout
        while not is_set() and (left := due - self.monotonic()) > 0:
            self._wait(condition, None if timeout is None else left)
            self._refresh()
        return is_set()

    def _wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        """One wait. It may end early: the caller checks again, as after any spurious wakeup."""
        if timeout is None:
            return condition.wait()
        token, seen = object(), self._offset()
        with self._lock:
            if seen != self._ahead:
                return True  # moved since the caller read the time
            self._waiting[token] = (time.monotonic() + seen + timeout, condition)
        try:
            return condition.wait(max(min(timeout, SLICE), 0.0)) or timeout > SLICE
        finally:
            with self._lock:
                self._waiting.pop(token)

    def sleep(self, seconds: float) -> None:
        self.wait(threading.Event(), seconds)


def _notify(conditions: list[threading.Condition]) -> None:
    for condition in conditions:
        with condition:
            condition.notify_all()


class HastyClock:
    """The same time, but a hundred times shorter sleeps: for the waits between calls to AWS."""

    def __init__(self, clock: MovableClock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        return self._clock.wait(signal, timeout)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / 100)
