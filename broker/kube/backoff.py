"""Exponential back-off with full jitter: many clients that failed together do not come back together.

Rule: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

from __future__ import annotations

from collections.abc import Callable

from broker.doubling import doubled

Random = Callable[[], float]


class Backoff:
    """`next()` grows from at most `first` to at most `longest` seconds; `reset()` after a success."""

    def __init__(self, *, first: float, longest: float, random: Random) -> None:
        self._first, self._longest, self._random = first, longest, random
        self.failures = 0

    def next(self, *, at_least: float = 0.0) -> float:
        ceiling = doubled(self._first, self._longest, self.failures)
        self.failures += 1
        return max(at_least, ceiling * self._random())

    def reset(self) -> None:
        self.failures = 0
