"""The cheapest number of slots in hindsight, against a replay of every number."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.hindsight import DAY, HOUR, DemandSpan, Rates, cheapest, days, rates, replay, split

COUNTS = st.integers(0, 6)
HOURS = st.tuples(st.integers(0, 23), st.integers(0, 24)).filter(lambda hours: hours[0] != hours[1])


@st.composite
def records(draw: st.DrawFn) -> list[DemandSpan]:
    spans, at = [], draw(st.integers(0, DAY))
    for length in draw(st.lists(st.integers(1, 9 * HOUR), max_size=8)):
        slots = draw(COUNTS)
        used = draw(st.integers(0, slots))
        spans.append(DemandSpan(at, at + length, slots, used, draw(COUNTS), draw(COUNTS)))
        at += length + draw(st.sampled_from((0, HOUR)))
    return spans


@st.composite
def prices(draw: st.DrawFn) -> Rates:
    on_demand = Fraction(draw(st.integers(1, 50)), 7)
    discount = Fraction(draw(st.sampled_from((0, 10, 50, 99))), 100)
    return rates(on_demand, discount=discount, short=on_demand * draw(st.sampled_from((0, 1, 2, 10))))


@pytest.mark.covers("ONC-10")
@given(records(), prices())
def test_cheapest_number_is_that_of_a_replay_of_every_number(spans: list[DemandSpan], rate: Rates) -> None:
    costs = [replay(spans, rate, number).cost for number in range(20)]
    assert cheapest(spans, rate) == costs.index(min(costs))


@pytest.mark.covers("ONC-10")
@given(records(), prices(), COUNTS)
def test_replay_counts_as_second_by_second(spans: list[DemandSpan], rate: Rates, count: int) -> None:
    """A replay by the definition: each unit of demand gets a slot, an instance on demand, or neither."""
    cost = Fraction(0)
    for span in spans:
        units = ["slot"] * min(count, span.demand)
        while len(units) < span.demand:
            had = units.count("on demand") < span.outside or not span.waiting
            units.append("on demand" if had else "short")
        hourly = count * rate.reserved + units.count("on demand") * rate.on_demand
        cost += (hourly + units.count("short") * rate.short) * span.seconds / HOUR
    assert replay(spans, rate, count).cost == cost


@given(records(), HOURS)
def test_hours_of_the_day_divide_the_record(spans: list[DemandSpan], hours: tuple[int, int]) -> None:
    inside, outside = split(spans, hours)
    assert days(inside) + days(outside) == pytest.approx(days(spans))
    first, last = hours
    for part, within in ((inside, True), (outside, False)):
        for span in part:
            hour = span.start % DAY // HOUR
            assert hour == (span.end - 1) % DAY // HOUR
            assert (hour in {(first + n) % 24 for n in range((last - first) % 24 or 24)}) is within


def test_record_with_its_own_slots_has_its_own_hours() -> None:
    rate = rates(Fraction(2), discount=Fraction(0), short=Fraction(20))
    spans = [DemandSpan(0, HOUR, 4, 3), DemandSpan(HOUR, 3 * HOUR, 4, 4, outside=1, waiting=2)]
    was = replay(spans, rate)
    assert [was.idle, was.short] == [1, 4]
    assert was.cost == 2 * 12 + 2 * 2 + 20 * 4


def test_equal_costs_give_the_smaller_number() -> None:
    """At equal prices a slot that is always used saves nothing, unless it was short."""
    rate = rates(Fraction(2), discount=Fraction(0), short=Fraction(20))
    assert cheapest([DemandSpan(0, HOUR, 0, 0, outside=3)], rate) == 0
    # Ten times the price: a slot pays until it idles nine hours for each hour short.
    short = DemandSpan(0, HOUR, 0, 0, waiting=1)
    assert cheapest([short, DemandSpan(HOUR, 10 * HOUR - 1, 0, 0)], rate) == 1
    assert cheapest([short, DemandSpan(HOUR, 10 * HOUR, 0, 0)], rate) == 0
    assert cheapest([], rate) == 0
