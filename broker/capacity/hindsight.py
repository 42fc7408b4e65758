"""The number of slots that would have cost least over a record of demand.

The model. A slot costs `reserved` an hour, used or idle. An instance beyond the slots costs `on_demand` an
hour while EC2 gave one. While EC2 refused the pool, only the instances that ran outside the slots were to be
had on demand; the rest of the demand beyond the slots was short, at `short` an hour. All slots are alike, and
all demand of the pool could use them.

Invariant: `short` is at least `on_demand`, so the value of one more slot never grows with their number. The
cheapest number is then a quantile: the number of slots that each were worth more than they cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

HOUR: Final = 3600
DAY: Final = 24 * HOUR


class DemandSpan(NamedTuple):
    """A time without a change, in seconds since 1970: `slots` of which `used` were, instances `outside` of
    them, and claims that were refused and `waiting`."""

    start: int
    end: int
    slots: int
    used: int
    outside: int = 0
    waiting: int = 0

    @property
    def demand(self) -> int:
        return self.used + self.outside + self.waiting

    @property
    def seconds(self) -> int:
        return self.end - self.start


class Rates(NamedTuple):
    """Dollars of a slot-hour."""

    reserved: Fraction
    on_demand: Fraction
    short: Fraction


@dataclass(frozen=True, slots=True)
class Replay:
    """The slot-hours idle and short of a replay, and its cost in dollars."""

    idle: Fraction
    short: Fraction
    cost: Fraction


def rates(on_demand: Fraction, *, discount: Fraction, short: Fraction) -> Rates:
    """`discount`: the share by which a reserved slot is cheaper. `short` below the price counts as it."""
    return Rates(on_demand * (1 - discount), on_demand, max(short, on_demand))


def replay(spans: Iterable[DemandSpan], rate: Rates, count: int | None = None) -> Replay:
    """The record with `count` slots; None: with the slots of the record."""
    reserved = idle = on_demand = short = 0
    for span in spans:
        slots = span.slots if count is None else count
        beyond = max(0, span.demand - slots)
        given = min(beyond, span.outside) if span.waiting else beyond
        reserved += slots * span.seconds
        idle += max(0, slots - span.demand) * span.seconds
        on_demand += given * span.seconds
        short += (beyond - given) * span.seconds
    cost = reserved * rate.reserved + on_demand * rate.on_demand + short * rate.short
    return Replay(Fraction(idle, HOUR), Fraction(short, HOUR), cost / HOUR)


def cheapest(spans: Sequence[DemandSpan], rate: Rates) -> int:
    """The number of slots with the smallest cost; the smaller one of two equal ones."""
    cost = rate.reserved * sum(span.seconds for span in spans)
    low, high = 0, max((span.demand for span in spans), default=0)
    while low < high:
        number = (low + high + 1) // 2
        if _worth(spans, rate, number) > cost:
            low = number
        else:
            high = number - 1
    return low


def split(
    spans: Iterable[DemandSpan], hours: tuple[int, int] | None
) -> tuple[list[DemandSpan], list[DemandSpan]]:
    """The spans within these hours of the day (UTC), and those outside; None: all hours."""
    inside: list[DemandSpan] = []
    outside: list[DemandSpan] = []
    for span in spans:
        for part in _by_hour(span) if hours else (span,):
            (inside if hours is None or _within(part.start, hours) else outside).append(part)
    return inside, outside


def days(spans: Iterable[DemandSpan]) -> float:
    return sum(span.seconds for span in spans) / DAY


def _worth(spans: Iterable[DemandSpan], rate: Rates, number: int) -> Fraction:
    """Dollars times seconds that the slot with this number saves beyond the slots before it."""
    on_demand = short = 0
    for span in spans:
        if span.demand >= number:
            if span.waiting and number <= span.demand - span.outside:
                short += span.seconds
            else:
                on_demand += span.seconds
    return on_demand * rate.on_demand + short * rate.short


def _by_hour(span: DemandSpan) -> Iterator[DemandSpan]:
    start = span.start
    while start < span.end:
        end = min(span.end, start - start % HOUR + HOUR)
        yield span._replace(start=start, end=end)
        start = end


def _within(at: int, hours: tuple[int, int]) -> bool:
    first, last = hours
    hour = at % DAY // HOUR
    return first <= hour < last if first < last else hour >= first or hour < last
