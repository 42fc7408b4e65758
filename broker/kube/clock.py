"""Time as an argument: code that reads or waits for time takes a Clock, so that tests own it.

Invariant: no other module of the runtime calls `time`. Durations are measured on the monotonic clock, never
on the wall clock. On Linux that is CLOCK_BOOTTIME, which goes on while the machine sleeps
(clock_gettime(2)): a leader that slept through its lease notices when it wakes.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol

Signal = threading.Event | threading.Condition

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def now(self) -> datetime:
        """The wall clock, aware and in UTC, for times that are written down."""

    def monotonic(self) -> float:
        """Seconds that only grow, for durations."""

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        """Waits until the event is set or the condition (its lock held by the caller) is notified.

        False after `timeout` seconds.
        """

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.clock_gettime(_BOOTTIME)

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        return signal.wait(None if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX))

    def sleep(self, seconds: float) -> None:
        time.sleep(max(seconds, 0.0))


class StoppedClock(SystemClock):
    """Its wall clock stands at one moment."""

    def __init__(self, at: datetime) -> None:
        self._at = at

    def now(self) -> datetime:
        return self._at
