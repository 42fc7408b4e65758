"""The statements of the history, which are the same for SQLite and for PostgreSQL.

Invariant: nothing that a decision needs is here; every caller lives with a database that is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from typing import Final

from broker.capacity.forecast import PoolOutcomes
from broker.history.connections import MEMORY, Database, Transaction
from broker.history.demand import UseLevel
from broker.history.entries import Entry
from broker.history.tables import INDEXES, LEVELS, SLOT, TABLES, Batch, EntryFilter, insert, listed

PRUNE_SECONDS: Final = 120  # within which PostgreSQL deletes old rows
# Rows are deleted when this share of the size is in use, a twentieth of them at a time. The rest is for a
# batch.
FULL: Final = 0.8
PART: Final = 20
_BY_TIME: Final = (
    ("history_shortages", "slot"),
    ("history_launches", "slot"),
    ("history_uses", "slot"),
    (LEVELS, "at"),
)
_FIELDS: Final = tuple(field.name for field in fields(Entry))


class TableMissing(Exception):
    """The database is readable and has no history."""


class LevelsMissing(TableMissing):
    """The database has a history without the counts that advice is made from."""


class HistoryStore:
    """The statements. Each raises HistoryError while the database cannot be used."""

    def __init__(self, location: str = MEMORY, *, mebibytes: int = 512, read_only: bool = False) -> None:
        """`location` is `memory`, a path, or a URL of PostgreSQL; nothing is opened yet.

        `mebibytes` limits memory and SQLite's file. A store that is `read_only` creates and changes nothing.
        Raises ValueError for a URL of another kind.
        """
        self.database = Database.at(location, limit=mebibytes << 20, read_only=read_only)

    def open(self) -> None:
        """Creates missing tables; a store that is read-only raises TableMissing instead."""
        with self._begin() as transaction:
            if self.database.read_only:
                for table in TABLES:
                    # An older broker wrote no levels, which the advice alone reads.
                    if table != LEVELS and not self._has(transaction, table):
                        raise TableMissing(f"it has no table {table}")
                return
            for table, (columns, key) in TABLES.items():
                listed_columns = ", ".join(f"{name} {type_} NOT NULL" for name, type_ in columns.items())
                transaction.run(f"CREATE TABLE IF NOT EXISTS {table} ({listed_columns}, PRIMARY KEY ({key}))")
            for index, place in INDEXES.items():
                transaction.run(f"CREATE INDEX IF NOT EXISTS {index} ON {place}")

    def close(self) -> None:
        self.database.close()

    def check_levels(self) -> None:
        """Raises LevelsMissing if an older broker wrote the database."""
        with self._begin() as transaction:
            if not self._has(transaction, LEVELS):
                raise LevelsMissing(f"it has no table {LEVELS}: the broker that writes it is older")

    # ---- writing

    def write(self, batch: Batch) -> None:
        """One transaction. Entries that are there already stay as they are."""
        with self._begin() as transaction:
            write = transaction.write
            write(insert("history_entries"), [asdict(entry) for entry in batch.entries])
            write(
                insert("history_reservations"),
                [{"reservation": r, "entry": e, "at": at} for (r, e), at in batch.reservations.items()],
            )
            write(
                insert("history_claims", "node_pool", "at"),
                [{"claim": c, "node_pool": p, "at": at} for c, (p, at) in batch.claims.items()],
            )
            counts_of_pools = {"history_shortages": batch.refusals, "history_launches": batch.launches}
            for table, counts in counts_of_pools.items():
                rows = [{"slot": s, "pool": p, "count": n} for (s, p), n in counts.items()]
                write(insert(table, add="count"), rows)
            write(
                insert("history_uses", "total", "used"),
                [
                    {"slot": s, "reservation": r, "total": t, "used": u}
                    for (s, r), (t, u) in batch.uses.items()
                ],
            )
            write(
                insert(LEVELS, "total", "used", "waiting", "price"),
                [level._asdict() for level in batch.levels],
            )

    def prune(self, *, before: int, rows: int) -> int:
        """Deletes entries older than `before` (microseconds), and the oldest beyond `rows` or the size.

        Counts are no entries: `rows` does not limit them. Returns the number of deleted entries.
        """
        with self._begin() as transaction:
            if not self.bounded:
                transaction.run(f"SET LOCAL statement_timeout = '{PRUNE_SECONDS}s'")
            count = transaction.value("SELECT count(*) FROM history_entries")
            kept_from = before
            if count > rows:
                newest = "SELECT at FROM history_entries ORDER BY at DESC LIMIT 1 OFFSET :skipped"
                kept_from = max(before, transaction.value(newest, skipped=rows - 1) or 0)
            gone = _delete_entries(transaction, kept_from)
            for table, column in _BY_TIME:
                _delete_before(transaction, table, column, before // 1_000_000 - SLOT)
        while self._full():
            with self._begin() as transaction:
                gone += _delete_entries(transaction, _of_oldest(transaction, "history_entries", "at"))
                for table, column in _BY_TIME:
                    _delete_before(transaction, table, column, _of_oldest(transaction, table, column))
        return gone

    def size(self) -> int:
        """The bytes in use of memory or of SQLite's file; 0 for PostgreSQL."""
        if not self.bounded:
            return 0
        with self._begin() as transaction:
            pages, free, page_size = (
                int(transaction.value(f"PRAGMA {name}"))
                for name in ("page_count", "freelist_count", "page_size")
            )
            return (pages - free) * page_size

    @property
    def bounded(self) -> bool:
        """Whether the size is limited: PostgreSQL has limits of its own."""
        return self.database.url is None

    def _full(self) -> bool:
        if self.size() <= FULL * self.database.limit:
            return False
        with self._begin() as transaction:
            tables = ("history_entries", *(table for table, _ in _BY_TIME))
            return any(transaction.value(f"SELECT 1 FROM {table} LIMIT 1") for table in tables)

    # ---- reading

    def find(
        self, entry_filter: EntryFilter, *, before: tuple[int, str] | None = None, limit: int = 100
    ) -> list[Entry]:
        """The newest first; `before` is the place (at, id) of the last one on the page before."""
        condition, values = entry_filter.where()
        if before is not None:
            condition += " AND (at < :last OR at = :last AND id < :last_id)"
            values |= {"last": before[0], "last_id": before[1]}
        statement = f"SELECT {', '.join(_FIELDS)} FROM history_entries WHERE {condition}"
        statement += " ORDER BY at DESC, id DESC LIMIT :most"
        with self._begin() as transaction:
            rows = transaction.run(statement, most=limit, **values).fetchall()
        given = (dict(zip(_FIELDS, row, strict=True)) for row in rows)
        return [Entry(**{**row, "warning": bool(row["warning"])}) for row in given]  # a number in SQLite

    def count(self, entry_filter: EntryFilter, *, by: str) -> list[tuple[str, int]]:
        """Entries by the values of a column, the most frequent first."""
        condition, values = entry_filter.where()
        statement = f"SELECT {by}, count(*) FROM history_entries WHERE {condition} GROUP BY 1"
        statement += " ORDER BY 2 DESC, 1"
        with self._begin() as transaction:
            return [(str(value), int(n)) for value, n in transaction.run(statement, **values)]

    def namespaces(self) -> list[str]:
        """The namespaces of all entries."""
        with self._begin() as transaction:
            names = transaction.run("SELECT DISTINCT namespace FROM history_entries")
            return [str(name) for (name,) in names]

    def refusals(self, *, since: int, width: int = SLOT) -> list[tuple[int, str, int]]:
        """(slot, pool, refusals for lack of capacity) since a time in seconds; `width` seconds a slot."""
        statement = """
            SELECT slot - slot % :width, pool, sum(count) FROM history_shortages WHERE slot >= :since
            GROUP BY 1, 2 ORDER BY 1, 2"""
        with self._begin() as transaction:
            rows = transaction.run(statement, width=width, since=since)
            return [(int(s), str(p), int(n)) for s, p, n in rows]

    def outcomes(self, *, since: int) -> list[PoolOutcomes]:
        """Launches, and refusals for lack of capacity, of each pool and slot since a time in seconds."""
        statement = """
            SELECT pool, slot, sum(launched), sum(refused) FROM (
                SELECT pool, slot, count AS launched, 0 AS refused FROM history_launches WHERE slot >= :since
                UNION ALL SELECT pool, slot, 0, count FROM history_shortages WHERE slot >= :since
            ) AS parts GROUP BY slot, pool"""
        with self._begin() as transaction:
            rows = transaction.run(statement, since=since)
            return [PoolOutcomes(str(p), int(s), int(n), int(m)) for p, s, n, m in rows]

    def uses(self, reservations: Iterable[str], *, since: int) -> dict[str, list[tuple[int, int, int]]]:
        """(slot, total, used) of each reservation, oldest first."""
        by_reservation: dict[str, list[tuple[int, int, int]]] = {}
        chosen, values = listed("reservation", reservations)
        statement = f"""
            SELECT reservation, slot, total, used FROM history_uses
            WHERE reservation IN {chosen} AND slot >= :since ORDER BY slot"""
        with self._begin() as transaction:
            for reservation, slot, total, used in transaction.run(statement, since=since, **values):
                by_reservation.setdefault(reservation, []).append((slot, total, used))
        return by_reservation

    def levels(self, *, since: int) -> list[UseLevel]:
        """The counts since a time in seconds, oldest first."""
        statement = f"SELECT {', '.join(UseLevel._fields)} FROM {LEVELS} WHERE at >= :since ORDER BY at"
        with self._begin() as transaction:
            return [UseLevel(*row) for row in transaction.run(statement, since=since)]

    # ---- how

    def _begin(self) -> AbstractContextManager[Transaction]:
        return self.database.begin()

    def _has(self, transaction: Transaction, table: str) -> bool:
        in_sqlite = "SELECT 1 FROM sqlite_master WHERE name = :name"
        return bool(transaction.value(in_sqlite if self.bounded else "SELECT to_regclass(:name)", name=table))


def _delete_before(transaction: Transaction, table: str, column: str, before: int) -> int:
    """Deletes the table's rows with smaller values; the number."""
    return int(transaction.run(f"DELETE FROM {table} WHERE {column} < :before", before=before).rowcount)


def _delete_entries(transaction: Transaction, before: int) -> int:
    for links in ("history_reservations", "history_claims"):
        _delete_before(transaction, links, "at", before)
    return _delete_before(transaction, "history_entries", "at", before)


def _of_oldest(transaction: Transaction, table: str, column: str) -> int:
    """The value below which the oldest part of the table is, one row at least; 0 without rows."""
    count = transaction.value(f"SELECT count(*) FROM {table}")
    part = f"SELECT {column} FROM {table} ORDER BY {column} LIMIT 1 OFFSET :skipped"
    return int(transaction.value(part, skipped=min(count - 1, count // PART))) + 1 if count else 0
