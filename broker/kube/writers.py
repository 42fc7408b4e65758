"""Writes for many claims in parallel, since each waits for the API server.

Invariant: the caller of the function that `begin` returned waits until every write has ended. A few writes
are made in the caller's thread, one after another, since threads do not pay for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

PARALLEL = 8
MANY = 16

T = TypeVar("T")
R = TypeVar("R")


class WriterPool:
    """A bounded number of threads; any other thread may use it."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix=name)

    def begin(self, does: Callable[[T], R], items: Sequence[T]) -> Callable[[], Sequence[R]]:
        """Starts on all items; returns a function that waits for them and returns their results, once."""
        if len(items) < MANY:
            results = [*map(does, items)]
            return lambda: results
        begun = deque(self._pool.submit(does, item) for item in items)
        return lambda: _results(begun)

    def each(self, does: Callable[[T], R], items: Sequence[T]) -> Sequence[R]:
        """The result of each item."""
        return self.begin(does, items)()

    def close(self) -> None:
        self._pool.shutdown(wait=True)


def _results(begun: deque[Future[R]]) -> Sequence[R]:
    """Waits for the futures.

    No local name holds a future here: the traceback of its exception has this frame.
    """
    results: list[R] = []
    while begun:
        results.append(begun.popleft().result())
    return results
