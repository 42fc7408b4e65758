"""Time for the provider, as an argument, so that tests own reading and waiting."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class AwsClock(Protocol):
    """`now` for dates in EC2, `monotonic` for rates and caches, `sleep` for every wait."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class AwsSystemClock:
    """The machine's own."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, /) -> None:
        time.sleep(seconds)


def utc(time: datetime | None) -> datetime | None:
    """The same moment in UTC; the SDK gives it in the machine's zone."""
    return time.astimezone(UTC) if time else None
