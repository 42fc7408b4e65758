"""Advice from the counts in each database: the cheapest number, what-ifs, and too little record."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from broker.history.advice import AdviceQuery, AdviceRow, advise, headline, parse_hours
from broker.history.demand import EVERY, CapacityPlace, LevelSampler, UseLevel, pulse
from broker.history.store import HistoryStore
from broker.history.tables import Batch
from tests.unit.history.facts import AT, fill, refusal

HOUR = 3600
P5 = CapacityPlace("p5.48xlarge", "us-east-1a")
OTHER = CapacityPlace("p5.48xlarge", "us-east-1b")
USD = 2_000_000
DAYS = 4
BEGIN = int((AT - timedelta(days=DAYS)).timestamp()) // 86400 * 86400
END = AT.fromtimestamp(BEGIN + DAYS * 86400, AT.tzinfo)


def slots(at: int, total: int, used: int, name: str = "cr-1", waiting: int = 0) -> UseLevel:
    return UseLevel(at, name, *P5, total, used, waiting, USD)


def outside(at: int, used: int, waiting: int = 0, place: CapacityPlace = P5) -> UseLevel:
    return UseLevel(at, "", *place, 0, used, waiting, USD)


def write(store: HistoryStore, days: int = DAYS, *, waiting: bool = True) -> None:
    """Each day: two slots, of which one is used; from 8 to 18 both are used, one instance is outside, and
    two claims wait."""
    sampler = LevelSampler()
    for hour in range(days * 24):
        at = BEGIN + hour * HOUR
        busy = 8 <= hour % 24 < 18
        now = [slots(at, 2, 2 if busy else 1), pulse(at)]
        if busy:
            now.append(outside(at, 1, 2 * waiting))
        store.write(Batch(levels=sampler.changed(now, at)))


def only(store: HistoryStore, now: timedelta = timedelta(), **query: object) -> AdviceRow:
    (row,) = advise(store, replace(AdviceQuery(), **query), END + now)  # type: ignore[arg-type]
    return row


@pytest.mark.covers("ONC-10")
def test_cheapest_number_with_dollars_saved_hours_short_and_curve(store: HistoryStore) -> None:
    write(store)
    row = only(store)
    assert (row.reservation, row.days, row.slots, row.peak) == ("cr-1", 4.0, 2, 5)
    assert row.was_short and row.short_hours == 4 * 10 * 2 and row.idle_hours == 4 * 14
    # Slots up to the fourth save ten hours short a day, at ten times the price. The fifth would replace the
    # instance outside at the same price, and idle at night.
    assert (row.best, row.count) == (4, 4)
    assert (row.short_hours_then, row.idle_hours_then) == (0.0, 4 * 14 * 3)
    was = 2 * (2 * 96 + 40 + 10 * 80)
    then = 2 * (4 * 96 + 40)
    assert (row.cost, row.cost_then, row.saved) == (was, then, was - then)
    demand = row.document()["demand"]
    assert [(step["demand"], step["slots"]) for step in demand] == [(1, 2), (5, 2)] * 4 + [(1, 2)]
    assert demand[1]["at"] == BEGIN + 8 * HOUR


@pytest.mark.covers("ONC-10")
def test_what_if_replays_a_number_and_hours(store: HistoryStore) -> None:
    write(store)
    fewer = only(store, count=1)
    assert (fewer.best, fewer.count) == (4, 1)
    assert (fewer.short_hours_then, fewer.idle_hours_then) == (4 * 10 * 3, 0.0)
    assert fewer.saved is not None and fewer.saved < 0
    by_day = only(store, count=4, hours=(8, 18))
    assert (by_day.short_hours_then, by_day.idle_hours_then) == (0.0, 0.0)
    assert by_day.cost_then == 2 * (4 * 40 + 40 + 56)  # slots by day, one instance on demand always
    assert only(store, hours=(18, 8)).best == 0  # never short at night: on demand costs the same


def test_discount_and_cost_of_a_short_hour_change_the_number(store: HistoryStore) -> None:
    write(store)
    assert only(store, short_cost=0.0).best == 0  # counts as the price: on demand costs as much
    assert only(store, discount=50.0, short_cost=0.0).best == 1
    assert only(store, discount=60.0, short_cost=0.0).best == 5


@pytest.mark.covers("ONC-10")
def test_below_two_days_there_is_no_number(store: HistoryStore) -> None:
    write(store, days=1)
    rows = advise(store, AdviceQuery(count=3), END - timedelta(days=3, hours=-12))
    assert [(row.best, row.count, row.saved, row.short_hours_then) for row in rows] == [(None,) * 4]
    assert 1.0 < rows[0].days < 2.0 and headline(rows, AdviceQuery()).endswith("no advice below 2 days")
    assert headline([], AdviceQuery()).startswith("0.0 days of record")


def test_time_without_a_broker_is_no_record(store: HistoryStore) -> None:
    write(store)
    assert only(store, now=timedelta(days=5)).days == pytest.approx(
        DAYS + (2 * EVERY - HOUR * 3) / 86400, abs=0.2
    )


@pytest.mark.covers("ONC-10")
def test_pool_without_a_reservation_counts_only_if_it_was_short(store: HistoryStore) -> None:
    write(store)
    at = BEGIN + HOUR
    quiet = CapacityPlace("m5.large", "us-east-1a")
    store.write(Batch(levels=[outside(at, 1, 3, OTHER), outside(at, 4, 0, quiet)]))
    rows = advise(store, AdviceQuery(), END)
    assert [row.name for row in rows] == ["cr-1", "p5.48xlarge in us-east-1b"]
    assert rows[1].short_hours == 3 * 2 and rows[1].slots == 0 and rows[1].days == 4.0


def test_only_the_largest_reservation_of_a_pool_gets_the_demand_outside(store: HistoryStore) -> None:
    for at in range(BEGIN, BEGIN + DAYS * 86400, EVERY):
        big, small = slots(at, 3, 3), slots(at, 1, 1, "cr-2", waiting=1)
        store.write(Batch(levels=[big, small, outside(at, 2, 1), pulse(at)]))
    assert [(row.name, row.peak) for row in advise(store, AdviceQuery(), END)] == [("cr-1", 6), ("cr-2", 2)]


def test_slots_that_cost_nothing_by_the_hour_have_the_dollars_of_slots_on_demand(store: HistoryStore) -> None:
    for at in range(BEGIN, BEGIN + DAYS * 86400, EVERY):
        prepaid = slots(at, 2, 1)._replace(price=-USD)
        store.write(Batch(levels=[prepaid, pulse(at)]))
    row = only(store)
    assert (row.usd_hour, row.cost) == (2.0, 2.0 * 2 * 24 * DAYS)


def test_old_counts_are_deleted_and_the_level_stays_known(store: HistoryStore) -> None:
    write(store)
    store.prune(before=(BEGIN + 86400) * 1_000_000, rows=10**6)
    assert min(level.at for level in store.levels(since=0)) >= BEGIN + 86400 - 2 * HOUR
    assert only(store).days == pytest.approx(3.0, abs=0.1)


def test_sampler_writes_changes_and_all_counts_now_and_then() -> None:
    sampler = LevelSampler()
    first = [slots(0, 2, 1), pulse(0)]
    assert len(sampler.changed(first, BEGIN)) == 2
    assert sampler.changed(first, BEGIN + 60) == []
    assert [row.used for row in sampler.changed([slots(0, 2, 2), pulse(0)], BEGIN + 61)] == [2]
    (gone,) = sampler.changed([pulse(0)], BEGIN + 62)
    assert (gone.reservation, gone.total, gone.used) == ("cr-1", 0, 0)
    assert [row.instance_type for row in sampler.changed([pulse(0)], BEGIN + EVERY)] == [""]


def test_reservation_that_ended_while_no_broker_ran_ends_with_the_next_full_sample(
    store: HistoryStore,
) -> None:
    write(store)
    store.write(Batch(levels=[pulse(BEGIN + DAYS * 86400)]))
    assert only(store, now=timedelta(hours=5)).days == 4.0


@pytest.mark.parametrize("text", ["", "8", "8-", "a-b", "8-25", "24-3", "7-7", "8-18-20"])
def test_hours_that_cannot_be_read_have_a_way_out(text: str) -> None:
    with pytest.raises(ValueError, match="write hours of the day in UTC such as 8-18"):
        parse_hours(text)


@pytest.mark.parametrize("seen_to_end", [True, False])
def test_demand_after_the_end_of_a_reservation_is_of_its_pool(store: HistoryStore, seen_to_end: bool) -> None:
    """Also if no broker ran when it ended, so that no count of zero is in the record."""
    middle = BEGIN + 2 * 86400
    for at in range(BEGIN, BEGIN + DAYS * 86400, EVERY):
        own = [slots(at, 2, 2)] if at < middle else [slots(at, 0, 0)] * (seen_to_end and at == middle)
        store.write(Batch(levels=[*own, outside(at, 1, 3 if at >= middle else 0), pulse(at)]))
    pool, reservation = advise(store, AdviceQuery(), END)
    assert (pool.name, pool.days, pool.slots, pool.peak) == ("p5.48xlarge in us-east-1a", 2.0, 0, 4)
    assert pool.was_short and pool.short_hours == 2 * 24 * 3
    assert (reservation.name, reservation.peak, reservation.short_hours) == ("cr-1", 3, 0.0)


def test_the_limit_of_entries_deletes_no_counts(store: HistoryStore) -> None:
    write(store)
    fill(store, *(refusal(number) for number in range(5)))
    before = store.levels(since=0)
    assert store.prune(before=0, rows=1) == 4
    assert store.levels(since=0) == before and store.refusals(since=0)
