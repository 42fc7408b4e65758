"""Use by the hour, from the record of counts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.history.demand import CapacityPlace, LevelSampler, UseLevel, pulse
from broker.history.hours import HOUR, HourOfUse, hours_of_use

P5 = CapacityPlace("p5.48xlarge", "us-east-1a")
USD = 2_000_000
BEGIN = 1_700_006_400  # a full hour


def slots(at: int, total: int, used: int) -> UseLevel:
    return UseLevel(at, "cr-1", *P5, total, used, 0, USD)


def outside(at: int, used: int) -> UseLevel:
    return UseLevel(at, "", *P5, 0, used, 0, USD)


@pytest.mark.covers("ONC-04")
def test_hours_have_means_and_dollars_and_none_without_a_record() -> None:
    half = BEGIN + HOUR // 2
    levels = [pulse(BEGIN), slots(BEGIN, 4, 1), slots(half, 4, 3), outside(half, 2)]
    before, first = hours_of_use(levels, now=BEGIN + HOUR - 1, count=2)
    assert before == HourOfUse(at=BEGIN - HOUR)
    assert first.recorded == HOUR - 1
    assert not before.running and first.running
    assert [round(value, 2) for value in (first.used, first.idle, first.outside)] == [2.0, 2.0, 1.0]
    assert [round(value, 2) for value in (first.idle_usd, first.outside_usd)] == [4.0, 2.0]


SAMPLES = st.lists(
    st.tuples(st.integers(1, 4000), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=12
)


@given(SAMPLES)
def test_hours_are_those_of_each_second(samples: list[tuple[int, int, int, int]]) -> None:
    sampler, levels, at = LevelSampler(), list[UseLevel](), BEGIN
    held: list[tuple[int, int, int, int]] = []  # since when: used, idle, outside
    for step, total, used, beyond in samples:
        at += step
        used = min(used, total)
        levels += sampler.changed([slots(at, total, used), outside(at, beyond), pulse(at)], at)
        held.append((at, used, total - used, beyond))
    now = at + 100
    hours = {hour.at: hour for hour in hours_of_use(levels, now=now, count=16)}
    sums: dict[int, list[int]] = {start: [0, 0, 0, 0] for start in hours}
    for (start, *values), (end, *_) in pairwise([*held, (now, 0, 0, 0)]):
        for second in range(start, end):
            if (row := sums.get(second - second % HOUR)) is not None:
                row[0] += 1
                for index, value in enumerate(values):
                    row[index + 1] += value
    for start, (seconds, *amounts) in sums.items():
        hour = hours[start]
        means = [amount / seconds if seconds else 0.0 for amount in amounts]
        assert hour.recorded == seconds
        assert [hour.used, hour.idle, hour.outside] == pytest.approx(means)
        assert hour.idle_usd == pytest.approx(2.0 * amounts[1] / HOUR)
