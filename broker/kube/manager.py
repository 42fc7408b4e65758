"""Owns the informers and loops of one term of leadership: declares them, starts them, stops them.

Invariant: nothing acts before the caches that it reads are complete, and no run begins after `stop` has
returned. A run that hangs is not waited for: the term's client refuses its writes (broker.kube.lease). Each
object that a cache leaves out is reported (broker.kube.left_out).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import structlog
from prometheus_client import Counter

from broker.apis.meta import Object
from broker.kube.batch import IDLE, Batcher
from broker.kube.clock import Clock
from broker.kube.controller import Controller, Result
from broker.kube.errors import ApiError, Errors
from broker.kube.events import Recorder, Reference
from broker.kube.informer import Informer
from broker.kube.metrics import REGISTRY
from broker.kube.partial import PartialObject
from broker.kube.queue import K, WorkQueue
from broker.kube.refusals import tell_refusal
from broker.kube.singleton import Singleton

LONGEST_BACKOFF = 60.0  # seconds between two tries at one key, however often it failed

_log = structlog.get_logger("manager")

Synced = Callable[[], bool]
Loop = Singleton[Any] | Controller[Any]


class Runnable(Protocol):
    """A thread that is no loop over keys."""

    def start(self) -> None: ...

    def stop(self) -> object: ...


class ControllerManager:
    """`controller` and `singleton` declare a loop; the loop's `watches` and `on` declare its triggers."""

    def __init__(self, *, clock: Clock, recorder: Recorder, synced: Synced, expected: Errors = ()) -> None:
        """`synced`: the caches are complete that a loop waits for by default. `expected`: errors that are no
        bug of the broker, besides the API's."""
        self.informers: list[Informer[Any]] = []
        self.loops: list[Loop] = []
        self._left_out = reporter(recorder)
        self._clock = clock
        self._recorder = recorder
        self._synced = synced
        self._expected = expected
        self._runnables: list[Runnable] = []
        self._closers: list[Callable[[], None]] = []

    def follow(self, *informers: Informer[Any]) -> None:
        """Takes over the start and stop of these informers."""
        for informer in informers:
            self.informers.append(informer)
            informer.cache.on_left_out(self._left_out)

    def controller(
        self,
        name: str,
        reconcile: Callable[[K], Result | None],
        *,
        workers: int = 1,
        synced: Synced | None = None,
        about: Callable[[K], Object | None] | None = None,
    ) -> Controller[K]:
        """A loop that reconciles one key at a time on each of its workers. `about`: the object of a key; it
        gets an event if a policy or a webhook refuses a step.
        """
        loop: Controller[K] = Controller(
            name,
            reconcile if about is None else self._reported(reconcile, about),
            queue=WorkQueue[K](name, clock=self._clock, longest=LONGEST_BACKOFF),
            clock=self._clock,
            workers=workers,
            synced=synced or self._synced,
            expected=self._expected,
        )
        self.add(loop)
        return loop

    def _reported(
        self, reconcile: Callable[[K], Result | None], about: Callable[[K], Object | None]
    ) -> Callable[[K], Result | None]:
        def reported(key: K) -> Result | None:
            try:
                return reconcile(key)
            except ApiError as error:
                if (obj := about(key)) is not None:
                    tell_refusal(self._recorder, obj, error)
                raise

        return reported

    def singleton(
        self,
        name: str,
        run: Callable[[Sequence[K]], Result | None],
        *,
        every: float | None = None,
        batcher: Batcher[K] | None = None,
        idle: float = IDLE,
        longest: float = 1.0,
        synced: Synced | None = None,
    ) -> Singleton[K]:
        """A loop that takes all keys at once, and runs every so many seconds without any. A change starts a
        run once none has followed for `idle` seconds, and within `longest`, however many follow."""
        loop: Singleton[K] = Singleton(
            name,
            run,
            batcher=Batcher[K](name, clock=self._clock, idle=idle, longest=longest)
            if batcher is None
            else batcher,
            clock=self._clock,
            synced=synced or self._synced,
            every=every,
            expected=self._expected,
        )
        self.add(loop)
        return loop

    def add(self, *loops: Loop) -> None:
        """Takes over loops that are made elsewhere."""
        self.loops += loops

    def run(self, runnable: Runnable) -> None:
        """Starts it after the loops, and stops it before them."""
        self._runnables.append(runnable)

    def on_stop(self, close: Callable[[], None]) -> None:
        """Calls `close` once every loop has ended."""
        self._closers.append(close)

    def start(self) -> None:
        for informer in self.informers:
            informer.start()
        self._recorder.start()
        for part in (*self.loops, *self._runnables):
            part.start()

    def stop(self) -> None:
        """Lets every run under way end, then stops reading."""
        for runnable in reversed(self._runnables):
            runnable.stop()
        for loop in reversed(self.loops):
            if not loop.stop():
                _log.warning("a run outlives its term: its writes are refused", loop=loop.name)
        for close in self._closers:
            close()
        self._recorder.stop()
        for informer in self.informers:
            informer.stop()


REASON: Final = "LeftOut"

LEFT_OUT = Counter(
    "capacity_broker_objects_left_out",
    "Objects left out of every decision, by cause: decoding, or a pass (once each time).",
    ["kind", "why"],
    registry=REGISTRY,
)


def reporter(recorder: Recorder) -> Callable[[PartialObject], None]:
    """Reports through this recorder."""

    def report(partial: PartialObject) -> None:
        LEFT_OUT.labels(partial.kind.resource, "pass" if partial.decoded else "decoding").inc()
        about = Reference(
            api_version=partial.kind.api_version,
            kind=partial.kind.kind,
            name=partial.name,
            namespace=partial.namespace,
            uid=partial.uid,
        )
        message = (
            f"the broker takes no account of this {partial.kind.kind} until it is changed: {partial.error}"
        )
        recorder.event(about, "Warning", REASON, message)

    return report
