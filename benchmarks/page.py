"""The web page at 10,000 attempts and 1,000 reservations, the cost of a record, and hours of an error storm.

Requests go over HTTP to a page in this process, with the history in a file. The best of some loads counts,
since a shared machine only ever adds. The storm records 100 failures a minute of 2,700 claims without their
pauses, and loads the pages after each hour. Memory counts from the end of the first hour on, when the caches
are full. The baseline of a record is a row that the caller writes into the same database.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from benchmarks.figures import Figure, run
from broker.history.recorder import HistoryRecorder, batch_of
from broker.history.store import HistoryStore
from broker.history.tables import EntryFilter
from broker.kube.clock import SystemClock
from broker.webpage.server import WebPage
from tests.unit.history.facts import refusal
from tests.unit.webpage.world import CLOCK, OPEN, state

PATHS = (
    "/",
    "/record",
    "/record?show=problems&zone=us-east-1a",
    "/waiting",
    "/reservations",
    "/shortages",
    "/claims/train-1",
    "/odcrs/cr-1",
)
MINUTE = 100
CLAIMS = 2_700


@contextmanager
def served(claims: int, odcrs: int) -> Iterator[tuple[str, HistoryRecorder]]:
    """A page and its running recorder, over a file."""
    with tempfile.TemporaryDirectory() as folder:
        store = HistoryStore(f"{folder}/history.db")
        store.open()
        recorder = HistoryRecorder(store, clock=SystemClock(), days=3_650)
        recorder.start()
        live = state(claims=claims, odcrs=odcrs)
        page = WebPage(recorder, lambda: live, OPEN, clock=CLOCK, host="127.0.0.1", port=0)
        page.start()
        try:
            yield page.url, recorder
        finally:
            page.close()
            recorder.close()


def measure(*, small: bool) -> Sequence[Figure]:
    """Page, record and storm, in this order on one history."""
    attempts, odcrs, hours = (300, 20, 2) if small else (10_000, 1_000, 10)
    with served(CLAIMS, odcrs) as (url, recorder):
        recording = _recorded(recorder, 0, attempts)
        loads = {path: _best(url + path) for path in PATHS}
        plain = _written_by_caller(recorder.store)
        grown, after = _storm(url, recorder, attempts, hours, minutes=6 if small else 60)
    slowest = max(loads, key=lambda path: loads[path])
    size = f"{attempts:,} attempts and {odcrs:,} reservations"
    us, of = "us", "a row that the caller writes"
    record = "recording an attempt, CPU time of the caller"
    return [
        Figure(name=f"overview at {size}", measured=loads["/"][0], unit="ms", most=300),
        Figure(name=f"slowest page, {slowest}", measured=loads[slowest][0], unit="ms", most=300),
        Figure(name="  its CPU time", measured=loads[slowest][1], unit="ms"),
        Figure(name=record, measured=recording, unit=us, most=100, baseline=plain, of=of),
        Figure(name=f"storm: growth of memory in {hours - 1} hours", measured=grown, unit="MB", most=20),
        Figure(name="storm: slowest page after it", measured=after, unit="ms", most=300),
    ]


def _recorded(recorder: HistoryRecorder, first: int, count: int) -> float:
    """Microseconds of the caller for one attempt; returns when all are in the database."""
    attempts = [refusal(first + n, claim=f"train-{n % CLAIMS}") for n in range(count)]
    began = time.thread_time()
    for attempt in attempts:
        recorder.attempt(attempt)
    used = time.thread_time() - began
    last = attempts[-1].request_id
    while not any(e.request_id == last for e in recorder.store.find(EntryFilter(), limit=1)):
        time.sleep(0.05)
    return used / count * 1e6


def _written_by_caller(store: HistoryStore) -> float:
    """Microseconds for one row."""
    count = 200
    began = time.thread_time()
    for number in range(count):
        store.write(batch_of([refusal(-1 - number, claim="baseline")]))
    return (time.thread_time() - began) / count * 1e6


def _storm(
    url: str, recorder: HistoryRecorder, first: int, hours: int, *, minutes: int
) -> tuple[float, float]:
    """Growth of memory in MB after the first hour, and the slowest page at the end in ms."""
    sizes = []
    for hour in range(hours):
        _recorded(recorder, first + hour * minutes * MINUTE, minutes * MINUTE)
        slowest = max(_best(url + path)[0] for path in PATHS)
        sizes.append(_resident())
    return sizes[-1] - sizes[0], slowest


def _best(url: str) -> tuple[float, float]:
    """Milliseconds until the whole page is there: wall time, and CPU time of this process."""
    return min(_loaded(url) for _ in range(5))


def _loaded(url: str) -> tuple[float, float]:
    wall, cpu = time.monotonic(), time.process_time()
    with urlopen(url, timeout=60) as answer:
        answer.read()
    return (time.monotonic() - wall) * 1000, (time.process_time() - cpu) * 1000


def _resident() -> float:
    """Megabytes of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


if __name__ == "__main__":
    run(measure)
