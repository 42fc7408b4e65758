"""Writes the history in the background.

Invariant: a broken, slow or full database never delays a launch. A record is put into a bounded queue and
nothing else happens on the caller's thread. Records beyond the queue are lost and counted. While the database
fails, the same batch is tried again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import structlog
from prometheus_client import Counter, Gauge
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from broker.apis import names
from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.chances import SlotTurnover, reservation_of, turnovers
from broker.capacity.forecast import WINDOW, PoolForecast, forecasts, odds
from broker.history.demand import LevelSampler, UseLevel, pulse
from broker.history.entries import (
    Entry,
    is_shortage,
    microseconds,
    of_attempt,
    of_event,
    pools,
    reservations,
)
from broker.history.store import HistoryStore
from broker.history.tables import SLOT, Batch
from broker.kube.clock import Clock
from broker.kube.events import RecordedEvent
from broker.kube.panics import guarded
from broker.oncall.metrics import REGISTRY
from providers.model import Odcr

QUEUE: Final = 10_000
BATCH: Final = 500
GATHER: Final = 0.2  # seconds for more records of the same burst
RETRY: Final = 5.0
PRUNE: Final = 60.0
# Kinds with too many events of other meaning: their events repeat those of claims.
_LEFT_OUT: Final = frozenset({"Pod", "Node"})

LOST: Final = Counter(
    "capacity_broker_history_lost_entries",
    "Records that the history lost, by reason: full (its queue), bad (not storable).",
    ["reason"],
    registry=REGISTRY,
)
WRITABLE: Final = Gauge(
    "capacity_broker_history_writable",
    "1 while the history's database takes records, 0 while it fails.",
    registry=REGISTRY,
)
_log = structlog.get_logger("history")


@dataclass(frozen=True, slots=True)
class _Use:
    """The slots of EC2's reservations at a time."""

    at: datetime
    odcrs: tuple[Odcr, ...]


Counting = Callable[[], Iterable[UseLevel] | None]  # None: the counts are not known now
_Fact = Attempt | RecordedEvent | _Use | UseLevel


def forecasts_of(
    store: HistoryStore, now: datetime
) -> tuple[Mapping[str, PoolForecast], Mapping[str, SlotTurnover]]:
    """The forecasts by pool, and the turnovers by the id of a reservation that was requested. Raises
    SQLAlchemyError.
    """
    since = int((now - WINDOW).timestamp())
    outcomes = store.outcomes(since=since)
    samples = store.uses({reservation_of(row.pool) for row in outcomes} - {""}, since=since)
    return forecasts(outcomes, now), turnovers(samples, outcomes, now)


class HistoryRecorder:
    """`attempt`, `event` and `use` from any thread; `start` begins to write them."""

    def __init__(
        self,
        store: HistoryStore,
        *,
        clock: Clock,
        days: float = 30.0,
        entries: int = 200_000,
        size: int = QUEUE,
    ) -> None:
        """`days` and `entries` limit the history; `size` limits the records that wait."""
        self.store = store
        self.version = 0  # grows with every change of the history
        self._clock, self._size = clock, size
        self._age, self._most = timedelta(days=days), entries
        self._facts: deque[_Fact] = deque()
        self._changed = threading.Condition()
        self._batch: list[_Fact] = []
        self._stopped = self._opened = False
        self._works, self._tried_last = True, False
        self._maintained = float("-inf")
        self._uses: dict[str, tuple[int, int]] = {}
        self._counting: Counting | None = None  # requested, and not counted yet
        self._sampler, self._sampling = LevelSampler(), threading.Lock()
        self._forecasts: Mapping[str, PoolForecast] = {}
        self._turnovers: Mapping[str, SlotTurnover] = {}
        self._odds: Mapping[str, int] = {}
        self._thread: threading.Thread | None = None

    def attempt(self, attempt: Attempt) -> None:
        self._put(attempt)

    def event(self, event: RecordedEvent) -> None:
        """Events about attempts repeat them, so they are not stored again."""
        if event.about.kind not in _LEFT_OUT and names.ATTEMPT_IDS not in event.annotations:
            self._put(event)

    def use(self, odcrs: Mapping[str, Odcr]) -> None:
        """Samples the use of EC2's reservations, if it changed since the last sample."""
        seen = {id_: (odcr.total, odcr.available) for id_, odcr in odcrs.items()}
        changed = tuple(odcr for id_, odcr in odcrs.items() if self._uses.get(id_) != seen[id_])
        self._uses = seen
        if changed:
            self._put(_Use(self._clock.now(), changed))

    def sample(self, counting: Counting) -> None:
        """Counts soon, in the recorder's thread: the loops that request it, that of launches among them, go
        on."""
        with self._changed:
            self._counting = counting
            self._changed.notify_all()

    def levels(self, levels: Iterable[UseLevel]) -> None:
        """Samples the counts of all reservations and of all instances outside."""
        with self._sampling:
            at = int(self._clock.now().timestamp())
            changed = self._sampler.changed((*levels, pulse(at)), at)
            if not all(self._put(level) for level in changed):
                self._sampler = LevelSampler()

    def sample_anew(self) -> None:
        """Makes the next sample a full one: the last one was lost, or another process wrote meanwhile."""
        with self._sampling:
            self._sampler = LevelSampler()

    def forecasts(self) -> Mapping[str, PoolForecast]:
        """Reads by pool, at most a minute old; empty while the database fails."""
        return self._forecasts

    def turnovers(self) -> Mapping[str, SlotTurnover]:
        """Reads by the id of a reservation that was requested, as old as the forecasts."""
        return self._turnovers

    def odds(self) -> Mapping[str, int]:
        """The ranks of pools among equal options, as old as the forecasts."""
        return self._odds

    def forecast(self) -> None:
        """Reads the forecasts anew. Raises SQLAlchemyError."""
        self._forecasts, self._turnovers = forecasts_of(self.store, self._clock.now())
        self._odds = odds(self._forecasts)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 5.0) -> None:
        """Writes the records that wait, as far as `timeout` allows."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return
        self.store.close()

    # ---- how

    def _put(self, fact: _Fact) -> bool:
        """False if the queue is full and the record is lost."""
        with self._changed:
            if len(self._facts) >= self._size:
                LOST.labels("full").inc()
                return False
            self._facts.append(fact)
            self._changed.notify_all()
            return True

    def _run(self) -> None:
        while not self._finished():
            with guarded("history"):
                self._count()
                self._batch = self._batch or self._take()
                if self._store():
                    self._batch = []
                    self._maintain()
                    continue
            self._wait(RETRY)

    def _count(self) -> None:
        with self._changed:
            counting, self._counting = self._counting, None
        with guarded("history"):  # a fault of the counts stops no other record
            levels = counting() if counting is not None else None
            if levels is not None:
                self.levels(levels)

    def _finished(self) -> bool:
        """At the end there is one more try for the records that wait."""
        with self._changed:
            if not self._stopped or (self._works and (self._facts or self._batch)):
                return False
            tried, self._tried_last = self._tried_last, True
            return self._works or tried

    def _take(self) -> list[_Fact]:
        """The next records; none after a while without any, so that old ones are deleted in time."""
        with self._changed:
            if self._opened and not (self._facts or self._counting or self._stopped):
                self._clock.wait(self._changed, PRUNE)
            few = 0 < len(self._facts) < BATCH
        if few:
            self._wait(GATHER)
        with self._changed:
            return [self._facts.popleft() for _ in range(min(BATCH, len(self._facts)))]

    def _wait(self, seconds: float) -> None:
        """Waits, less long if the recorder stops."""
        deadline = self._clock.monotonic() + seconds
        with self._changed:
            while not self._stopped and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait(self._changed, left)

    def _store(self) -> bool:
        """False if the database cannot be used now. Records that it rejects are lost."""
        try:
            if not self._opened:
                self.store.open()
                self._opened = True
            if self._batch:
                self.store.write(batch_of(self._batch))
                self.version += 1
        except (DataError, IntegrityError):
            self._lose_batch()
            raise
        except (SQLAlchemyError, OSError) as error:
            self._failed(error)
            self._maintained = float("-inf")  # the forecasts are read anew once it works
            if self._opened and self.store.bounded:  # it may be full
                with suppress(SQLAlchemyError):
                    self._prune()
            return False
        except Exception:
            self._lose_batch()
            raise
        self._works = True
        WRITABLE.set(1)
        return True

    def _lose_batch(self) -> None:
        LOST.labels("bad").inc(len(self._batch))
        self._batch = []
        self.sample_anew()

    def _failed(self, error: Exception) -> None:
        if self._works:
            _log.warning("history is not written", error=str(error).partition("\n")[0])
        self._works = False
        self._forecasts, self._odds = {}, {}
        WRITABLE.set(0)

    def _maintain(self) -> None:
        """Once a minute: deletes old entries, and reads the forecasts anew."""
        now = self._clock.monotonic()
        if now - self._maintained < PRUNE:
            return
        self._maintained = now
        try:
            self._prune()
            self.forecast()
        except SQLAlchemyError as error:
            self._failed(error)

    def _prune(self) -> None:
        oldest = microseconds(self._clock.now() - self._age)
        self.store.prune(before=oldest, rows=self._most)


def batch_of(facts: list[_Fact]) -> Batch:
    """The rows of these facts."""
    entries: dict[str, Entry] = {}
    levels: dict[tuple[int | str, ...], UseLevel] = {}
    batch = Batch()
    for fact in facts:
        match fact:
            case Attempt():
                entry = of_attempt(fact)
                entries[entry.id] = entry
                for id_ in reservations(fact):
                    batch.reservations[(id_, entry.id)] = entry.at
                if fact.node_pool:
                    batch.claims[fact.claim] = (fact.node_pool, entry.at)
                if fact.outcome is Outcome.LAUNCHED:
                    key = (_slot(fact.at), str(fact.pool))
                    batch.launches[key] = batch.launches.get(key, 0) + 1
                if is_shortage(fact):
                    for pool in pools(fact):
                        key = (_slot(fact.at), str(pool))
                        batch.refusals[key] = batch.refusals.get(key, 0) + 1
            case RecordedEvent():
                entry = of_event(fact)
                entries[entry.id] = entry
                if entry.kind == "NodeClaim" and (pool_name := fact.labels.get(names.NODEPOOL)):
                    batch.claims[entry.name] = (pool_name, entry.at)
            case UseLevel():
                levels[fact[:5]] = fact
            case _Use():
                for odcr in fact.odcrs:
                    batch.uses[(_slot(fact.at), odcr.id)] = (odcr.total, odcr.used)
    return replace(batch, entries=[*entries.values()], levels=[*levels.values()])


def _slot(at: datetime) -> int:
    seconds = microseconds(at) // 1_000_000
    return seconds - seconds % SLOT
