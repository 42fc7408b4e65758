"""Writes for many claims, which wait for the API server together.

Invariant: what was begun is seen to its end by whoever calls what `begin` returned; a few writes are made in
the caller's thread, one after another, since threads are not worth it for them.
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


class Writers:
    """A bounded number of threads; for any thread that is none of them."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix=name)

    def begin(self, does: Callable[[T], R], items: Sequence[T]) -> Callable[[], Sequence[R]]:
        """Starts on all items; what it returns waits for them and gives what came of each, once."""
        if len(items) < MANY:
            done = [*map(does, items)]
            return lambda: done
        begun = deque(self._pool.submit(does, item) for item in items)
        return lambda: _results(begun)

    def each(self, does: Callable[[T], R], items: Sequence[T]) -> Sequence[R]:
        """What came of each item."""
        return self.begin(does, items)()

    def close(self) -> None:
        self._pool.shutdown(wait=True)


def _results(begun: deque[Future[R]]) -> Sequence[R]:
    """No name here is left for a future: its exception's traceback has this frame."""
    found: list[R] = []
    while begun:
        found.append(begun.popleft().result())
    return found
