"""The forecast of pools on a replayed trace: 12 pools over four simulated days, each open or short by turns.

The durations of both are exponential, and their means differ from pool to pool by up to ten times. Once, each
type is short in all of its zones for some hours. Claims come in bursts. A refused pool is requested again
after 3 minutes and then every 6, as the broker does, until it launches. Each attempt is forecast from the
attempts before it alone. The half-life and the gain were chosen on other seeds.

The constant guess is the rate of the whole trace. The last outcome of the pool is scored as it is, 0 or 1,
and again as the share of launches after that outcome. No forecast can know these rates, nor the mean wait.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import NamedTuple

from benchmarks.figures import Figure, run
from broker.capacity.forecast import WINDOW, PoolOutcomes, forecasts
from broker.capacity.shortages import FIRST, LAST_RESORT
from broker.history.tables import SLOT

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
TYPES = ("p5.48xlarge", "g6.12xlarge", "c7i.4xlarge", "m7i.4xlarge")
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
SEED = 1
# The chance of a launch while a pool is open, and while it is short.
OPEN, SHORT = 0.96, 0.04


class Try(NamedTuple):
    """An attempt of the trace, `at` seconds after its begin."""

    at: float
    pool: str
    launched: bool


class Scored(NamedTuple):
    """An attempt with its forecast, and the result of the pool's attempt before."""

    launched: bool
    chance: float
    wait: float
    before: bool | None


def trace(seed: int, *, days: float) -> list[Try]:
    """The attempts of all pools, in order."""
    tries: list[Try] = []
    for kind in TYPES:
        chance = random.Random(f"{seed} {kind}")
        night = chance.uniform(0.2, 0.8) * days * 86400
        nights = [(night, night + chance.uniform(1, 6) * 3600)]
        for zone in ZONES:
            tries += _pool(random.Random(f"{seed} {kind} {zone}"), f"on-demand:{kind}:{zone}", nights, days)
    return sorted(tries)


def _pool(chance: random.Random, pool: str, nights: Sequence[tuple[float, float]], days: float) -> list[Try]:
    end = days * 86400
    opens, shorts = chance.uniform(1, 10) * 3600, chance.uniform(0.2, 2) * 3600
    every = chance.uniform(0.2, 2) * 3600
    short = [*nights]
    at = chance.expovariate(1 / opens)
    while at < end:
        short.append((at, at := at + chance.expovariate(1 / shorts)))
        at += chance.expovariate(1 / opens)
    tries: list[Try] = []
    at = chance.expovariate(1 / every)
    while at < end:
        for number in range(chance.choice((1, 1, 2, 5))):
            pause = FIRST
            while at < end and not _attempt(chance, pool, at, short, tries):
                at, pause = at + pause.total_seconds(), LAST_RESORT
            at += number and chance.uniform(1, 60)
        at += chance.expovariate(1 / every)
    return tries


def _attempt(
    chance: random.Random, pool: str, at: float, short: Sequence[tuple[float, float]], tries: list[Try]
) -> bool:
    launched = chance.random() < (SHORT if any(a <= at < b for a, b in short) else OPEN)
    tries.append(Try(at, pool, launched))
    return launched


def replayed(tries: Sequence[Try]) -> Iterator[Scored]:
    """Each attempt with the forecast that was possible before it."""
    outcomes: dict[tuple[str, int], PoolOutcomes] = {}
    before: dict[str, bool] = {}
    for attempt in tries:
        now = BEGIN + timedelta(seconds=attempt.at)
        at = int(now.timestamp())
        rows = [row for row in outcomes.values() if row.slot >= at - WINDOW.total_seconds()]
        known = forecasts(rows, now)
        pool_forecast, usual = known.get(attempt.pool), next((item.prior for item in known.values()), 0.5)
        yield Scored(
            launched=attempt.launched,
            chance=pool_forecast.chance if pool_forecast else usual,
            wait=pool_forecast.wait.total_seconds() if pool_forecast else FIRST.total_seconds(),
            before=before.get(attempt.pool),
        )
        key = (attempt.pool, at - at % SLOT)
        old = outcomes.get(key) or PoolOutcomes(*key, 0, 0)
        outcomes[key] = PoolOutcomes(
            *key, old.launched + attempt.launched, old.refused + (not attempt.launched)
        )
        before[attempt.pool] = attempt.launched


def measure(*, small: bool) -> Sequence[Figure]:
    """Brier scores (the mean squared error of the chance; less is better), calibration, and the wait."""
    tries = trace(SEED, days=1 if small else 4)
    began = time.process_time()
    scored = [*replayed(tries)]
    spent = time.process_time() - began
    rate = fmean(attempt.launched for attempt in scored)
    last = [rate if attempt.before is None else float(attempt.before) for attempt in scored]
    after = {
        known: fmean(s.launched for s in scored if s.before is known) for known in {s.before for s in scored}
    }
    brier = _brier(scored, [attempt.chance for attempt in scored])
    constant = _brier(scored, [rate] * len(scored))
    return [
        Figure(name="attempts", measured=len(scored)),
        Figure(name="of these launched", measured=100 * rate, unit="%"),
        Figure(
            name="Brier score", measured=brier, most=0.6 * constant, baseline=constant, of="the trace's rate"
        ),
        Figure(
            name="Brier score beside the last outcome",
            measured=brier,
            baseline=_brier(scored, last),
            of="the last outcome",
        ),
        Figure(
            name="Brier score beside its rates",
            measured=brier,
            baseline=_brier(scored, [after[attempt.before] for attempt in scored]),
            of="the rate after it, in hindsight",
        ),
        *_calibration(scored),
        *_waits(tries, scored),
        Figure(name="CPU time of a forecast of all pools", measured=spent / len(scored) * 1e3, unit="ms"),
    ]


def _brier(scored: Sequence[Scored], chances: Sequence[float]) -> float:
    return fmean((chance - attempt.launched) ** 2 for attempt, chance in zip(scored, chances, strict=True))


def _calibration(scored: Sequence[Scored]) -> Iterator[Figure]:
    """The launched share of the attempts in each third of the chance, beside their mean chance."""
    for number, name in enumerate(("below 1/3", "between", "above 2/3")):
        third = [attempt for attempt in scored if min(2, int(attempt.chance * 3)) == number]
        if third:
            yield Figure(
                name=f"launched of {len(third)} with a chance {name}",
                measured=100 * fmean(attempt.launched for attempt in third),
                unit="%",
                baseline=100 * fmean(attempt.chance for attempt in third),
                of="their mean chance",
            )


def _waits(tries: Sequence[Try], scored: Sequence[Scored]) -> Iterator[Figure]:
    """The error of the wait at the first refusal of each shortage, until the pool's next launch."""
    launches: dict[str, float] = {}
    waits: list[tuple[float, float]] = []
    for attempt, scored_attempt in zip(reversed(tries), reversed(scored), strict=True):
        if attempt.launched:
            launches[attempt.pool] = attempt.at
        elif scored_attempt.before is not False and attempt.pool in launches:
            waits.append((launches[attempt.pool] - attempt.at, scored_attempt.wait))
    if waits:
        mean = fmean(real for real, _ in waits)
        yield Figure(
            name=f"mean error of the wait after {len(waits)} first refusals",
            measured=fmean(abs(real - wait) for real, wait in waits) / 60,
            unit="min",
            baseline=fmean(abs(real - mean) for real, _ in waits) / 60,
            of="the trace's mean wait",
        )


if __name__ == "__main__":
    run(measure)
