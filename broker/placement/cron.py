"""The schedule of a disruption budget: standard cron in UTC, with names, steps and macros.

Karpenter parses schedules with robfig/cron's ParseStandard, so its rules hold: five fields, Sunday is 0 and
never 7, and `?` means `*`. If day of month and day of week are both restricted, either may match
(https://pkg.go.dev/github.com/robfig/cron/v3#hdr-CRON_Expression_Format).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from broker.text import InvalidText, decode_whole, shortened

MACROS: Final[Mapping[str, str]] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST: Final = 1024  # characters
# Some dates come once in eight years: 29 February around the year 2100.
_FARTHEST: Final = 8 * 366


@dataclass(frozen=True, slots=True)
class _Field:
    """The range of one field, and the names of its values in order."""

    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 6, _DAYS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSchedule:
    """The moments of a schedule. `any_day`: one of the two day fields is unrestricted, so both must match."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool

    def latest(self, now: datetime) -> datetime | None:
        """The last moment of the schedule that is not after `now`; None if there is none for years."""
        end = now.astimezone(UTC).replace(second=0, microsecond=0)
        day = end.replace(hour=0, minute=0)
        for _ in range(_FARTHEST):
            if self._on(day):
                for hour in sorted(self.hours, reverse=True):
                    for minute in sorted(self.minutes, reverse=True):
                        moment = day.replace(hour=hour, minute=minute)
                        if moment <= end:
                            return moment
            day -= timedelta(days=1)
        return None

    def _on(self, day: datetime) -> bool:
        if day.month not in self.months:
            return False
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (by_month and by_week) if self.any_day else (by_month or by_week)


@lru_cache(maxsize=256)
def parse(text: str) -> CronSchedule:
    """The schedule of a cron expression. Raises InvalidText."""
    if len(text) > _LONGEST:
        raise InvalidText(f"not a schedule: {shortened(text)}; write five fields such as 0 9 * * mon-fri")
    fields = MACROS.get(text.strip(), text).split()
    if len(fields) != len(_FIELDS):
        raise InvalidText(f"not a schedule: {shortened(text)}; write five fields such as 0 9 * * mon-fri")
    parsed = [_values(part, field) for part, field in zip(fields, _FIELDS, strict=True)]
    (minutes, _), (hours, _), (days, all_days), (months, _), (weekdays, all_weekdays) = parsed
    return CronSchedule(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=weekdays,
        any_day=all_days or all_weekdays,
    )


def _values(text: str, field: _Field) -> tuple[frozenset[int], bool]:
    """The values of a field, and whether a part of it is unrestricted."""
    values: set[int] = set()
    unrestricted = False
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, _Field(f"step of {field.name}", 1, field.most + 1)) if slash else 1
        first, dash, last = span.partition("-")
        if span in ("*", "?"):
            low, high = field.least, field.most
            unrestricted = unrestricted or step == 1
        else:
            low = _number(first, field)
            high = _number(last, field) if dash else field.most if slash else low
        if low > high:
            raise InvalidText(f"{field.name} {shortened(part)} of the schedule ends before it begins")
        values.update(range(low, high + 1, step))
    return frozenset(values), unrestricted


def _number(text: str, field: _Field) -> int:
    if text.lower() in field.names:
        return field.names.index(text.lower()) + field.least
    try:
        return decode_whole(text, least=field.least, most=field.most)
    except InvalidText as error:
        raise InvalidText(f"{field.name} of the schedule: {error}") from error
