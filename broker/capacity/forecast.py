"""The chance that a pool gives an instance now, and the expected wait if it refuses.

The model, in three sentences. Every five minutes with requests are one observation, which moves the chance
by `GAIN` of the way to their launched share. Between observations the chance returns to the prior, the mean
share of all pools in a day, by half in each `HALF_LIFE`. The expected wait is the time of the pool's
shortages divided by their number, where the broker's first back-off counts as one.

Requests of one moment are one observation, because EC2 answers them alike: a refused call for 600 claims is
no better evidence than a call for one. Invariant: the chance is in [0, 1], never falls if a refusal had been
a launch, and returns to the prior with time. A forecast orders equal options only, and only by a third of the
range, so that a plan comes to rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from broker.capacity.shortages import CAP, FIRST, MEMORY
from broker.lists import lists_by_key

# Chosen on traces of other seeds than that of benchmarks/forecast.py.
GAIN: Final = 0.7
HALF_LIFE: Final = timedelta(hours=2)
WINDOW: Final = timedelta(hours=24)  # older observations are not read
# A shortage is known to last while its pool is tried: after the longest back-off it may have ended unseen.
UNKNOWN: Final = CAP + MEMORY
_BANDS: Final = 3


class PoolOutcomes(NamedTuple):
    """The launches and refusals of a pool (its key) in the slot of time that begins at `slot`, in seconds
    since 1970."""

    pool: str
    slot: int
    launched: int
    refused: int

    @property
    def share(self) -> float:
        return self.launched / (self.launched + self.refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolForecast:
    """`chance` that a request launches now; `wait` until a launch if it does not; `prior` is the chance of a
    pool without an observation; `attempts` in the window. `chances` has the values that are shown."""

    chance: float
    wait: timedelta
    prior: float
    attempts: int


def forecasts(outcomes: Iterable[PoolOutcomes], now: datetime) -> dict[str, PoolForecast]:
    """The forecast of each pool with an observation in the window."""
    by_pool = _by_pool(outcomes, now)
    prior_chance = _prior(by_pool)
    return {
        pool: PoolForecast(
            chance=_chance(rows, prior_chance, now),
            wait=_wait(rows, now),
            prior=prior_chance,
            attempts=sum(row.launched + row.refused for row in rows),
        )
        for pool, rows in by_pool.items()
    }


def odds(forecasts: Mapping[str, PoolForecast]) -> dict[str, int]:
    """The pools that rank after (1, 2) or before (-1, -2) equal ones without an observation.

    Pools in the same third of the range keep their order.
    """
    ranks = {pool: _band(forecast.chance) - _band(forecast.prior) for pool, forecast in forecasts.items()}
    return {pool: rank for pool, rank in ranks.items() if rank}


def _by_pool(outcomes: Iterable[PoolOutcomes], now: datetime) -> dict[str, list[PoolOutcomes]]:
    """The observations of each pool in the window, the oldest first."""
    first, last = (now - WINDOW).timestamp(), now.timestamp()
    recent = (row for row in outcomes if row.launched + row.refused > 0 and first <= row.slot <= last)
    return lists_by_key((row.pool, row) for row in sorted(recent, key=lambda row: row.slot))


def _prior(by_pool: Mapping[str, Sequence[PoolOutcomes]]) -> float:
    """The chance of a pool without an observation: the mean of all pools."""
    shares = [row.share for rows in by_pool.values() for row in rows]
    return (1 + math.fsum(shares)) / (2 + len(shares))  # exact: the order of the rows does not matter


def _chance(rows: Sequence[PoolOutcomes], prior: float, now: datetime) -> float:
    chance, before = prior, float(rows[0].slot)
    for row in rows:
        chance = _relaxed(chance, prior, row.slot - before)
        chance += GAIN * (row.share - chance)
        before = row.slot
    return _relaxed(chance, prior, now.timestamp() - before)


def _relaxed(chance: float, prior: float, seconds: float) -> float:
    return prior + (chance - prior) * math.exp2(-seconds / HALF_LIFE.total_seconds())


def _wait(rows: Sequence[PoolOutcomes], now: datetime) -> timedelta:
    """The mean length of its shortages. One that lasts, or that ended unseen, adds its time and no end."""
    short, ended = FIRST.total_seconds(), 1
    since: int | None = None
    for row, following in zip(rows, (*rows[1:], None), strict=True):
        good = row.launched >= row.refused
        if good and since is not None:
            short, ended, since = short + row.slot - since, ended + 1, None
        elif not good and since is None:
            since = row.slot
        until = now.timestamp() if following is None else following.slot
        unseen = until - row.slot > UNKNOWN.total_seconds()
        if since is not None and (unseen or following is None):
            short, since = short + (row.slot if unseen else until) - since, None
    return timedelta(seconds=short / ended)


def _band(chance: float) -> int:
    """0 for the best third of the range."""
    return _BANDS - 1 - min(_BANDS - 1, int(chance * _BANDS))
