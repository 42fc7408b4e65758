"""The last problems of the overview, equal ones together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from broker.history.entries import Entry
from broker.oncall.equal_rows import EqualRows, equal_rows
from broker.oncall.short_pools import ShortageRow, told


def equal_problems(
    entries: Sequence[Entry], shortages: Iterable[ShortageRow]
) -> tuple[list[EqualRows[Entry]], bool]:
    """The groups, and whether refusals are left out that a short pool stands for."""
    is_told = told(shortages)
    shown = [entry for entry in entries if not (entry.code and is_told(entry.pool, entry.code))]
    return equal_rows(shown, cause=_cause, zone=lambda entry: entry.zone), len(shown) < len(entries)


def _cause(entry: Entry) -> Hashable:
    """Leaves the claim and the zone out."""
    about = entry.node_class or (entry.kind, entry.namespace, entry.name)
    pool = entry.capacity_type, entry.instance_type, entry.reservation
    return entry.outcome, entry.code, entry.error_class, pool, about, entry.next_step
