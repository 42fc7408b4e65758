"""Advice from the record: the number of slots of each pool that would have cost least in the last days.

The costs are those of `broker.capacity.hindsight`. Invariant: below `LEAST_DAYS` of record there is no
number.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from broker.capacity.hindsight import DAY, DemandSpan, Rates, cheapest, days, rates, replay, split
from broker.history.demand import HOLDS, DemandCurve, curves
from broker.history.store import HistoryStore

LEAST_DAYS: Final = 2
DAYS: Final = 14.0
# An hour short costs this many hours of a slot, so a slot pays if it idles less than nine hours for each.
SHORT_PRICES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceQuery:
    """`short_cost`: dollars of a slot-hour short, None for `SHORT_PRICES` times the price. `count` and
    `hours` (of the day, UTC) replay the record for slots of this number, which exist in these hours only."""

    days: float = DAYS
    discount: float = 0.0  # percent
    short_cost: float | None = None
    count: int | None = None
    hours: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRow:
    """`best` is the cheapest number of slots; `count` is the replayed number, by default `best`.
    Hours are slot-hours; `saved` and `cost` are dollars over the days of the record. Values of a replay
    are None below `LEAST_DAYS`, and dollars also without a price."""

    reservation: str
    instance_type: str
    zone: str
    platform: str
    days: float
    slots: int
    peak: int
    usd_hour: float | None
    was_short: bool
    short_hours: float
    idle_hours: float
    cost: float | None
    best: int | None = None
    count: int | None = None
    saved: float | None = None
    short_hours_then: float | None = None
    idle_hours_then: float | None = None
    cost_then: float | None = None
    spans: Sequence[DemandSpan]

    @property
    def name(self) -> str:
        return self.reservation or f"{self.instance_type} in {self.zone}"

    def document(self) -> dict[str, Any]:
        """The row for a machine; `demand` has (time, demand, slots) where one of them changes."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "spans"}
        steps = [(span.start, span.demand, span.slots) for span in self.spans]
        changed = [step for index, step in enumerate(steps) if not index or step[1:] != steps[index - 1][1:]]
        return values | {"demand": [{"at": at, "demand": demand, "slots": n} for at, demand, n in changed]}


def advise(history: HistoryStore, query: AdviceQuery, now: datetime) -> list[AdviceRow]:
    """One row a reservation, and one a pool without one that was short."""
    return [_row(curve, query) for curve in _curves(history, query.days, int(now.timestamp()))]


def _curves(history: HistoryStore, days_: float, until: int) -> list[DemandCurve]:
    since = until - int(days_ * DAY)
    return curves(history.levels(since=since - HOLDS), since=since, now=until)


_ONE_BUILDS: Final = threading.Lock()
_curves_of_minute: Final = lru_cache(maxsize=2)(_curves)


@lru_cache(maxsize=4)
def advice_of_minute(history: HistoryStore, query: AdviceQuery, minute: int) -> tuple[AdviceRow, ...]:
    """The rows of a page, which browsers read again with every change. The record is read once a minute,
    whatever the queries, and parallel requests wait for that one read.
    """
    with _ONE_BUILDS:
        recorded = _curves_of_minute(history, query.days, 60 * minute)
    return tuple(_row(curve, query) for curve in recorded)


def recorded_days(rows: Iterable[AdviceRow]) -> float:
    return max((row.days for row in rows), default=0.0)


def headline(rows: Sequence[AdviceRow], query: AdviceQuery) -> str:
    """The days of record, and the model in words."""
    length = recorded_days(rows)
    if length < LEAST_DAYS:
        return f"{length:.1f} days of record: no advice below {LEAST_DAYS} days"
    return f"{length:.1f} days of record. {model(query)}"


def model(query: AdviceQuery) -> str:
    short = f"{SHORT_PRICES} times its price" if query.short_cost is None else f"{query.short_cost:g} $"
    reserved = f"{query.discount:g} % less than on demand" if query.discount else "as much as on demand"
    hours = ""
    if query.hours:
        first, last = query.hours
        hours = f" The slots exist from {first}:00 to {last}:00 UTC only."
    return f"A slot costs {reserved}, used or idle; a slot-hour short costs {short}.{hours}"


def _row(curve: DemandCurve, query: AdviceQuery) -> AdviceRow:
    place, spans = curve.place, curve.spans
    known = curve.price / 1_000_000 or None
    rate = _rates(known, query)
    was = replay(spans, rate)
    inside, outside = split(spans, query.hours)
    values: dict[str, Any] = {}
    if days(spans) >= LEAST_DAYS:
        best = cheapest(inside, rate)
        count = best if query.count is None else query.count
        then, rest = replay(inside, rate, count), replay(outside, rate, 0)
        cost = then.cost + rest.cost
        values = {
            "best": best,
            "count": count,
            "saved": float(was.cost - cost) if known else None,
            "short_hours_then": float(then.short + rest.short),
            "idle_hours_then": float(then.idle),
            "cost_then": float(cost) if known else None,
        }
    return AdviceRow(
        reservation=curve.reservation,
        instance_type=place.instance_type,
        zone=place.zone,
        platform=place.platform,
        days=days(spans),
        slots=spans[-1].slots,
        peak=max(span.demand for span in spans),
        usd_hour=known,
        was_short=curve.was_short,
        short_hours=float(was.short),
        idle_hours=float(was.idle),
        cost=float(was.cost) if known else None,
        spans=spans,
        **values,
    )


def _rates(price: float | None, query: AdviceQuery) -> Rates:
    """Without a price a slot-hour is the unit: the cheapest number is the same."""
    on_demand = Fraction(str(price or 1))
    short = on_demand * SHORT_PRICES
    if query.short_cost is not None and price:
        short = Fraction(str(query.short_cost))
    return rates(on_demand, discount=Fraction(str(query.discount)) / 100, short=short)


def parse_hours(text: str) -> tuple[int, int]:
    """Hours of the day such as 8-18; 22-6 is over midnight. Raises ValueError."""
    first, dash, last = text.partition("-")
    if dash and first.isdecimal() and last.isdecimal() and len(text) < 6:
        hours = int(first), int(last)
        if hours[0] < 24 and hours[1] <= 24 and hours[0] != hours[1]:
            return hours
    raise ValueError(f"{text[:20]!r}: write hours of the day in UTC such as 8-18")


def chosen(rows: Iterable[AdviceRow], name: str) -> Iterator[AdviceRow]:
    """The rows of a reservation's id, of an instance type, or of TYPE:ZONE."""
    for row in rows:
        if name in ("", row.reservation, row.instance_type, f"{row.instance_type}:{row.zone}"):
            yield row
