"""The history that a broker writes, as a command opens it: for reading only.

Invariants: a command creates and changes nothing in a database (beside a log that a crash left, SQLite may
create the log's index, a file that ends with -shm). A database that cannot be used or has no
history is an error in one line, without the password of its URL, and never an all-clear.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from broker.history.store import HistoryStore, LevelsMissing, TableMissing
from broker.options import called
from broker.text import shortened

_OR_CLUSTER: Final = "or write memory to read the cluster instead"
_OTHER_DATABASE: Final = f"name the database that the broker writes, {_OR_CLUSTER}"
_WHERE: Final = f"run this where the file is, such as in the broker's pod, {_OR_CLUSTER}"
_SERVER: Final = f"check that it is up and that its user may read it, {_OR_CLUSTER}"
_OTHER: Final = f"write the path of a file or postgresql://USER:PASSWORD@HOST/DATABASE, {_OR_CLUSTER}"
_OLDER: Final = "upgrade the broker, and try again after two days of record"
_HIDDEN: Final = "***"


class HistoryUnreadable(ValueError):
    """A sentence that names the option, the reason and the remedy."""


@contextmanager
def opened(location: str) -> Iterator[HistoryStore]:
    """The history at a path or URL. Raises HistoryUnreadable, also for the statements in the block."""
    try:
        history = HistoryStore(location, read_only=True)
    except ValueError as error:
        raise HistoryUnreadable(f"{called('history')}: {error}: {_OTHER}") from None
    try:
        if history.bounded and not Path(history.url.database or "").exists():
            raise _unreadable(history, "there is no such file", _WHERE)
        history.open()
        yield history
    except LevelsMissing as error:
        raise _unreadable(history, str(error), _OLDER) from error
    except TableMissing as error:
        raise _unreadable(history, str(error), _OTHER_DATABASE) from error
    except (SQLAlchemyError, OSError) as error:
        way_out = _OTHER_DATABASE if history.bounded else _SERVER
        raise _unreadable(history, _reason(error, history), way_out) from error
    finally:
        history.close()


def _unreadable(history: HistoryStore, reason: str, way_out: str) -> HistoryUnreadable:
    return HistoryUnreadable(f"{called('history')} is {_shown(history)}: {reason}: {way_out}")


def _shown(history: HistoryStore) -> str:
    """The path, or the URL without its password and its parameters, one of which may be a password."""
    if history.bounded:
        return shortened(history.url.database, 120)
    return history.url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)


def _reason(error: Exception, history: HistoryStore) -> str:
    """The first line of the driver's message, without the password."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    reason = next(iter(str(cause or error).strip().splitlines()), type(error).__name__)
    passwords = (history.url.password, history.url.query.get("password"))
    for password in passwords:
        if isinstance(password, str) and password:
            reason = reason.replace(password, _HIDDEN)
    return reason.rstrip(".")
