"""The registry that /metrics shows; a metric is defined beside the code that it measures.

`GaugeTable` and `BoundedCounter` keep the number of series bounded: a row disappears with its object, and a
counter with many label values drops the series that changed least recently.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

# No second series for each counter: it is never read.
disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)

# Label sets that one counter keeps.
LIMIT: Final = 2_000

Rows = Mapping[tuple[str, ...], float]
_V = TypeVar("_V")


class GaugeTable(Collector):
    """A gauge with rows that are replaced as a whole: a series exists as long as its object.

    No scrape sees half a replacement. A new leader begins with an empty table, and `clear_tables` empties all
    tables of a process that leads no more.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        *,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self.name, self.documentation, self.labels = name, documentation, tuple(labels)
        self._source: Callable[[], Rows] = _empty
        registry.register(self)

    def show(self, rows: Rows) -> None:
        """Replaces all rows."""
        self._source = lambda: rows

    def follow(self, source: Callable[[], Rows]) -> None:
        """Calls `source` at each scrape, on the scraping thread, for values that change with time."""
        self._source = source

    def clear(self) -> None:
        self._source = _empty

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labels)
        for labels, value in self._source().items():
            family.add_metric(labels, value)
        yield family

    def describe(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(self.name, self.documentation, labels=self.labels)


def follow_together(read: Callable[[], _V], tables: Mapping[GaugeTable, Callable[[_V], Rows]]) -> None:
    """Shows the rows of one value at each scrape: the first table that asks reads the value for all."""
    scrape = threading.local()  # each has a thread of its own

    def shown(table: GaugeTable) -> Rows:
        left: dict[GaugeTable, _V] = vars(scrape).setdefault("left", {})  # tables that have not asked yet
        if table not in left:
            left.update(dict.fromkeys(tables, read()))
        return tables[table](left.pop(table))

    for table in tables:
        table.follow(partial(shown, table))


def waiting_tables(
    count: GaugeTable,
    oldest: GaugeTable,
    waiting: Callable[[_V], Iterable[tuple[tuple[str, ...], datetime | None]]],
) -> dict[GaugeTable, Callable[[_V], Rows]]:
    """How many wait, and since when the first, for `follow_together`. `waiting`: labels and time of each."""

    def begun(value: _V) -> Mapping[tuple[str, ...], list[float]]:
        times: dict[tuple[str, ...], list[float]] = {}
        for labels, since in waiting(value):
            times.setdefault(labels, []).append(since.timestamp() if since else 0.0)
        return times

    return {
        count: lambda value: {labels: len(times) for labels, times in begun(value).items()},
        oldest: lambda value: {labels: min(times) for labels, times in begun(value).items()},
    }


class BoundedCounter:
    """A counter of at most `limit` label sets: beyond them, the least recently counted one is dropped."""

    def __init__(self, counter: Counter, *, limit: int = LIMIT) -> None:
        self._counter, self._limit = counter, limit
        self._recent: OrderedDict[tuple[str, ...], None] = OrderedDict()
        self._lock = threading.Lock()

    def inc(self, *labels: str) -> None:
        with self._lock:
            self._recent[labels] = None
            self._recent.move_to_end(labels)
            if len(self._recent) > self._limit:
                self._counter.remove(*self._recent.popitem(last=False)[0])
            self._counter.labels(*labels).inc()

    def forget(self, gone: Callable[[tuple[str, ...]], bool]) -> None:
        """Removes the series of label sets for which `gone` is true."""
        with self._lock:
            for labels in [labels for labels in self._recent if gone(labels)]:
                del self._recent[labels]
                self._counter.remove(*labels)


def clear_tables() -> None:
    """Empties every table: this process leads no more, and another one shows the objects."""
    for collector in list(REGISTRY._collector_to_names):
        if isinstance(collector, GaugeTable):
            collector.clear()


def forget_object(label: str, name: str) -> None:
    """Removes every series with this label value, after its object was deleted."""
    for collector in list(REGISTRY._collector_to_names):
        if isinstance(collector, MetricWrapperBase) and label in collector._labelnames:
            collector.remove_by_labels({label: name})


def _empty() -> Rows:
    return {}
