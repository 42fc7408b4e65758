"""Times as the API writes them: RFC 3339 in UTC, to the second or (MicroTime) to the microsecond."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache

_MICRO = re.compile(r"\.\d{6}([Zz]|[+-]\d\d:\d\d)$")
_RFC3339 = re.compile(r"^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$")


def stamp(seconds: float) -> str:
    return _stamp(int(seconds))


@lru_cache(maxsize=64)
def _stamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(text: str) -> datetime | None:
    """None when it is not RFC 3339."""
    if not _RFC3339.match(text):
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def canonical(text: str) -> str | None:
    at = parse(text)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ") if at else None


def canonical_micro(text: str) -> str | None:
    """A MicroTime has six digits after the point, no more and no less."""
    at = parse(text)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if at and _MICRO.search(text) else None
