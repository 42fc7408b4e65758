"""Formats ages for people: `45s`, `2m5s`, `3h10m`, `7d`.

Rule: k8s.io/apimachinery/pkg/util/duration (HumanDuration).
"""

from __future__ import annotations

from local.kube.times import parse

_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 86400 * 365


# below so many seconds: whole units and, between the coarse steps, the next smaller unit
_STEPS = (
    (2 * _MINUTE, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
)


def human(seconds: float) -> str:
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    total = max(0, total)
    for below, unit, name, part, part_name in _STEPS:
        if total < below:
            whole, rest = divmod(total, unit)
            small = rest // part if part else 0
            return f"{whole}{name}{small}{part_name}" if small else f"{whole}{name}"
    return f"{total // _YEAR}y"


def age(stamp: str | None, now: float) -> str:
    at = parse(stamp) if stamp else None
    return human(now - at.timestamp()) if at else "<unknown>"


def span(start: str | None, end: str | None, now: float) -> str:
    began = parse(start) if start else None
    if began is None:
        return ""
    ended = parse(end) if end else None
    return human((ended.timestamp() if ended else now) - began.timestamp())
