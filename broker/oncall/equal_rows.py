"""Equal rows as one: the web page and `explain` show the same groups.

Invariant: each row is in one group, and groups keep the order of their first rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from broker.lists import lists_by_key

T = TypeVar("T")
_ZONE: Final = re.compile(r"(.+?)(\d+[a-z])")  # us-east-1a, us-west-2-lax-1b


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualRows(Generic[T]):
    """Rows of one cause that differ by their zone alone. `zones`: those of the rows, sorted."""

    rows: tuple[T, ...]
    zones: tuple[str, ...]

    @property
    def first(self) -> T:
        return self.rows[0]

    def naming(self, text: str, zone: str) -> str:
        """The text about `zone` with the zones of all rows in its place."""
        return text.replace(zone, zone_names(self.zones)) if zone else text


def equal_rows(
    rows: Iterable[T], *, cause: Callable[[T], Hashable], zone: Callable[[T], str] = lambda _: ""
) -> list[EqualRows[T]]:
    """The rows by cause. `cause` must leave the zone out."""
    groups = lists_by_key((cause(row), row) for row in rows)
    return [
        EqualRows(rows=tuple(group), zones=tuple(sorted({name for row in group if (name := zone(row))})))
        for group in groups.values()
    ]


def zone_names(zones: Iterable[str]) -> str:
    """`us-east-1a, 1b, 1c`; zones of several Regions or groups in full."""
    names = sorted(set(zones))
    parts = [match.groups() if (match := _ZONE.fullmatch(name)) else (name, "") for name in names]
    if len({region for region, _ in parts}) != 1:
        return ", ".join(names)
    return ", ".join([*names[:1], *(letter for _, letter in parts[1:])])
