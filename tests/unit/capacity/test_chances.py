"""The shown chance of a pool: its forecast beside its present state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from broker.capacity.chances import (
    LEAST,
    ChanceNow,
    SlotSample,
    SlotTurnover,
    chance_now,
    reservation_of,
    turnovers,
)
from broker.capacity.forecast import GAIN, PoolForecast, PoolOutcomes

MINUTE = timedelta(minutes=1)
BEGIN = 1_000_000_200
LATER = datetime.fromtimestamp(BEGIN, UTC) + 60 * MINUTE
POOL = "reserved:m5.large:us-east-1a:cr-1"


def forecast(chance: float = 0.8, attempts: int = LEAST) -> PoolForecast:
    return PoolForecast(chance=chance, wait=7 * MINUTE, prior=0.5, attempts=attempts)


FREED = SlotTurnover(free=0, interval=20 * MINUTE)


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (chance_now(forecast()), "80%, else about 7 min"),
        # A refusal is newer than the forecast while the pool is short.
        (chance_now(forecast(), short=True), f"{0.8 * (1 - GAIN):.0%}, else about 7 min"),
        (chance_now(forecast(attempts=LEAST - 1)), f"too few attempts ({LEAST - 1} of {LEAST})"),
        (chance_now(None), f"too few attempts (0 of {LEAST})"),
        # Free slots are a fact, unless EC2 refuses them.
        (chance_now(forecast(), FREED, free=1), "1 slot is free now"),
        (chance_now(None, SlotTurnover(free=2, interval=None)), "2 slots are free now"),
        (chance_now(forecast(), free=2, short=True), f"{0.8 * (1 - GAIN):.0%}, else about 7 min"),
        # Launches of the past say nothing about a full reservation.
        (chance_now(forecast(), FREED, free=0), "full, 0%, a slot becomes free about every 20 min"),
        (chance_now(forecast(), FREED), "full, 0%, a slot becomes free about every 20 min"),
        # A slot that another launcher took again between two samples became free unseen.
        (
            chance_now(forecast(), SlotTurnover(free=0, interval=None)),
            "full, and when a slot becomes free is not known, 0%",
        ),
        (chance_now(forecast(), free=0), "full, 0%"),
        # Nor do the free slots of a reservation that has ended.
        (chance_now(forecast(), free=3, state="expired"), "the reservation is expired, 0%"),
    ],
)
def test_shown_chance_never_contradicts_the_state(shown: ChanceNow, text: str) -> None:
    assert shown.text == text
    assert shown.view()["forecast"] == text


def at(minutes: int) -> int:
    return BEGIN + 60 * minutes


def launched(minutes: int, count: int, pool: str = POOL) -> PoolOutcomes:
    return PoolOutcomes(pool, at(minutes), count, 0)


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    ("samples", "outcomes", "expected"),
    [
        ([(at(0), 4, 4)], [], SlotTurnover(free=0, interval=None)),
        ([(at(0), 4, 4), (at(5), 4, 2), (at(10), 4, 3)], [], SlotTurnover(free=1, interval=30 * MINUTE)),
        # The slot that a launch took between two samples had become free.
        ([(at(0), 4, 4), (at(10), 4, 4)], [launched(5, 1)], SlotTurnover(free=0, interval=60 * MINUTE)),
        # No sample shows how many slots were in use before the first.
        ([(at(0), 4, 4)], [launched(-5, 3), launched(0, 1)], SlotTurnover(free=0, interval=None)),
        (
            [(at(0), 4, 4)],
            [launched(5, 1, pool="on-demand:m5.large:us-east-1a")],
            SlotTurnover(free=0, interval=None),
        ),
        # It shrank under its instances.
        ([(at(0), 4, 4), (at(5), 2, 4)], [], SlotTurnover(free=0, interval=None)),
    ],
)
def test_slots_become_free_as_samples_and_launches_show(
    samples: Sequence[SlotSample], outcomes: Sequence[PoolOutcomes], expected: SlotTurnover
) -> None:
    assert turnovers({"cr-1": samples, "cr-2": []}, outcomes, LATER) == {"cr-1": expected}


def test_only_the_pool_of_one_reservation_names_it() -> None:
    assert reservation_of(POOL) == "cr-1"
    assert reservation_of("on-demand:m5.large:us-east-1a") == ""
