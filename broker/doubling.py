"""The rule of every wait that doubles: before retries, and of shortages."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, TypeVar

MOST_DOUBLINGS: Final = 30  # doublings: more would exceed the range of a float or a timedelta

Wait = TypeVar("Wait", float, timedelta)


def doubled(first: Wait, longest: Wait, times: int) -> Wait:
    """The first wait, doubled so many times, but at most the longest."""
    return min(longest, first * 2.0 ** min(times, MOST_DOUBLINGS))
