"""Batches items that are decided together: collects them while they keep coming, then hands them over.

Invariant: an item waits at most `longest` for its batch, and at most `idle` after the last item came. A
batch holds each item once, in the order of first mention, and at most `most` items. The window is
Karpenter's (pkg/controllers/provisioning/batcher.go, pkg/batcher).
"""

from __future__ import annotations

import threading
from typing import Final, Generic

from prometheus_client import Histogram

from broker.kube.clock import Clock
from broker.kube.metrics import REGISTRY
from broker.kube.queue import K

# Seconds: until what belongs together has come, and until a pass sees several steps of its objects.
IDLE: Final = 0.035
SETTLED: Final = 0.1

SIZE = Histogram(
    "capacity_broker_kube_batch_size",
    "Items in a batch.",
    ["batch"],
    buckets=(1, 2, 5, 10, 50, 100, 500, 1000),
    registry=REGISTRY,
)


class Batcher(Generic[K]):
    """`add` from any thread; one thread calls `take`."""

    def __init__(
        self, name: str, *, clock: Clock, idle: float = IDLE, longest: float = 1.0, most: int = 1000
    ) -> None:
        self.name = name
        self._clock = clock
        self._idle, self._longest, self._most = idle, longest, most
        self._changed = threading.Condition()
        self._items: dict[K, None] = {}
        self._first = self._last = 0.0  # when the window began, and when the last item came
        self._closed = False

    def add(self, *items: K) -> None:
        with self._changed:
            self._last = self._clock.monotonic()
            before = len(self._items)
            if not before:
                self._first = self._last
            self._items.update(dict.fromkeys(items))
            # In between, the taker reads the time by itself: a thousand items wake it once.
            if not before or before < self._most <= len(self._items):
                self._changed.notify_all()

    def take(self, timeout: float | None = None) -> list[K]:
        """The next batch; empty after `timeout` seconds without an item, and once closed."""
        with self._changed:
            deadline = None if timeout is None else self._clock.monotonic() + timeout
            while not self._items and not self._closed:
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    return []
                self._clock.wait(self._changed, left)
            while not self._closed and len(self._items) < self._most:
                end = min(self._last + self._idle, self._first + self._longest)
                if (left := end - self._clock.monotonic()) <= 0:
                    break
                self._clock.wait(self._changed, left)
            if self._closed:
                return []
            taken = [*self._items][: self._most]
            for item in taken:
                del self._items[item]
            self._first = self._last  # the rest begins a window of its own
            SIZE.labels(self.name).observe(len(taken))
            return taken

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        with self._changed:
            return len(self._items)
