"""One write for each of many objects, each isolated from errors of the others.

Invariant: an object that cannot be written does not stop the others, and is retried: the first error is
raised after all objects had their turn. Only an unavailable API server ends the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from broker.kube.errors import ApiError, NotFound, Unavailable

T = TypeVar("T")


def for_each(items: Iterable[T], write: Callable[[T], None]) -> None:
    """Raises the first ApiError; an object that is gone needs no write."""
    first: ApiError | None = None
    for item in items:
        try:
            write(item)
        except NotFound:
            continue
        except Unavailable:
            raise
        except ApiError as error:
            first = first or error
    try:
        if first is not None:
            raise first
    finally:
        del first  # its traceback has this frame: without this, only the collector would free both
