"""Connections to SQLite: a writer with a limited file, and a reader that changes no row."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

# Bytes of SQLite's write-ahead log that stay after a checkpoint.
JOURNAL: Final = 16 << 20


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
