"""The recorder: in the background, bounded, and never in the way of a launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.exc import InternalError, OperationalError, ProgrammingError

from broker.apis import names
from broker.history.demand import UseLevel
from broker.history.recorder import LOST, WRITABLE, HistoryRecorder
from broker.history.store import HistoryStore
from broker.history.tables import Batch, EntryFilter
from broker.kube.clock import SystemClock
from providers.model import LINUX, Odcr
from tests.unit.history.facts import OTHER, POOL, event, fill, launch, refusal


class FailingStore(HistoryStore):
    """Fails as long as `broken`."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True
        self.failures = 0

    def write(self, batch: Batch) -> None:
        if self.broken:
            self.failures += 1
            raise OperationalError("INSERT", {}, OSError("disk full"))
        super().write(batch)


class ForbiddenStore(HistoryStore):
    """May not create its tables."""

    opened = 0

    def open(self) -> None:
        self.opened += 1
        raise ProgrammingError("CREATE TABLE", {}, PermissionError("permission denied for schema public"))


class ReadOnlyStore(FailingStore):
    """A standby, as long as `broken`."""

    def write(self, batch: Batch) -> None:
        if self.broken:
            raise InternalError("INSERT", {}, OSError("read-only transaction"))
        super().write(batch)


class HurryingClock(SystemClock):
    """Its seconds are a hundredth as long, except on the wall clock."""

    def monotonic(self) -> float:
        return super().monotonic() * 100

    def wait(self, condition: object, timeout: float | None = None) -> bool:
        return super().wait(condition, None if timeout is None else timeout / 100)  # type: ignore[arg-type]


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lost(reason: str) -> float:
    return float(LOST.labels(reason)._value.get())


@pytest.fixture
def recorder() -> Iterator[HistoryRecorder]:
    history_recorder = HistoryRecorder(HistoryStore(), clock=SystemClock())
    history_recorder.start()
    yield history_recorder
    history_recorder.close()


def test_attempts_events_and_uses_are_written(recorder: HistoryRecorder) -> None:
    recorder.attempt(refusal(1))
    recorder.event(event())
    odcr = Odcr(id="cr-1", instance_type="p5.48xlarge", zone="us-east-1a", total=8, available=3)
    recorder.use({"cr-1": odcr})
    recorder.use({"cr-1": odcr})
    until(lambda: recorder.version)
    until(lambda: len(recorder.store.find(EntryFilter())) == 2)
    assert [use[1:] for use in recorder.store.uses(["cr-1"], since=0)["cr-1"]] == [(8, 5)]


def test_events_that_repeat_attempts_are_not_stored_again(recorder: HistoryRecorder) -> None:
    recorder.event(event(annotations={names.ATTEMPT_IDS: "0123456789abcdef"}))
    recorder.attempt(launch(1))
    until(lambda: recorder.version)
    assert [entry.kind for entry in recorder.store.find(EntryFilter())] == ["NodeClaim"]


def test_a_broken_database_loses_only_records() -> None:
    store = FailingStore()
    recorder = HistoryRecorder(store, clock=SystemClock(), size=5)
    recorder.start()
    recorder.attempt(refusal(0))
    until(lambda: WRITABLE._value.get() == 0)
    before = lost("full")
    for number in range(1, 11):
        recorder.attempt(refusal(number))
    assert lost("full") - before == 5
    store.broken = False
    recorder.close()  # at the end there is one more try
    assert WRITABLE._value.get() == 1


def test_pools_are_ranked_until_the_database_fails() -> None:
    clock = HurryingClock()
    store = FailingStore()
    store.broken = False
    now = clock.now()
    fill(store, *(launch(n, pool=OTHER, at=now - timedelta(minutes=10 * n)) for n in range(1, 6)))
    fill(store, refusal(1, at=now))
    recorder = HistoryRecorder(store, clock=clock)
    assert recorder.odds() == {}
    recorder.start()
    until(lambda: recorder.odds() == {str(POOL): 2})
    store.broken = True
    recorder.attempt(refusal(2, at=now))
    until(lambda: store.failures > 2)
    assert recorder.odds() == {}
    store.broken = False
    until(lambda: recorder.odds() == {str(POOL): 2})
    recorder.close()


def test_a_database_that_forbids_writing_is_retried_rarely() -> None:
    store = ForbiddenStore()
    recorder = HistoryRecorder(store, clock=SystemClock())
    recorder.start()
    recorder.attempt(refusal(1))
    until(lambda: WRITABLE._value.get() == 0)
    recorder.close()
    assert store.opened <= 3


@pytest.mark.parametrize("store_type", [FailingStore, ReadOnlyStore])
def test_records_wait_until_the_database_is_back(
    store_type: type[FailingStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.history.recorder.RETRY", 0.05)
    store = store_type()
    recorder = HistoryRecorder(store, clock=SystemClock())
    recorder.start()
    recorder.attempt(refusal(1, at=SystemClock().now()))
    until(lambda: WRITABLE._value.get() == 0)
    store.broken = False
    until(lambda: recorder.version)
    assert [entry.name for entry in store.find(EntryFilter())] == ["train-1"]
    recorder.close()


def test_an_unwritable_path_does_not_stop_the_recorder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recorder = HistoryRecorder(HistoryStore(str(tmp_path / "file" / "history.db")), clock=SystemClock())
    recorder.start()
    recorder.attempt(refusal(1))
    until(lambda: WRITABLE._value.get() == 0)
    recorder.close()


def test_a_full_file_deletes_old_entries_for_new_ones(tmp_path: Path) -> None:
    """A burst is larger than the limit."""
    recorder = HistoryRecorder(HistoryStore(str(tmp_path / "h.db"), mebibytes=8), clock=HurryingClock())
    recorder.start()
    before = lost("full")
    for number in range(4_500):
        recorder.attempt(refusal(number, message="m" * 1_000, next_step="n" * 1_000))
    newest = EntryFilter(name="train-4499")
    until(lambda: recorder.version and recorder.store.find(newest))
    recorder.close()
    assert lost("full") == before and (tmp_path / "h.db").stat().st_size <= 8 << 20


def test_after_a_lost_sample_the_next_one_is_complete() -> None:
    recorder = HistoryRecorder(HistoryStore(), clock=SystemClock(), size=2)
    before = lost("full")
    counts = [UseLevel(0, name, "p5.48xlarge", "us-east-1a", LINUX, 2, 1) for name in ("cr-1", "")]
    recorder.levels(counts)  # with the mark of a full sample, which the queue has no room for
    assert lost("full") - before == 1
    recorder.start()
    until(lambda: recorder.version)
    full = [UseLevel(0, "", "p5.48xlarge", "us-east-1a", LINUX, 0, 1)]
    recorder.levels(full)
    until(lambda: any(not level.instance_type for level in recorder.store.levels(since=0)))
    recorder.close()


def test_a_sample_has_the_time_of_its_turn() -> None:
    """Two threads that sample at once write in the order of their times."""
    recorder = HistoryRecorder(HistoryStore(), clock=SystemClock())
    asked: list[bool] = []

    class Turned(SystemClock):
        def now(self) -> datetime:
            asked.append(recorder._sampling.locked())
            return super().now()

    recorder._clock = Turned()
    recorder.levels([])
    assert asked == [True]
