"""One write for each of many objects, each isolated from errors of the others.

Invariant: an object that cannot be written does not stop the others, and is retried: the first error is
raised after all objects had their turn, a panic before any other. Only an unavailable API server ends the
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from broker.kube.errors import ApiError, NotFound, Unavailable
from broker.kube.panics import guarded

T = TypeVar("T")


def for_each(
    items: Iterable[T],
    write: Callable[[T], None],
    *,
    refused: Callable[[T, ApiError], None] = lambda _item, _error: None,
) -> None:
    """Raises the first panic or else the first ApiError; an object that is gone needs no write. `refused` is
    told of each ApiError that stops one object.
    """
    first: ApiError | None = None
    panic: Exception | None = None
    for item in items:
        try:
            write(item)
        except NotFound:
            continue
        except Unavailable:
            raise
        except ApiError as error:
            first = first or error
            refused(item, error)
        except Exception as error:  # the caller's loop logs and counts the first
            if panic is not None:
                with guarded("for each"):
                    raise
            panic = panic or error
    try:
        if (raised := panic or first) is not None:
            raise raised
    finally:
        # Their tracebacks have this frame: without this, only the collector would free both.
        del first, panic, raised
