"""Time that a test can move forward while the broker's threads wait."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

from broker.kube.clock import Signal

SLICE = 0.05
STEADY = 2.0


class MovableClock:
    """The machine's clock, moved ahead by the test. Waiting threads notice within a slice.

    A thread at work sees a move at its next wait, or `STEADY` seconds after its last: no day passes between
    the reading of a time and the wait for it.
    """

    def __init__(self) -> None:
        self._ahead = 0.0
        self._seen = threading.local()

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._offset())

    def monotonic(self) -> float:
        return time.monotonic() + self._offset()

    def advance(self, seconds: float) -> None:
        self._ahead += seconds
        self._look()

    def _offset(self) -> float:
        if time.monotonic() < getattr(self._seen, "until", 0.0):
            return float(self._seen.ahead)
        return self._ahead

    def _look(self) -> None:
        self._seen.ahead, self._seen.until = self._ahead, time.monotonic() + STEADY

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        try:
            return self._wait(signal, timeout)
        finally:
            self._look()

    def _wait(self, signal: Signal, timeout: float | None) -> bool:
        if isinstance(signal, threading.Condition):
            # One slice, then back to the caller, which checks again, as after any spurious wakeup.
            left = SLICE if timeout is None else min(timeout, SLICE)
            return signal.wait(max(left, 0.0)) or timeout is None or timeout > SLICE
        due = float("inf") if timeout is None else self.monotonic() + timeout
        while (left := due - self.monotonic()) > 0:
            if signal.wait(min(left, SLICE)):
                return True
            self._look()
        return signal.is_set()

    def sleep(self, seconds: float) -> None:
        due = self.monotonic() + seconds
        while (left := due - self.monotonic()) > 0:
            time.sleep(min(left, SLICE))
            self._look()


class HastyClock(MovableClock):
    """The same time, but a hundred times shorter sleeps: for the waits between calls to AWS."""

    def __init__(self, clock: MovableClock) -> None:
        super().__init__()
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / 100)

    def _look(self) -> None:
        self._clock._look()
