"""The one thread that takes joint decisions: batch, wait until every cache is synced, run, repeat.

Invariant: no two runs overlap, and nothing that was added before a run is lost by its failure: the items of a
failed run come back with the next one, after a back-off.
"""

from __future__ import annotations

import random as random_module
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import structlog

from broker.kube.backoff import Backoff, Random
from broker.kube.batch import Batcher
from broker.kube.clock import Clock
from broker.kube.controller import SYNC_POLL, Result, attempt
from broker.kube.errors import EXPECTED, Errors
from broker.kube.queue import K
from broker.kube.watches import Watches

FIRST, LONGEST = 0.2, 60.0  # seconds of back-off

log = structlog.get_logger(__name__)


class Singleton(Watches[K]):
    """Calls `run(items)` for each batch, after each `requeue_after`, and every `every` seconds anyway."""

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[K]], Result | None],
        *,
        batcher: Batcher[K],
        clock: Clock,
        synced: Callable[[], bool] = lambda: True,
        every: float | None = None,
        expected: Errors = (),
        random: Random = random_module.random,
    ) -> None:
        self.name = name
        self.batcher = batcher
        self._run = run
        self._clock = clock
        self._synced = synced
        self._every = every
        self._expected = (*EXPECTED, *expected)
        self._backoff = Backoff(first=FIRST, longest=LONGEST, random=random)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def enqueue(self, keys: Iterable[K]) -> None:
        if items := [*keys]:
            self.batcher.add(*items)

    def default_keys(self, *_: Any) -> Iterable[K]:
        """One key for all: each run reads everything."""
        return [cast("K", self.name)]

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = 30.0) -> bool:
        """Lets a run that is under way end; whether it has within `timeout`."""
        self._stop.set()
        self.batcher.close()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        wait = 0.0 if self._every is not None else None  # a periodic one has its first run at once
        while not self._stop.is_set():
            items = self.batcher.take(wait)
            while not self._synced():
                if self._clock.wait(self._stop, SYNC_POLL):
                    return
            if self._stop.is_set():
                return
            wait = self.step(items)

    @property
    def synced(self) -> bool:
        """Whether every cache that a run reads is complete."""
        return self._synced()

    def step(self, items: Sequence[K]) -> float | None:
        """One run, in the caller's thread; seconds until the next if no item comes before."""
        failed, wait = self.once(items)
        if not failed:
            return wait
        self._clock.wait(self._stop, wait)
        self.batcher.add(*items)
        return 0.0

    def once(self, items: Sequence[K]) -> tuple[bool, float | None]:
        """One run, without the wait after a failure: whether it failed, and seconds until the next run.

        After a failure the caller adds the items to the batcher again, once the seconds have passed.
        """
        outcome = attempt(
            self.name,
            lambda: self._run(items),
            clock=self._clock,
            expected=self._expected,
            items=len(items),
            failures=self._backoff.failures,
        )
        if not outcome.failed:
            self._backoff.reset()
            delays = [after for after in (outcome.requeue_after, self._every) if after is not None]
            return False, min(delays) if delays else None
        return True, self._backoff.next(at_least=outcome.wait)
