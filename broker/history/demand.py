"""The demand over time in the record: slots in use by EC2's counts, instances outside, refused claims.

Invariants: a count holds until the next one, and at most `HOLDS`, so a time without a broker is no record.
Every count is written anew each `EVERY`, so a prune never takes the last one. Only one reservation of a pool,
the largest, gets the instances outside and the claims that wait for none by name: in a pool, no demand counts
twice. Once it has ended, the pool has a curve of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from broker.capacity.hindsight import DemandSpan
from broker.lists import lists_by_key
from providers.model import LINUX
from providers.prices import Product

EVERY: Final = 3 * 3600
HOLDS: Final = 2 * EVERY


class CapacityPlace(NamedTuple):
    """A pool of EC2: instances of it are alike. Tenancy is always the default one."""

    instance_type: str
    zone: str
    platform: str = LINUX

    @property
    def product(self) -> Product:
        return Product(instance_type=self.instance_type, zone=self.zone, platform=self.platform)


class UseLevel(NamedTuple):
    """Counts that hold from `at`, in seconds since 1970. `reservation` is empty for instances outside; a row
    without a type marks a sample of all subjects. `waiting`: the claims that wait since EC2 refused them, or
    since their slots are taken. `price`: on demand, in millionths of a dollar an hour; 0 if it is unknown,
    and below 0 if an idle slot costs the account nothing."""

    at: int
    reservation: str
    instance_type: str
    zone: str
    platform: str
    total: int
    used: int
    waiting: int = 0
    price: int = 0

    @property
    def place(self) -> CapacityPlace:
        return CapacityPlace(self.instance_type, self.zone, self.platform)


class DemandCurve(NamedTuple):
    """The record of a reservation; of a pool without one if `reservation` is empty."""

    reservation: str
    place: CapacityPlace
    price: int
    spans: Sequence[DemandSpan]

    @property
    def was_short(self) -> bool:
        return any(span.waiting for span in self.spans)


_Interval = tuple[int, int, UseLevel]
_Key = tuple[str, CapacityPlace]  # reservation and pool


class LevelSampler:
    """Which counts to write: those that changed, and all of them each `EVERY`."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, CapacityPlace], tuple[int, ...]] = {}
        self._full_at = 0

    def changed(self, levels: Iterable[UseLevel], at: int) -> list[UseLevel]:
        """A subject that is gone counts as zero."""
        seen: dict[tuple[str, CapacityPlace], tuple[int, ...]] = {
            (level.reservation, level.place): level[5:] for level in levels
        }
        if due := at - self._full_at >= EVERY:
            self._full_at = at
        before, self._known = self._known, seen
        gone = {key: (0, 0, 0, price) for key, (*_, price) in before.items() if key not in seen}
        return [
            UseLevel(at, reservation, *place, *counts)
            for (reservation, place), counts in (seen | gone).items()
            if due or before.get((reservation, place)) != counts
        ]


def pulse(at: int) -> UseLevel:
    return UseLevel(at, "", "", "", "", 0, 0)


def curves(levels: Sequence[UseLevel], *, since: int, now: int) -> list[DemandCurve]:
    """The curve of each reservation with slots, and of each pool that was short and has no reservation.

    `levels` begin `HOLDS` before `since`, in the order of time.
    """
    rows = lists_by_key(((level.reservation, level.place), level) for level in levels)
    full = [row.at for row in levels if not row.instance_type]
    reservations = {key: own for key, own in rows.items() if key[0] and any(row.total for row in own)}
    ends = {key: _end(own, full) for key, own in reservations.items()}
    first = _largest(reservations, ends)
    ended = {place: end for place, id_ in first.items() if (end := ends[(id_, place)]) is not None}
    short = [p for (id_, p), own in rows.items() if not id_ and any(row.waiting for row in own)]

    def held(own: Sequence[UseLevel], since: int = since, now: int = now) -> list[_Interval]:
        return intervals(own, full, since, now)

    def curve(reservation: str, place: CapacityPlace) -> DemandCurve:
        own, outside, last = rows[(reservation, place)], list[UseLevel](), now
        begin = since
        if not reservation:  # from the end of the last reservation on
            begin = max(since, ended.get(place, since))
            own, outside = [pulse(row.at) for row in levels], own
        elif first[place] == reservation:
            outside, last = rows.get(("", place), []), ended.get(place, now)
        spans = _spans(held(own, begin), held(outside, begin, last))
        price = next((abs(row.price) for row in reversed([*outside, *own]) if row.price), 0)
        return DemandCurve(reservation, place, price, [*spans])

    unreserved = [("", place) for place in short if place not in first or place in ended]
    listed = [curve(*key) for key in (*reservations, *unreserved)]
    shown = [curve for curve in listed if curve.spans and (curve.reservation or curve.was_short)]
    return sorted(shown, key=lambda curve: (curve.place, curve.reservation))


def _largest(
    reservations: Mapping[_Key, Sequence[UseLevel]], ends: Mapping[_Key, int | None]
) -> dict[CapacityPlace, str]:
    """The reservation of each pool with the most slots now; without any, the reservation that ended last."""

    def size(key: _Key) -> tuple[bool, int, str]:
        end = ends[key]
        return end is None, reservations[key][-1].total if end is None else end, key[0]

    return {place: reservation for reservation, place in sorted(reservations, key=size)}


def _end(own: Sequence[UseLevel], full: Sequence[int]) -> int | None:
    """Since when a reservation has no slots, by a count or a full sample without it; None if it has some."""
    last = next(index for index in reversed(range(len(own))) if own[index].total)
    if last + 1 < len(own):
        return own[last + 1].at
    sample = bisect_right(full, own[last].at)
    return full[sample] if sample < len(full) else None


def intervals(rows: Sequence[UseLevel], full: Sequence[int], since: int, now: int) -> list[_Interval]:
    """The times of the rows. Each ends at the next full sample, which has all subjects that exist then."""
    cut: list[_Interval] = []
    for row, following in zip(rows, [*(row.at for row in rows[1:]), now], strict=False):
        sample = bisect_right(full, row.at)
        end = min(following, row.at + HOLDS, now, *full[sample : sample + 1])
        if (start := max(row.at, since)) < end:
            cut.append((start, end, row))
    return cut


def _spans(own: Iterable[_Interval], outside: Iterable[_Interval]) -> Iterator[DemandSpan]:
    """The times that the record of the subject covers, without a change in each."""
    # By time: the changes of recorded, total, used, outside and waiting.
    changes: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    for start, end, values in (
        *((start, end, (1, row.total, row.used, 0, row.waiting)) for start, end, row in own),
        *((start, end, (0, 0, 0, row.used, row.waiting)) for start, end, row in outside),
    ):
        for index, value in enumerate(values):
            changes[start][index] += value
            changes[end][index] -= value
    sums = [0] * 5
    for start, end in pairwise(sorted(changes)):
        sums = [value + change for value, change in zip(sums, changes[start], strict=True)]
        if sums[0]:
            yield DemandSpan(start, end, *sums[1:])
