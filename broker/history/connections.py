"""Connections to the database of the history: SQLite in a file or in memory, or PostgreSQL.

Invariant: each transaction is committed whole or not at all, and a driver's error comes as a HistoryError.
Statements name their values `:name`, as SQLite does, and are the same for both databases.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from broker.option_rules import database

MEMORY: Final = "memory"
# Bytes of SQLite's write-ahead log that stay after a checkpoint.
JOURNAL: Final = 16 << 20
# Seconds after which PostgreSQL ends a statement.
STATEMENT_SECONDS: Final = 10
IDLE: Final = 2  # connections that stay open
_NAMED: Final = re.compile(r":(\w+)")
_HIDDEN: Final = "***"


class HistoryError(Exception):
    """The database cannot be used now."""


class RejectedRows(HistoryError):
    """The database will never take these rows."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The statements of one transaction."""

    connection: Any
    named: bool  # the driver reads `:name`

    def run(self, statement: str, **values: object) -> Any:
        """The cursor of the result."""
        return self.connection.execute(self._text(statement), values)

    def value(self, statement: str, **values: object) -> Any:
        """The first value of the first row; None without rows."""
        row = self.run(statement, **values).fetchone()
        return row[0] if row else None

    def write(self, statement: str, rows: Collection[Mapping[str, object]]) -> None:
        """The statement for each row."""
        if rows:
            self.connection.cursor().executemany(self._text(statement), rows)

    def _text(self, statement: str) -> str:
        return statement if self.named else _NAMED.sub(r"%(\1)s", statement.replace("%", "%%"))


@dataclass(kw_only=True)
class Database:
    """A file (`path`), a server (`url`), or without both the memory of this process; opened when it is used.

    A database that is `read_only` is never created or changed. `limit`: the bytes that SQLite takes at most.
    """

    path: Path | None = None
    url: SplitResult | None = None
    limit: int
    read_only: bool
    _idle: deque[Any] = field(default_factory=deque)
    _alone: threading.RLock = field(default_factory=threading.RLock)

    @classmethod
    def at(cls, location: str, *, limit: int, read_only: bool) -> Database:
        """Raises ValueError for a location that is neither `memory` nor a path nor a URL of PostgreSQL."""
        if hint := database(location):
            raise ValueError(f"not a database of a history: write {hint}")
        opened = cls(limit=limit, read_only=read_only)
        if "://" in location:
            opened.url = _url(location)
        elif location != MEMORY:
            try:
                opened.path = Path(location).expanduser()
            except RuntimeError as error:
                raise ValueError("the user of the database's path has no home folder") from error
        return opened

    @property
    def shown(self) -> str:
        """The path, or the URL without its password and its parameters, one of which may be a password."""
        if self.url is None:
            return str(self.path)
        user, at, host = self.url.netloc.rpartition("@")
        name, colon, _ = user.partition(":")
        return f"postgresql://{name}{colon and ':' + _HIDDEN}{at}{host}{self.url.path}"

    def without_password(self, text: str) -> str:
        """The text with no password of the URL in it."""
        if self.url is not None:
            password = self.url.password or dict(parse_qsl(self.url.query)).get("password", "")
            for form in filter(None, (password, unquote(password))):
                text = text.replace(form, _HIDDEN)
        return text

    @contextmanager
    def begin(self) -> Iterator[Transaction]:
        """A transaction. Raises HistoryError. In memory there is one connection, which all threads share."""
        driver = self._driver
        shared = self.path is None and self.url is None
        with self._alone if shared else nullcontext():
            try:
                connection = self._taken(driver)
                try:
                    yield Transaction(connection, named=driver is sqlite3)
                    connection.commit()
                except BaseException:
                    if shared:
                        connection.rollback()
                        self._idle.append(connection)
                    else:
                        connection.close()
                    raise
            except (driver.DataError, driver.IntegrityError) as error:
                raise RejectedRows(str(error)) from error
            except driver.Error as error:
                raise HistoryError(str(error)) from error
            if len(self._idle) < IDLE:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @property
    def _driver(self) -> Any:
        if self.url is None:
            return sqlite3
        import psycopg  # a tenth of a start, which few need

        return psycopg

    def _taken(self, driver: Any) -> Any:
        """An open connection that works, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            try:
                connection.execute("SELECT 1")
            except driver.Error:
                connection.close()
            else:
                return connection
        return self._server(driver, self.url.geturl()) if self.url else self._sqlite()

    def _server(self, driver: Any, url: str) -> Any:
        limits = f"-c statement_timeout={STATEMENT_SECONDS}s -c lock_timeout={STATEMENT_SECONDS}s"
        limits += " -c default_transaction_read_only=on" * self.read_only
        return driver.connect(url, connect_timeout=5, options=limits)

    def _sqlite(self) -> sqlite3.Connection:
        if self.path is not None and self.read_only:
            return _read_only(self.path.resolve())
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path or ":memory:", timeout=2, check_same_thread=False)
        _tune(connection, self.limit)
        return connection


def _url(location: str) -> SplitResult:
    try:
        url = urlsplit(location)
        url.port  # noqa: B018 - raises ValueError if it is no number
    except ValueError as error:
        raise ValueError("not a URL of a database") from error
    if url.netloc.count("@") > 1:
        raise ValueError("not a URL of a database: write @ in its user or password as %40")
    return url


def _read_only(path: Path) -> sqlite3.Connection:
    """A reader that changes no row.

    A writer has its log beside the file. Without a log the file is read as immutable: a read-only reader
    would create a log, and could not delete it. Beside a log that a crash left, SQLite creates its index.
    """
    journal = path.with_name(f"{path.name}-wal")
    immutable = "" if journal.exists() else "&immutable=1"
    uri = f"{path.as_uri()}?mode=ro{immutable}"
    return sqlite3.connect(uri, uri=True, timeout=2, check_same_thread=False)


def _tune(connection: sqlite3.Connection, limit: int) -> None:
    """Readers of a file never wait for the writer. A crash of the machine loses the last few transactions.

    The database cannot grow beyond the limit: a write fails before that, and is tried again after a prune.
    """
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute(f"PRAGMA journal_size_limit={JOURNAL}")
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    connection.execute(f"PRAGMA max_page_count={max(1, limit // page)}")
