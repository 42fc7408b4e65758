"""Workers that call a reconcile function with the keys of a queue.

Invariant: a key is requeued after a failed reconcile, later each time, and never delays other keys. Failures
of the API server, a provider or the network are expected and logged in a line. Any other exception is a
panic: logged with its traceback and counted; its key backs off all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import structlog
from prometheus_client import Counter, Histogram

from broker.apis.meta import Object
from broker.kube.clock import Clock
from broker.kube.errors import EXPECTED, Conflict, Errors, TooManyRequests
from broker.kube.metrics import REGISTRY
from broker.kube.panics import guarded
from broker.kube.queue import K, ShutDown, WorkQueue
from broker.kube.watches import Watches

SYNC_POLL = 0.1
# Seconds. A remainder of a rounding would start the next run before the time that it waits for.
SHORTEST_REQUEUE = 0.001

RECONCILES = Counter(
    "capacity_broker_reconciles",
    "Reconciles by result: done, requeue, error (expected), panic.",
    ["controller", "result"],
    registry=REGISTRY,
)
SECONDS = Histogram(
    "capacity_broker_reconcile_seconds", "How long a reconcile took.", ["controller"], registry=REGISTRY
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """Returned by a reconcile that must run again after `requeue_after` seconds, even without an event."""

    requeue_after: float


@dataclass(frozen=True, slots=True)
class ReconcileOutcome:
    """The result of one reconcile; `wait` is the delay that the server requested after a failure."""

    failed: bool
    requeue_after: float | None = None
    wait: float = 0.0


def attempt(
    name: str,
    work: Callable[[], Result | None],
    *,
    clock: Clock,
    expected: Errors,
    **context: Any,
) -> ReconcileOutcome:
    """Calls `work`, measures it and returns its outcome."""
    began = clock.monotonic()
    outcome = ReconcileOutcome(failed=True)
    with guarded(name, **context) as guard:
        outcome = _call(name, work, expected, context)
    SECONDS.labels(name).observe(clock.monotonic() - began)
    result = (
        "panic"
        if guard.error
        else "error"
        if outcome.failed
        else "done"
        if outcome.requeue_after is None
        else "requeue"
    )
    RECONCILES.labels(name, result).inc()
    return outcome


def _call(
    name: str, work: Callable[[], Result | None], expected: Errors, context: dict[str, Any]
) -> ReconcileOutcome:
    try:
        requested = work()
    except Conflict as error:  # another writer was faster; the next reconcile sees its write
        log.debug("conflict, retrying", controller=name, error=str(error), **context)
        return ReconcileOutcome(failed=True)
    except expected as error:
        log.warning("failed, retrying", controller=name, error=str(error), **context)
        return ReconcileOutcome(
            failed=True, wait=error.retry_after if isinstance(error, TooManyRequests) else 0.0
        )
    return ReconcileOutcome(
        failed=False,
        requeue_after=None if requested is None else max(requested.requeue_after, SHORTEST_REQUEUE),
    )


class Controller(Watches[K]):
    """`workers` threads over one queue, started once and stopped once.

    `expected` are error types of the provider, besides the API's. No key is worked on before `synced`:
    without every cache, an object that is not listed yet would look like a deleted one.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Result | None],
        *,
        queue: WorkQueue[K],
        clock: Clock,
        workers: int = 4,
        synced: Callable[[], bool] = lambda: True,
        expected: Errors = (),
    ) -> None:
        self.name = name
        self.queue = queue
        self._reconcile = reconcile
        self._clock = clock
        self._synced = synced
        self._expected = (*EXPECTED, *expected)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name} {n}", daemon=True) for n in range(workers)
        ]

    def enqueue(self, keys: Iterable[K]) -> None:
        for key in keys:
            self.queue.add(key)

    def default_keys(self, *args: Any) -> Iterable[K]:
        """The key of an object; anything else is a key by itself."""
        return [cast("K", arg.key) if isinstance(arg, Object) else arg for arg in args]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float | None = 30.0) -> bool:
        """Lets each worker finish the key that it has; whether all have ended within `timeout`."""
        self._stop.set()
        self.queue.shut_down()
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(None if deadline is None else max(0.0, deadline - self._clock.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def synced(self) -> bool:
        """Whether every cache that a reconcile reads is complete."""
        return self._synced()

    def step(self) -> bool:
        """Works on one ready key in the caller's thread; whether there was one. For tests and single runs."""
        if not len(self.queue):
            return False
        self._reconcile_one(self.queue.get())
        return True

    def _work(self) -> None:
        while not self._synced():
            if self._clock.wait(self._stop, SYNC_POLL):
                return
        while True:
            try:
                key = self.queue.get()
            except ShutDown:
                return
            self._reconcile_one(key)

    def _reconcile_one(self, key: K) -> None:
        try:
            outcome = attempt(
                self.name,
                lambda: self._reconcile(key),
                clock=self._clock,
                expected=self._expected,
                key=str(key),
                failures=self.queue.failures(key),
            )
            if outcome.failed:
                self.queue.retry(key, at_least=outcome.wait)
                return
            self.queue.forget(key)
            if outcome.requeue_after is not None:
                self.queue.add_after(key, outcome.requeue_after)
        finally:
            self.queue.done(key)
