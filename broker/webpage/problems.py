"""The last problems of the overview, equal ones together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

from broker.history.entries import Entry
from broker.history.tables import EntryFilter
from broker.oncall.equal_rows import EqualRows, equal_rows
from broker.oncall.short_pools import ShortageRow, told
from broker.webpage.scope import VisibleHistory

READ: Final = 100  # entries
MOST_READS: Final = 5


def last_problems(
    store: VisibleHistory, shortages: Iterable[ShortageRow], *, most: int
) -> tuple[list[EqualRows[Entry]], bool]:
    """The newest groups, and whether refusals are left out that a short pool stands for.

    A night's refusals would fill one read: others follow it.
    """
    is_told = told(shortages)
    shown, left_out, before = list[Entry](), False, None
    for _ in range(MOST_READS):
        entries = store.find(EntryFilter(warning=True), before=before, limit=READ)
        kept = [entry for entry in entries if not (entry.code and is_told(entry.pool, entry.code))]
        shown, left_out = shown + kept, left_out or len(kept) < len(entries)
        groups = equal_rows(shown, cause=_cause, zone=lambda entry: entry.zone)
        if len(groups) >= most or len(entries) < READ:
            break
        before = entries[-1].at, entries[-1].id
    return groups[:most], left_out


def _cause(entry: Entry) -> Hashable:
    """Leaves the claim and the zone out."""
    about = entry.node_class or (entry.kind, entry.namespace, entry.name)
    pool = entry.capacity_type, entry.instance_type, entry.reservation
    return entry.outcome, entry.code, entry.error_class, pool, about, entry.next_step
