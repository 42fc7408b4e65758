"""Claims that are not tried before a time: after a refusal that trying elsewhere would not help.

Invariant: a hold is of the class as it was; when the class, or what it names in EC2, changes, its claims are
tried at once. Waits double as refusals repeat, up to a limit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from broker.controllers.nodeclass.resolve import LaunchClass, Surroundings

# First and longest wait: before the same is asked again; before what a person must mend is looked at again.
RETRY = (timedelta(seconds=1), timedelta(seconds=60))
STOPPED = (timedelta(seconds=10), timedelta(minutes=5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """`times`: how often in a row; `seen`: the class's version and what it named in EC2."""

    until: datetime
    times: int
    seen: tuple[int, Surroundings]


class Holds:
    """By claim uid; one thread works with it."""

    def __init__(self) -> None:
        self._holds: dict[str, Hold] = {}

    def put(self, uid: str, ready: LaunchClass, waits: tuple[timedelta, timedelta], *, now: datetime) -> None:
        known = self._holds.get(uid)
        times = known.times + 1 if known else 1
        first, longest = waits
        until = now + min(longest, first * 2 ** min(times - 1, 10))
        self._holds[uid] = Hold(until=until, times=times, seen=_seen(ready))

    def holds(self, uid: str, ready: LaunchClass, *, now: datetime) -> bool:
        hold = self._holds.get(uid)
        return hold is not None and hold.until > now and hold.seen == _seen(ready)

    def drop(self, uid: str) -> None:
        self._holds.pop(uid, None)

    def keep(self, uids: Collection[str]) -> None:
        """Forgets those of all other claims."""
        self._holds = {uid: hold for uid, hold in self._holds.items() if uid in uids}

    def ends(self) -> list[datetime]:
        return [hold.until for hold in self._holds.values()]


def _seen(ready: LaunchClass) -> tuple[int, Surroundings]:
    return ready.source.metadata.generation, ready.surroundings
