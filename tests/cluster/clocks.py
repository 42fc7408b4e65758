"""Time that a test can move forward while the broker's threads wait."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

from broker.kube.clock import Signal

SLICE = 0.05


class MovableClock:
    """The machine's clock, moved ahead by the test. Waiting threads notice within a slice."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._ahead)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        if isinstance(signal, threading.Condition):
            # One slice, then back to the caller, which checks again, as after any spurious wakeup.
            left = SLICE if timeout is None else min(timeout, SLICE)
            return signal.wait(max(left, 0.0)) or timeout is None or timeout > SLICE
        due = float("inf") if timeout is None else self.monotonic() + timeout
        while (left := due - self.monotonic()) > 0:
            if signal.wait(min(left, SLICE)):
                return True
        return signal.is_set()

    def sleep(self, seconds: float) -> None:
        due = self.monotonic() + seconds
        while (left := due - self.monotonic()) > 0:
            time.sleep(min(left, SLICE))


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
