"""Schedules of disruption budgets: the last moment before a time, as robfig/cron finds it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from broker.placement.cron import parse
from broker.text import InvalidText

# 2026-11-22 is a Sunday.
NOW = datetime(2026, 11, 22, 10, 30, 45, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text + ":00Z")


@pytest.mark.parametrize(
    ("text", "latest"),
    [
        ("* * * * *", "2026-11-22T10:30"),
        ("30 10 * * *", "2026-11-22T10:30"),
        ("31 10 * * *", "2026-11-21T10:31"),
        ("0 9 * * mon-fri", "2026-11-20T09:00"),
        ("0 9 * * 1-5", "2026-11-20T09:00"),
        ("0 9 * * SUN", "2026-11-22T09:00"),
        ("*/15 * * * *", "2026-11-22T10:30"),
        ("5/20 * * * *", "2026-11-22T10:25"),
        ("10-20/5,50 8 * * *", "2026-11-22T08:50"),
        ("0 0 29 2 *", "2024-02-29T00:00"),
        ("0 0 1 jan *", "2026-01-01T00:00"),
        # Both days restricted: either matches.
        ("0 0 13 * mon", "2026-11-16T00:00"),
        ("0 0 17 * mon", "2026-11-17T00:00"),
        # One of them is a star: both must match.
        ("0 0 ? * mon", "2026-11-16T00:00"),
        ("0 0 13 * *", "2026-11-13T00:00"),
        # A star with a step restricts.
        ("0 0 13 * */6", "2026-11-22T00:00"),
        ("@daily", "2026-11-22T00:00"),
        ("@midnight", "2026-11-22T00:00"),
        ("@hourly", "2026-11-22T10:00"),
        ("@weekly", "2026-11-22T00:00"),
        ("@monthly", "2026-11-01T00:00"),
        ("@yearly", "2026-01-01T00:00"),
        ("@annually", "2026-01-01T00:00"),
    ],
)
def test_last_moment_of_a_schedule(text: str, latest: str) -> None:
    assert parse(text).latest(NOW) == at(latest)


def test_impossible_date_has_no_moment() -> None:
    assert parse("0 0 31 2 *").latest(NOW) is None


def test_schedules_are_in_utc() -> None:
    east = NOW.astimezone(timezone(timedelta(hours=5)))
    assert parse("30 10 * * *").latest(east) == at("2026-11-22T10:30")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0 9 * *", "five fields"),
        ("60 9 * * *", "minute of the schedule"),
        ("0 9 * * 7", "day of week of the schedule"),
        ("0 9 * foo *", "month of the schedule"),
        ("0 17-9 * * *", "ends before it begins"),
        ("*/0 * * * *", "step of minute"),
        ("@reboot", "five fields"),
        ("x" * 5000, "5000 characters"),
        ("-1 * * * *", "minute of the schedule"),
    ],
)
def test_invalid_schedules_name_the_field(text: str, reason: str) -> None:
    with pytest.raises(InvalidText, match=reason):
        parse(text)
