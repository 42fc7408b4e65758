"""Charts over the last hours as bars: how high each part of a bar is, and the labels of the axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from broker.history.hours import HourOfUse

WIDTH: Final = 480
HEIGHT: Final = 120
_LABELLED: Final = 6  # hours between two labels
_STEPS: Final = (1, 2, 2.5, 5, 10)

Part = tuple[str, str, Callable[[HourOfUse], float]]  # class, name, value
SLOTS: Final[Sequence[Part]] = (
    ("used", "used slots", lambda hour: hour.used),
    ("idle", "idle slots", lambda hour: hour.idle),
    ("outside", "instances outside", lambda hour: hour.outside),
)
DOLLARS: Final[Sequence[Part]] = (
    ("idle", "dollars of idle slots", lambda hour: hour.idle_usd),
    ("outside", "dollars of instances outside", lambda hour: hour.outside_usd),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One part of the bar of an hour. `y` and `height` are in units of the picture."""

    part: str
    x: float
    y: float
    height: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """`rows`: the same for a table: the hour, and the value of each part; None where nothing is recorded.

    `running`: the place and height of the bar of the hour that is not over; None without such a bar.
    """

    title: str
    names: tuple[tuple[str, str], ...]
    bars: tuple[Bar, ...]
    width: float
    heights: tuple[tuple[float, str], ...]
    times: tuple[tuple[float, str], ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]
    running: tuple[float, float, float] | None = None


def bar_chart(title: str, parts: Sequence[Part], hours: Sequence[HourOfUse]) -> BarChart:
    """The chart of these hours; one without a record has no bar."""
    top = _rounded(max((sum(value(hour) for _, _, value in parts) for hour in hours), default=0.0))
    width = WIDTH / max(1, len(hours))
    bars: list[Bar] = []
    running: tuple[float, float, float] | None = None
    for index, hour in enumerate(hours):
        height = 0.0
        for part, name, value in parts:
            amount = value(hour) / top * HEIGHT
            if amount:
                text = f"{_named(hour)}: {value(hour):.1f} {name}"
                y = round(HEIGHT - height - amount, 1)
                bars.append(
                    Bar(part=part, x=round(index * width, 1), y=y, height=round(amount, 1), text=text)
                )
            height += amount
        if hour.running and height:
            running = round(index * width, 1), round(HEIGHT - height, 1), round(height, 1)
    return BarChart(
        title=title,
        names=tuple((part, name) for part, name, _ in parts),
        bars=tuple(bars),
        width=round(width - 2, 1),
        heights=tuple((HEIGHT - HEIGHT * share, f"{top * share:g}") for share in (0, 0.5, 1)),
        times=tuple(
            (round(index * width, 1), _clock(hour.at)) for index, hour in enumerate(hours) if _labelled(hour)
        ),
        rows=tuple((_named(hour), _values(hour, parts)) for hour in hours),
        running=running,
    )


def _values(hour: HourOfUse, parts: Sequence[Part]) -> tuple[float | None, ...]:
    return tuple(round(value(hour), 2) if hour.recorded else None for _, _, value in parts)


def _labelled(hour: HourOfUse) -> bool:
    return datetime.fromtimestamp(hour.at, UTC).hour % _LABELLED == 0


def _named(hour: HourOfUse) -> str:
    """The hour as its bar and its row have it: a running one is not to be compared with the others."""
    return f"{_clock(hour.at)}{' so far' if hour.running else ''}"


def _clock(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M")


def _rounded(value: float) -> float:
    """The smallest round number that is not below it."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in _STEPS if value <= step * power), 10 * power)
