"""The page of advice: a row and a curve with axes for each reservation and short pool."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.history.advice import AdviceQuery, advice_of_minute
from broker.history.demand import UseLevel, pulse
from broker.history.store import HistoryStore
from broker.history.tables import Batch
from tests.unit.webpage.world import NOW, get, page, state


def recorded(days: int) -> HistoryStore:
    store = HistoryStore()
    store.open()
    for hour in range(days * 24):
        at = int(NOW.timestamp()) - (days * 24 - hour) * 3600
        level = UseLevel(
            at, "cr-1", "p5.48xlarge", "us-east-1a", "Linux/UNIX", 2, 1, 3 * (hour % 2), 2_000_000
        )
        store.write(Batch(levels=[level, pulse(at)]))
    return store


@pytest.mark.covers("ONC-10")
def test_page_has_numbers_and_a_curve_with_axes() -> None:
    with page(recorded(3), state()) as url:
        shown = get(f"{url}/advice").data.decode()
        assert "3.0 days of record." in shown and 'href="/odcrs/cr-1"' in shown
        assert 'data-label="Cheapest">4<' in shown and "72, replayed 0" in shown
        assert 'role="img" aria-label="Demand of cr-1 over 3.0 days of record: at most 4, now with 2' in shown
        assert shown.count('class="axis"') == 6 and 'class="demand" d="M0 ' in shown
        assert '<a href="/advice">Advice</a>' in get(url).data.decode()
        replayed = get(f"{url}/advice?count=1&hours=8-18").data.decode()
        assert 'data-label="Replayed">1<' in replayed and "from 8:00 to 18:00 UTC" in replayed


@pytest.mark.covers("ONC-10")
def test_page_below_two_days_gives_no_number_and_names_unreadable_fields() -> None:
    with page(recorded(1), state()) as url:
        shown = get(f"{url}/advice?count=x&hours=soon").data.decode()
        assert "1.0 days of record: no advice below 2 days" in shown
        assert 'data-label="Cheapest">below 2 days<' in shown and 'data-label="Saved $">unknown<' in shown
        assert "write a number of slots" in shown and "such as 8-18" in shown


def test_advice_of_a_page_is_computed_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    store = recorded(3)
    reads: list[int] = []
    levels = store.levels

    def counted(*, since: int) -> list[UseLevel]:
        reads.append(since)
        return levels(since=since)

    monkeypatch.setattr(store, "levels", counted)
    with page(store, state()) as url:
        assert {get(f"{url}/advice").status for _ in range(3)} == {200}
        assert len(reads) == 1
        assert get(f"{url}/advice?count=1").status == 200
        assert len(reads) == 1


def test_parallel_requests_read_the_record_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = recorded(3)
    reads: list[int] = []
    second, levels = threading.Event(), store.levels

    def counted(*, since: int) -> list[UseLevel]:
        reads.append(since)
        if len(reads) > 1:
            second.set()
        second.wait(0.5)  # a second read would begin meanwhile
        return levels(since=since)

    monkeypatch.setattr(store, "levels", counted)
    queries = [AdviceQuery(count=count) for count in (1, 2, 2)]
    with ThreadPoolExecutor(len(queries)) as threads:
        minute = int(NOW.timestamp()) // 60
        answers = [*threads.map(lambda query: advice_of_minute(store, query, minute), queries)]
    assert [rows[0].count for rows in answers] == [1, 2, 2] and len(reads) == 1


@pytest.mark.covers("ONC-04")
def test_overview_has_charts_of_slots_and_dollars_with_axes() -> None:
    with page(recorded(1), state()) as url:
        shown = get(url).data.decode()
    slots, dollars = shown.split("<figure")[1:]
    assert "Slots and instances by the hour (UTC)" in slots and "Dollars an hour (UTC)" in dollars
    for chart, top in ((slots, "2"), (dollars, "2")):
        assert f'text-anchor="end">{top}</text>' in chart and ">12:00</text>" in chart
        # The hour that has just begun has no bar yet.
        assert chart.count('<rect class="idle"') == 23 and chart.count('<th scope="row">') == 24
    assert slots.count('<rect class="used"') == 23
    assert "1.0 used slots</title>" in slots and "2.0 dollars of idle slots</title>" in dollars
    with page(HistoryStore(), state()) as url:
        assert "Nothing is recorded yet" in get(url).data.decode()
