"""The forecast of a pool: its chance by its last requests, its wait by its shortages, and its rank."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.forecast import HALF_LIFE, WINDOW, PoolForecast, PoolOutcomes, forecasts, odds
from broker.capacity.shortages import FIRST

from .builders import NOW, minutes

A, B, C = (f"on-demand:m5.large:us-east-1{zone}" for zone in "abc")


def outcomes(ago: float, launched: int = 0, refused: int = 0, pool: str = A) -> PoolOutcomes:
    """The requests of a pool so many minutes ago."""
    return PoolOutcomes(pool, int((NOW - minutes(ago)).timestamp()), launched, refused)


def forecast(*rows: PoolOutcomes, pool: str = A) -> PoolForecast:
    return forecasts(rows, NOW)[pool]


@pytest.mark.parametrize(
    ("rows", "percent"),
    [
        ([outcomes(5, 1)], 89),
        ([outcomes(5, 0, 1)], 11),
        ([outcomes(5, 0, 600)], 11),
        ([outcomes(5, 1, 1)], 50),
        ([outcomes(10, 0, 1), outcomes(5, 1)], 74),
        ([outcomes(10, 1), outcomes(5, 0, 1)], 26),
        ([outcomes(600, 0, 1)], 33),
    ],
    ids=["launch", "refusal", "refusal of a fleet", "half", "returned", "ran out", "refusal of last night"],
)
def test_the_last_requests_decide_the_chance(rows: Sequence[PoolOutcomes], percent: int) -> None:
    assert round(100 * forecast(*rows).chance) == percent


def test_pool_without_requests_has_the_chance_of_all_pools() -> None:
    rows = [outcomes(5, 1), outcomes(5, 1, 0, B), outcomes(10, 0, 1, B)]
    old = outcomes(WINDOW / timedelta(minutes=1) + 5, 0, 9)
    assert forecast(*rows).prior == forecast(*rows, old).prior == 3 / 5
    assert forecasts([old], NOW) == {}


@pytest.mark.parametrize(
    ("rows", "wait"),
    [
        ([outcomes(5, 1)], 3),
        ([outcomes(70, 0, 1), outcomes(40, 0, 1), outcomes(13, 1)], (3 + 57) / 2),
        ([outcomes(70, 0, 1), outcomes(60, 1), outcomes(30, 0, 1), outcomes(10, 1)], (3 + 10 + 20) / 3),
        ([outcomes(45, 0, 1), outcomes(20, 0, 1)], 3 + 45),
        ([outcomes(700, 0, 1), outcomes(680, 0, 1), outcomes(5, 1)], 3 + 20),
        ([outcomes(700, 0, 1)], 3),
    ],
    ids=["never short", "one", "two", "short now", "end not seen", "one refusal long ago"],
)
def test_the_wait_is_the_mean_length_of_the_shortages(rows: Sequence[PoolOutcomes], wait: float) -> None:
    assert forecast(*rows).wait == minutes(wait)


SLOTS = st.lists(
    st.tuples(st.sampled_from((A, B)), st.integers(0, 300), st.integers(0, 9), st.integers(0, 9)),
    unique_by=lambda row: row[:2],
    max_size=12,
).map(lambda rows: [outcomes(5 * ago, launched, refused, pool) for pool, ago, launched, refused in rows])


@given(SLOTS)
def test_a_chance_is_a_share_and_a_wait_is_positive(rows: list[PoolOutcomes]) -> None:
    for pool_forecast in forecasts(rows, NOW).values():
        assert 0 < pool_forecast.prior < 1
        assert 0 <= pool_forecast.chance <= 1
        assert timedelta() < pool_forecast.wait <= WINDOW + FIRST


@given(SLOTS, st.data())
def test_a_launch_instead_of_a_refusal_never_lowers_the_chance(
    rows: list[PoolOutcomes], data: st.DataObject
) -> None:
    refusals = [place for place, row in enumerate(rows) if row.refused]
    if not refusals:
        return
    place = data.draw(st.sampled_from(refusals))
    row = rows[place]
    better = [*rows]
    better[place] = row._replace(launched=row.launched + 1, refused=row.refused - 1)
    before, after = forecasts(rows, NOW), forecasts(better, NOW)
    assert all(after[pool].chance >= before[pool].chance - 1e-12 for pool in before)


@given(SLOTS, st.integers(0, 12))
def test_a_chance_approaches_the_prior_with_time(rows: list[PoolOutcomes], hours: int) -> None:
    later = NOW + timedelta(hours=hours)
    young = [row for row in rows if row.slot >= (later - WINDOW).timestamp()]
    for pool, pool_forecast in forecasts(young, NOW).items():
        usual = pool_forecast.prior
        left = abs(forecasts(young, later)[pool].chance - usual)
        assert left == pytest.approx(
            abs(pool_forecast.chance - usual) * 0.5 ** (timedelta(hours=hours) / HALF_LIFE)
        )


@given(SLOTS)
def test_the_order_of_the_rows_does_not_matter(rows: list[PoolOutcomes]) -> None:
    assert forecasts(rows, NOW) == forecasts(rows[::-1], NOW)


def test_small_differences_order_nothing() -> None:
    usual = [outcomes(ago, 1, 0, pool) for ago in (60, 120, 180) for pool in (A, B, C)]
    assert odds(forecasts(usual, NOW)) == {}
    assert odds(forecasts([*usual, outcomes(30, 9, 1)], NOW)) == {}
    assert odds(forecasts([*usual, outcomes(5, 0, 1)], NOW)) == {A: 2}
