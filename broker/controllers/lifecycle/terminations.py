"""Watches and terminates, in batches, the instances that claims and nodes need to end.

Why: a call for each instance empties EC2's buckets when a NodePool is scaled down, and 40 claims need not
make 80 calls. Karpenter batches 500 (pkg/batcher). An instance that EC2 refuses to terminate is retried at
growing intervals, apart from the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from broker.doubling import doubled
from broker.kube.batch import Batcher
from broker.kube.clock import Clock
from broker.kube.controller import Result
from providers.base import InstanceCalls
from providers.errors import ProviderError
from providers.model import Instance

RECHECK = 2.0
LONGEST_BACKOFF = 60.0  # seconds between two tries at an instance that EC2 refuses to terminate
# Karpenter's window for the same calls.
IDLE = 0.1
_ENDING = ("shutting-down", "terminated")

_log = structlog.get_logger("terminations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """EC2's last description of an instance; None if EC2 shows none with that id.

    `began`: when it was read.
    """

    instance: Instance | None
    began: datetime
    requested: bool = False  # whether EC2 answered a request to terminate it
    refused: ProviderError | None = None  # EC2's refusal of the last request

    @property
    def gone(self) -> bool:
        return self.instance is None or not self.instance.alive


@dataclass(slots=True)
class _Watched:
    seen: Sighting | None = None
    ending: bool = False
    tries: int = 0  # refusals in a row
    due: float = field(default=float("-inf"))  # when it is terminated again, on the monotonic clock


class Terminations:
    """`watch`, `end` and `forget` are for any thread; `run` is called by a Singleton over `batcher`."""

    def __init__(
        self,
        provider: InstanceCalls,
        *,
        clock: Clock,
        check: Callable[[], None],
        wake: Callable[[str], None],
    ) -> None:
        """`check` raises if another process may lead by now. `wake` gets the id of an instance with news."""
        self.batcher = Batcher[str]("terminations", clock=clock, idle=IDLE)
        self._provider = provider
        self._clock = clock
        self._check = check
        self._wake = wake
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()

    def watch(self, id_: str) -> Sighting | None:
        """The last description of the instance, which is watched from now on; None before the first."""
        with self._lock:
            known = self._watched.get(id_)
            if known is None:
                self._watched[id_] = _Watched()
                self.batcher.add(id_)
            return known.seen if known else None

    def end(self, id_: str) -> None:
        """Terminates the instance with the next batch, and again until EC2 shows that it ends."""
        with self._lock:
            watched = self._watched.setdefault(id_, _Watched())
            if not watched.ending:
                watched.ending = True
                self.batcher.add(id_)

    def forget(self, id_: str) -> None:
        with self._lock:
            self._watched.pop(id_, None)

    def run(self, _items: Sequence[str]) -> Result | None:
        """Describes all watched instances, and terminates those that are to end. Raises ProviderError."""
        with self._lock:
            watched = dict(self._watched)
        if not watched:
            return None
        began = self._clock.now()
        described = {instance.id: instance for instance in self._provider.instances(list(watched))}
        now = self._clock.monotonic()
        due = [
            id_
            for id_, entry in watched.items()
            if entry.ending and entry.due <= now and _may_end(described.get(id_))
        ]
        # Instances that were refused before do not delay the others.
        refused = self._terminate([id_ for id_ in due if not watched[id_].tries])
        refused |= self._terminate([id_ for id_ in due if watched[id_].tries])
        for id_, entry in watched.items():
            sighting = Sighting(
                instance=described.get(id_), began=began, requested=id_ in due, refused=refused.get(id_)
            )
            self._learn(id_, entry, sighting, now)
        return Result(requeue_after=RECHECK)

    def _terminate(self, ids: Sequence[str]) -> dict[str, ProviderError]:
        if not ids:
            return {}
        self._check()
        try:
            self._provider.terminate(ids)
        except ProviderError as error:
            _log.warning("instances could not be terminated", error=str(error))
            return dict(error.refused or dict.fromkeys(ids, error))
        return {}

    def _learn(self, id_: str, entry: _Watched, seen: Sighting, now: float) -> None:
        before = entry.seen
        if seen.requested:
            entry.tries = entry.tries + 1 if seen.refused else 0
            entry.due = now + doubled(RECHECK, LONGEST_BACKOFF, entry.tries - 1) if seen.refused else now
        elif before is not None:  # a refusal is valid until the next try
            seen = replace(seen, requested=before.requested, refused=before.refused)
        entry.seen = seen
        if before is None or _reported_parts(before) != _reported_parts(seen):
            self._wake(id_)


def _may_end(instance: Instance | None) -> bool:
    """Whether to terminate it: EC2 may have an instance that it does not show yet."""
    return instance is None or (instance.state not in _ENDING and instance.ownership != "foreign")


def _reported_parts(seen: Sighting) -> tuple[object, ...]:
    """The parts of a sighting that change the actions or the conditions of a claim."""
    refused = (seen.refused.code, seen.refused.message) if seen.refused else None
    return seen.instance and seen.instance.state, seen.requested, refused
