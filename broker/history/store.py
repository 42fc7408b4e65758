"""The database of the history: embedded SQLite, or PostgreSQL by URL, with one set of statements.

Invariant: nothing that a decision needs is here; every caller lives with a database that is gone. Each
statement is SQLAlchemy Core, so both databases run the same ones.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    and_,
    create_engine,
    delete,
    event,
    func,
    inspect,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import StaticPool

from broker.capacity.forecast import PoolOutcomes
from broker.history.demand import UseLevel
from broker.history.entries import Entry
from broker.history.tables import (
    CLAIMS,
    ENTRIES,
    LAUNCHES,
    LEVELS,
    METADATA,
    RESERVATIONS,
    SHORTAGES,
    SLOT,
    USES,
    Batch,
    EntryFilter,
)
from broker.option_rules import database

MEMORY: Final = "memory"
_READ_ONLY: Final = " -c default_transaction_read_only=on"
# Seconds after which PostgreSQL ends a statement; deleting old rows may take longer.
STATEMENT_SECONDS: Final = 10
PRUNE_SECONDS: Final = 120
# Bytes of SQLite's write-ahead log that stay after a checkpoint.
JOURNAL: Final = 16 << 20
# Rows are deleted when this share of the size is in use, a twentieth of them at a time. The rest is for a
# batch.
FULL: Final = 0.8
PART: Final = 20
_BY_TIME: Final = (SHORTAGES.c.slot, LAUNCHES.c.slot, USES.c.slot, LEVELS.c.at)


class TableMissing(Exception):
    """The database is readable and has no history."""


class LevelsMissing(TableMissing):
    """The database has a history without the counts that advice is made from."""


class HistoryStore:
    """The statements. Each raises SQLAlchemyError while the database cannot be used."""

    def __init__(self, location: str = MEMORY, *, mebibytes: int = 512, read_only: bool = False) -> None:
        """`location` is `memory`, a path, or a URL of PostgreSQL; nothing is opened yet.

        `mebibytes` limits memory and SQLite's file. A store that is `read_only` creates and changes nothing.
        Raises ValueError for a URL of another kind.
        """
        self._bytes = mebibytes << 20
        self._read_only = read_only
        self.url = database_url(location)
        self._alone = threading.RLock() if self.url.database is None else None

    @cached_property
    def _engine(self) -> Engine:
        if not self.bounded:
            limits = f"-c statement_timeout={STATEMENT_SECONDS}s -c lock_timeout={STATEMENT_SECONDS}s"
            limits += _READ_ONLY * self._read_only
            return create_engine(
                self.url,
                pool_size=2,
                pool_timeout=STATEMENT_SECONDS,
                pool_pre_ping=True,
                connect_args={"connect_timeout": 5, "options": limits},
            )
        if self.url.database is None:
            engine = create_engine(self.url, poolclass=StaticPool, connect_args={"check_same_thread": False})
        elif self._read_only:
            return create_engine(self.url, creator=partial(connect_read_only, Path(self.url.database)))
        else:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
            engine = create_engine(self.url, connect_args={"timeout": 2})
        event.listen(engine, "connect", partial(tune, limit=self._bytes))
        return engine

    def open(self) -> None:
        """Creates missing tables; a store that is read-only raises TableMissing instead."""
        if self._read_only:
            self._check_tables()
            return
        with self._lock():
            METADATA.create_all(self._engine)

    def _check_tables(self) -> None:
        with self._begin() as connection:
            inspector = inspect(connection)
            for table in METADATA.sorted_tables:
                # An older broker wrote no levels, which the advice alone reads.
                if table is not LEVELS and not inspector.has_table(table.name):
                    raise TableMissing(f"it has no table {table.name}")

    def close(self) -> None:
        if "_engine" in vars(self):
            self._engine.dispose()

    def check_levels(self) -> None:
        """Raises LevelsMissing if an older broker wrote the database."""
        with self._begin() as connection:
            if not inspect(connection).has_table(LEVELS.name):
                raise LevelsMissing(f"it has no table {LEVELS.name}: the broker that writes it is older")

    # ---- writing

    def write(self, batch: Batch) -> None:
        """One transaction. Entries that are there already stay as they are."""
        with self._begin() as connection:
            insert = self._insert
            if batch.entries:
                statement = insert(ENTRIES).on_conflict_do_nothing()
                connection.execute(statement, [asdict(entry) for entry in batch.entries])
            if batch.reservations:
                places = [
                    {"reservation": r, "entry": e, "at": at} for (r, e), at in batch.reservations.items()
                ]
                connection.execute(insert(RESERVATIONS).on_conflict_do_nothing(), places)
            if batch.claims:
                statement = insert(CLAIMS)
                statement = statement.on_conflict_do_update(
                    index_elements=["claim"],
                    set_={"node_pool": statement.excluded.node_pool, "at": statement.excluded.at},
                )
                claims = [{"claim": c, "node_pool": p, "at": at} for c, (p, at) in batch.claims.items()]
                connection.execute(statement, claims)
            for table, counts in ((SHORTAGES, batch.refusals), (LAUNCHES, batch.launches)):
                if counts:
                    statement = insert(table)
                    statement = statement.on_conflict_do_update(
                        index_elements=["slot", "pool"],
                        set_={"count": table.c.count + statement.excluded.count},
                    )
                    rows = [{"slot": s, "pool": p, "count": n} for (s, p), n in counts.items()]
                    connection.execute(statement, rows)
            if batch.uses:
                statement = insert(USES)
                statement = statement.on_conflict_do_update(
                    index_elements=["slot", "reservation"],
                    set_={"total": statement.excluded.total, "used": statement.excluded.used},
                )
                samples = [
                    {"slot": s, "reservation": r, "total": t, "used": u}
                    for (s, r), (t, u) in batch.uses.items()
                ]
                connection.execute(statement, samples)
            if batch.levels:
                statement = insert(LEVELS)
                statement = statement.on_conflict_do_update(
                    index_elements=[column.name for column in LEVELS.primary_key],
                    set_={name: statement.excluded[name] for name in ("total", "used", "waiting", "price")},
                )
                connection.execute(statement, [level._asdict() for level in batch.levels])

    def prune(self, *, before: int, rows: int) -> int:
        """Deletes entries older than `before` (microseconds), and the oldest beyond `rows` or the size.

        Counts are no entries: `rows` does not limit them. Returns the number of deleted entries.
        """
        with self._begin() as connection:
            self._allow_long(connection)
            count: int = connection.scalar(select(func.count()).select_from(ENTRIES)) or 0
            kept_from = before
            if count > rows:
                newest = select(ENTRIES.c.at).order_by(ENTRIES.c.at.desc()).offset(rows - 1).limit(1)
                kept_from = max(before, connection.scalar(newest) or 0)
            gone = _delete_entries(connection, kept_from)
            for column in _BY_TIME:
                _delete_before(connection, column, before // 1_000_000 - SLOT)
        while self._full():
            with self._begin() as connection:
                gone += _delete_entries(connection, _of_oldest(connection, ENTRIES.c.at))
                for column in _BY_TIME:
                    _delete_before(connection, column, _of_oldest(connection, column))
        return gone

    def size(self) -> int:
        """The bytes in use of memory or of SQLite's file; 0 for PostgreSQL."""
        if not self.bounded:
            return 0
        with self._begin() as connection:
            pages, free, page_size = (
                int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
                for name in ("page_count", "freelist_count", "page_size")
            )
            return (pages - free) * page_size

    @property
    def bounded(self) -> bool:
        """Whether the size is limited: PostgreSQL has limits of its own."""
        return self.url.get_backend_name() == "sqlite"

    def _full(self) -> bool:
        if self.size() <= FULL * self._bytes:
            return False
        with self._begin() as connection:
            columns = (ENTRIES.c.at, *_BY_TIME)
            return any(connection.scalar(select(column).limit(1)) is not None for column in columns)

    def _allow_long(self, connection: Connection) -> None:
        if not self.bounded:
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{PRUNE_SECONDS}s'")

    # ---- reading

    def find(
        self, entry_filter: EntryFilter, *, before: tuple[int, str] | None = None, limit: int = 100
    ) -> list[Entry]:
        """The newest first; `before` is the place (at, id) of the last one on the page before."""
        statement = select(ENTRIES).where(*entry_filter.conditions())
        if before is not None:
            at, id_ = before
            older = and_(ENTRIES.c.at == at, ENTRIES.c.id < id_)
            statement = statement.where(or_(ENTRIES.c.at < at, older))
        statement = statement.order_by(ENTRIES.c.at.desc(), ENTRIES.c.id.desc()).limit(limit)
        with self._begin() as connection:
            return [Entry(**row) for row in connection.execute(statement).mappings()]

    def count(self, entry_filter: EntryFilter, *, by: str) -> list[tuple[str, int]]:
        """Entries by the values of a column, the most frequent first."""
        column = ENTRIES.c[by]
        number = func.count().label("number")
        statement = (
            select(column, number)
            .where(*entry_filter.conditions())
            .group_by(column)
            .order_by(number.desc(), column)
        )
        with self._begin() as connection:
            return [(str(value), int(n)) for value, n in connection.execute(statement)]

    def namespaces(self) -> list[str]:
        """The namespaces of all entries."""
        with self._begin() as connection:
            return [str(name) for name in connection.scalars(select(ENTRIES.c.namespace).distinct())]

    def refusals(self, *, since: int, width: int = SLOT) -> list[tuple[int, str, int]]:
        """(slot, pool, refusals for lack of capacity) since a time in seconds; `width` seconds a slot."""
        slot = (SHORTAGES.c.slot - SHORTAGES.c.slot % width).label("start")
        statement = (
            select(slot, SHORTAGES.c.pool, func.sum(SHORTAGES.c.count))
            .where(SHORTAGES.c.slot >= since)
            .group_by(slot, SHORTAGES.c.pool)
            .order_by(slot, SHORTAGES.c.pool)
        )
        with self._begin() as connection:
            return [(int(s), str(p), int(n)) for s, p, n in connection.execute(statement)]

    def outcomes(self, *, since: int) -> list[PoolOutcomes]:
        """Launches, and refusals for lack of capacity, of each pool and slot since a time in seconds."""
        none = literal(0)
        parts = (
            (LAUNCHES, LAUNCHES.c.count, none),
            (SHORTAGES, none, SHORTAGES.c.count),
        )
        both = union_all(
            *(
                select(
                    table.c.pool, table.c.slot, launched.label("launched"), refused.label("refused")
                ).where(table.c.slot >= since)
                for table, launched, refused in parts
            )
        ).subquery()
        statement = select(
            both.c.pool, both.c.slot, func.sum(both.c.launched), func.sum(both.c.refused)
        ).group_by(both.c.slot, both.c.pool)
        with self._begin() as connection:
            return [
                PoolOutcomes(str(p), int(s), int(n), int(m)) for p, s, n, m in connection.execute(statement)
            ]

    def uses(self, reservations: Iterable[str], *, since: int) -> dict[str, list[tuple[int, int, int]]]:
        """(slot, total, used) of each reservation, oldest first."""
        by_reservation: dict[str, list[tuple[int, int, int]]] = {}
        statement = (
            select(USES)
            .where(USES.c.reservation.in_([*reservations]), USES.c.slot >= since)
            .order_by(USES.c.slot)
        )
        with self._begin() as connection:
            for row in connection.execute(statement):
                by_reservation.setdefault(row.reservation, []).append((row.slot, row.total, row.used))
        return by_reservation

    def levels(self, *, since: int) -> list[UseLevel]:
        """The counts since a time in seconds, oldest first."""
        statement = select(LEVELS).where(LEVELS.c.at >= since).order_by(LEVELS.c.at)
        with self._begin() as connection:
            return [UseLevel(*row) for row in connection.execute(statement)]

    # ---- how

    @property
    def _insert(self) -> Any:
        if self.bounded:
            return sqlite.insert
        from sqlalchemy.dialects import postgresql  # a tenth of a start, which few need

        return postgresql.insert

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        with self._lock(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """In memory there is one connection, which all threads share."""
        if self._alone is None:
            yield
            return
        with self._alone:
            yield


def _delete_before(connection: Connection, column: Column[Any], before: int) -> int:
    """Deletes the rows of the column's table with smaller values; the number."""
    return connection.execute(delete(column.table).where(column < before)).rowcount


def _delete_entries(connection: Connection, before: int) -> int:
    for links in (RESERVATIONS, CLAIMS):
        _delete_before(connection, links.c.at, before)
    return _delete_before(connection, ENTRIES.c.at, before)


def _of_oldest(connection: Connection, column: Column[Any]) -> int:
    """The value below which the oldest part of the column's table is, one row at least; 0 without rows."""
    count = connection.scalar(select(func.count()).select_from(column.table)) or 0
    part = select(column).order_by(column).offset(min(count - 1, count // PART)).limit(1)
    return int(connection.scalars(part).one()) + 1 if count else 0


def database_url(location: str) -> URL:
    """The URL of a database in memory, of a file, or of PostgreSQL. Raises ValueError for any other."""
    if hint := database(location):
        raise ValueError(f"not a database of a history: write {hint}")
    if location == MEMORY:
        return make_url("sqlite+pysqlite://")
    if "://" not in location:
        try:
            return URL.create("sqlite+pysqlite", database=str(Path(location).expanduser()))
        except RuntimeError as error:
            raise ValueError("the user of the database's path has no home folder") from error
    try:
        url = make_url(location)
    except (ArgumentError, ValueError) as error:
        raise ValueError("not a URL of a database") from error
    if "@" in (url.host or ""):
        raise ValueError("not a URL of a database: write @ in its user or password as %40")
    return url.set(drivername="postgresql+psycopg")


def connect_read_only(path: Path) -> sqlite3.Connection:
    """A reader that changes no row.

    A writer has its log beside the file. Without a log the file is read as immutable: a read-only reader
    would create a log, and could not delete it. Beside a log that a crash left, SQLite creates its index.
    """
    path = path.resolve()
    journal = path.with_name(f"{path.name}-wal")
    immutable = "" if journal.exists() else "&immutable=1"
    uri = f"{path.as_uri()}?mode=ro{immutable}"
    return sqlite3.connect(uri, uri=True, timeout=2, check_same_thread=False)


def tune(connection: Any, _record: object, *, limit: int) -> None:
    """Readers of a file never wait for the writer. A crash of the machine loses the last few transactions.

    The database cannot grow beyond the limit: a write fails before that, and is tried again after a prune.
    """
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute(f"PRAGMA journal_size_limit={JOURNAL}")
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    connection.execute(f"PRAGMA max_page_count={max(1, limit // page)}")
