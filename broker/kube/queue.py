"""The keys that wait for a worker.

Invariant: one worker at a time has a key. A key that is added several times while it waits is worked on
once; one that is added while a worker has it is worked on once more afterwards. Semantics of client-go's
util/workqueue (https://pkg.go.dev/k8s.io/client-go/util/workqueue).
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Hashable
from itertools import count
from typing import Generic, TypeVar

from prometheus_client import Counter, Gauge, Histogram

from broker.doubling import doubled
from broker.kube.clock import Clock
from broker.kube.metrics import REGISTRY

K = TypeVar("K", bound=Hashable)

DEPTH = Gauge(
    "capacity_broker_kube_queue_depth", "Keys that wait for a worker.", ["queue"], registry=REGISTRY
)
RETRIES = Counter(
    "capacity_broker_kube_queue_retries", "Keys put back after a failure.", ["queue"], registry=REGISTRY
)
WAITED = Histogram(
    "capacity_broker_kube_queue_seconds",
    "Seconds from when a key was ready until a worker took it.",
    ["queue"],
    buckets=(0.005, 0.025, 0.1, 0.5, 1, 5, 15, 60, 300),
    registry=REGISTRY,
)


class ShutDown(Exception):
    """The queue gives no more keys."""


class WorkQueue(Generic[K]):
    """`get`, work, then `done`; `retry` after a failure and `forget` after a success."""

    def __init__(self, name: str, *, clock: Clock, first: float = 0.1, longest: float = 300.0) -> None:
        self.name = name
        self._clock = clock
        self._depth, self._waited = DEPTH.labels(name), WAITED.labels(name)
        self._first, self._longest = first, longest
        self._changed = threading.Condition()
        self._ready: deque[K] = deque()
        self._dirty: dict[K, float] = {}  # key → ready since; waits for a worker, or for one to be done
        self._active: set[K] = set()
        self._later: dict[K, float] = {}  # key → due; the earliest request counts
        self._heap: list[tuple[float, int, K]] = []  # may hold requests that `_later` no longer has
        self._order = count()
        self._failures: dict[K, int] = {}
        self._down = False

    def add(self, key: K) -> None:
        with self._changed:
            self._add(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Adds the key in `seconds`, unless it is due earlier already."""
        with self._changed:
            if self._down:
                return
            if seconds <= 0:
                self._add(key)
                return
            due = self._clock.monotonic() + seconds
            if due < self._later.get(key, float("inf")):
                self._later[key] = due
                heapq.heappush(self._heap, (due, next(self._order), key))
                self._changed.notify()

    def retry(self, key: K, *, at_least: float = 0.0) -> float:
        """Adds the key after a delay that doubles with each failure since it was last forgotten."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        RETRIES.labels(self.name).inc()
        delay = max(at_least, doubled(self._first, self._longest, failures))
        self.add_after(key, delay)
        return delay

    # Without the lock, for which all workers compete: only the worker that has the key changes its count.
    def forget(self, key: K) -> None:
        """The key's failures are over."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    def get(self) -> K:
        """The next key, as soon as there is one. Raises ShutDown once the queue is shut down."""
        with self._changed:
            while True:
                self._promote()
                if self._ready:
                    key = self._ready.popleft()
                    waited = self._clock.monotonic() - self._dirty.pop(key)
                    self._active.add(key)
                    self._depth.set(len(self._ready))
                    self._waited.observe(waited)
                    if self._heap:  # this worker watched the time for the others
                        self._changed.notify()
                    return key
                if self._down:
                    raise ShutDown(self.name)
                self._clock.wait(self._changed, self._until_next())

    def done(self, key: K) -> None:
        """Every key that `get` gave is given back."""
        with self._changed:
            self._active.discard(key)
            if key in self._dirty:
                self._ready.append(key)
                self._changed.notify()

    def shut_down(self) -> None:
        """Takes no more keys and gives none: the next process finds the rest again."""
        with self._changed:
            self._down = True
            self._ready.clear()
            self._dirty.clear()
            self._later.clear()
            self._heap.clear()
            self._changed.notify_all()

    def __len__(self) -> int:
        """Keys that are ready now."""
        with self._changed:
            self._promote()
            return len(self._ready)

    def _add(self, key: K) -> None:
        if self._down or key in self._dirty:
            return
        self._dirty[key] = self._clock.monotonic()
        if key not in self._active:
            self._ready.append(key)
            self._depth.set(len(self._ready))
            self._changed.notify()

    def _promote(self) -> None:
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._later.get(key) == due:
                del self._later[key]
                self._add(key)

    def _until_next(self) -> float | None:
        return max(0.0, self._heap[0][0] - self._clock.monotonic()) if self._heap else None
