"""The demand over time in the record: slots in use by EC2's counts, instances outside, refused claims.

Invariants: a count holds until the next one, and at most `HOLDS`, so a time without a broker is no record.
Every count is written anew each `EVERY`, so a prune never takes the last one. Only one reservation of a pool,
the largest, gets the instances outside and the claims that wait for none by name: in a pool, no demand counts
twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from broker.capacity.hindsight import DemandSpan

EVERY: Final = 3 * 3600
HOLDS: Final = 2 * EVERY
LINUX: Final = "Linux/UNIX"


class CapacityPlace(NamedTuple):
    """A pool of EC2: instances of it are alike. Tenancy is always the default one."""

    instance_type: str
    zone: str
    platform: str = LINUX


class UseLevel(NamedTuple):
    """Counts that hold from `at`, in seconds since 1970. `reservation` is empty for instances outside; a row
    without a type marks a sample of all subjects. `waiting`: the claims that wait since EC2 refused them, or
    since their slots are taken. `price` is in millionths of a dollar an hour, 0 if unknown."""

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
    rows: dict[tuple[str, CapacityPlace], list[UseLevel]] = defaultdict(list)
    for level in levels:
        rows[(level.reservation, level.place)].append(level)
    reservations = {key: own for key, own in rows.items() if key[0] and any(row.total for row in own)}
    first = _largest(reservations)
    short = [("", p) for (id_, p), own in rows.items() if not id_ and any(row.waiting for row in own)]
    full = [row.at for row in levels if not row.instance_type]

    def held(own: Sequence[UseLevel]) -> list[_Interval]:
        return intervals(own, full, since, now)

    recorded = [(start, end, pulse(start)) for start, end, _ in held(levels)]
    listed: list[DemandCurve] = []
    for reservation, place in (*reservations, *(key for key in short if key[1] not in first)):
        own = held(rows[(reservation, place)]) if reservation else recorded
        outside = rows.get(("", place), []) if first.get(place, "") == reservation else []
        spans = [*_spans(own, held(outside))]
        price = next((row.price for row in reversed([*outside, *rows[(reservation, place)]]) if row.price), 0)
        listed.append(DemandCurve(reservation, place, price, spans))
    return sorted(filter(_spans_of, listed), key=lambda curve: (curve.place, curve.reservation))


def _spans_of(curve: DemandCurve) -> Sequence[DemandSpan]:
    return curve.spans


def _largest(
    reservations: Mapping[tuple[str, CapacityPlace], Sequence[UseLevel]],
) -> dict[CapacityPlace, str]:
    """The reservation of each pool with the most slots now."""
    by_size = sorted(reservations, key=lambda key: (reservations[key][-1].total, key[0]))
    return {place: reservation for reservation, place in by_size}


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
