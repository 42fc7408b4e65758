"""The use of all reservations by the hour, and its cost, from the record of counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from broker.history.demand import HOLDS, UseLevel, intervals
from broker.history.store import HistoryStore
from broker.lists import lists_by_key

HOUR: Final = 3600
SHOWN: Final = 24  # hours
_DOLLAR: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HourOfUse:
    """The hour from `at`, in seconds since 1970: mean numbers of slots and instances over its recorded part,
    and dollars. `recorded`: seconds; all else is 0 without any. `running`: it is not over.
    """

    at: int
    running: bool = False
    recorded: int = 0
    used: float = 0.0
    idle: float = 0.0
    outside: float = 0.0
    idle_usd: float = 0.0
    outside_usd: float = 0.0


def hours_of_use(levels: Sequence[UseLevel], *, now: int, count: int = SHOWN) -> list[HourOfUse]:
    """The last hours, the oldest first; the last one is not over. `levels`: in the order of time, since HOLDS
    before the first hour.
    """
    first = now - now % HOUR - (count - 1) * HOUR
    full = [row.at for row in levels if not row.instance_type]
    of_types = (level for level in levels if level.instance_type)
    rows = lists_by_key(((level.reservation, level.place), level) for level in of_types)
    recorded = _seconds(levels, full, first, now)
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    for (reservation, _), own in rows.items():
        for start, end, row in intervals(own, full, first, now):
            used, idle = (row.used, max(0, row.total - row.used)) if reservation else (0, 0)
            outside = 0 if reservation else row.used
            values = (used, idle, outside, idle * max(0, row.price), outside * row.price)
            _add(sums, start, end, values)
    hours = [_hour(at, recorded.get(at, 0), sums[at]) for at in range(first, now + 1, HOUR)]
    return [*hours[:-1], replace(hours[-1], running=True)]


@lru_cache(maxsize=4)
def hours_of_minute(store: HistoryStore, minute: int) -> tuple[HourOfUse, ...]:
    """Those up to this minute, computed once for all readers."""
    now = minute * 60
    levels = store.levels(since=now - SHOWN * HOUR - HOLDS)
    return tuple(hours_of_use(levels, now=now))


def _seconds(levels: Sequence[UseLevel], full: Sequence[int], first: int, now: int) -> dict[int, int]:
    """The recorded seconds of each hour."""
    sums: dict[int, list[int]] = defaultdict(lambda: [0])
    for start, end, _ in intervals(levels, full, first, now):
        _add(sums, start, end, (1,))
    return {at: seconds for at, (seconds,) in sums.items()}


def _add(sums: dict[int, list[int]], start: int, end: int, values: Sequence[int]) -> None:
    """Adds the values times seconds to each hour of a time."""
    while start < end:
        at = start - start % HOUR
        stop = min(end, at + HOUR)
        hour = sums[at]
        for index, value in enumerate(values):
            hour[index] += value * (stop - start)
        start = stop


def _hour(at: int, recorded: int, sums: Sequence[int]) -> HourOfUse:
    if not recorded:
        return HourOfUse(at=at)
    used, idle, outside, idle_cost, outside_cost = sums
    return HourOfUse(
        at=at,
        recorded=recorded,
        used=used / recorded,
        idle=idle / recorded,
        outside=outside / recorded,
        idle_usd=idle_cost / _DOLLAR / HOUR,
        outside_usd=outside_cost / _DOLLAR / HOUR,
    )
