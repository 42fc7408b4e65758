"""Shortages as a map: a row for each pool, a column for each span of time, refusals in the cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from broker.capacity.chances import ChanceNow
from broker.text import plain

LEVELS: Final = 5
ROWS: Final = 200


@dataclass(frozen=True, slots=True)
class HeatCell:
    """`level` is 0 without a refusal, and up to `LEVELS` by the share of the largest count."""

    count: int
    level: int


@dataclass(frozen=True, slots=True)
class HeatRow:
    pool: str
    total: int
    cells: tuple[HeatCell, ...]
    chance: ChanceNow | None = None


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The newest column is first. `rows` have the most refusals first; `left_out` counts further pools."""

    starts: tuple[datetime, ...]
    rows: Sequence[HeatRow]
    left_out: int = 0


def heat_map(
    refusals: Iterable[tuple[int, str, int]],
    chances: Mapping[str, ChanceNow] = MappingProxyType({}),
    *,
    first: int,
    last: int,
    width: int,
) -> HeatMap:
    """The map from the slot of `first` to that of `last`, in seconds since 1970."""
    starts = [*range(first - first % width, last + 1, width)][::-1]
    columns = {start: number for number, start in enumerate(starts)}
    counts: dict[str, list[int]] = {}
    for slot, pool, count in refusals:
        if slot in columns:
            counts.setdefault(pool, [0] * len(starts))[columns[slot]] += count
    most = max((max(row) for row in counts.values()), default=0)
    ordered = sorted(counts.items(), key=lambda item: (-sum(item[1]), item[0]))
    rows = [
        HeatRow(
            plain(pool),
            sum(row),
            tuple(HeatCell(n, -(-n * LEVELS // most) if most else 0) for n in row),
            chances.get(pool),
        )
        for pool, row in ordered[:ROWS]
    ]
    shown = tuple(datetime.fromtimestamp(start, UTC) for start in starts)
    return HeatMap(shown, rows, max(0, len(ordered) - ROWS))
