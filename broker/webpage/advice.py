"""The page of advice: the fields of its form, and the demand curve of each row as points of an SVG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from broker.history.advice import (
    LEAST_DAYS,
    AdviceQuery,
    AdviceRow,
    headline,
    parse_hours,
)
from broker.webpage.scope import VisibleHistory

WIDTH: Final = 600
HEIGHT: Final = 120
TICKS: Final = 4
MOST_POINTS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveChart:
    """`demand` and `slots` are paths; `best` is the height of the advised number, None without one. Ticks are
    (place, label)."""

    demand: str
    slots: str
    best: float | None
    top: int
    times: tuple[tuple[float, str], ...]


def advice_values(
    history: VisibleHistory, given: Mapping[str, str], now: datetime
) -> tuple[dict[str, Any], tuple[AdviceRow, ...]]:
    """The values of the page, and its rows."""
    query, wrong = _query(given)
    rows = history.advice(query, now)
    values = {
        "headline": headline(rows, query),
        "wrong": wrong,
        "least_days": LEAST_DAYS,
        "count": given.get("count", ""),
        "hours": given.get("hours", ""),
    }
    return values, rows


def chart(row: AdviceRow) -> CurveChart:
    first, last = row.spans[0].start, row.spans[-1].end
    top = max(1, row.peak, row.count or 0, *(span.slots for span in row.spans))

    def x(at: float) -> float:
        return round((at - first) / max(1, last - first) * WIDTH, 1)

    def y(value: int) -> float:
        return round(HEIGHT - value / top * HEIGHT, 1)

    demand: dict[float, tuple[int, int]] = {}
    for span in row.spans:  # the highest of each pixel
        key = x(span.start) if len(row.spans) <= MOST_POINTS else float(round(x(span.start)))
        known = demand.get(key, (0, 0))
        demand[key] = max(known[0], span.demand), max(known[1], span.slots)
    places = [*demand]
    ends = [*places[1:], float(WIDTH)]
    return CurveChart(
        demand=_path(places, ends, [y(value) for value, _ in demand.values()]),
        slots=_path(places, ends, [y(value) for _, value in demand.values()]),
        best=None if row.count is None else y(row.count),
        top=top,
        times=tuple(
            (x(at), datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M"))
            for at in (first + (last - first) * tick / TICKS for tick in range(TICKS + 1))
        ),
    )


def _path(starts: list[float], ends: list[float], heights: list[float]) -> str:
    parts = [f"H{start}V{height}H{end}" for start, end, height in zip(starts, ends, heights, strict=True)]
    return f"M0 {heights[0]}{''.join(parts)}" if heights else ""


def _query(given: Mapping[str, str]) -> tuple[AdviceQuery, str]:
    """The query, and a sentence about fields that cannot be read; they are left out."""
    count, hours, wrong = given.get("count", ""), given.get("hours", ""), ""
    number = int(count) if count.isdecimal() and len(count) < 7 else None
    if count and number is None:
        wrong = f"count is {count[:20]!r}: write a number of slots."
    window = None
    try:
        window = parse_hours(hours) if hours else None
    except ValueError as error:
        wrong = f"{wrong} hours is {error}.".strip()
    return AdviceQuery(count=number, hours=window), wrong
