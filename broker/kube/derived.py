"""Values that are read from caches, and read anew once an object in them has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from broker.kube.cache import Cache

V = TypeVar("V")


class Derived(Generic[V]):
    """A value as of the caches' last change. Any thread may call it; two may read it at once.

    `read` depends on nothing but the caches.
    """

    def __init__(self, read: Callable[[], V], *caches: Cache[Any]) -> None:
        self._read, self._caches = read, caches
        self._known: tuple[tuple[int, ...], V] | None = None

    def __call__(self) -> V:
        revisions = tuple(cache.revision for cache in self._caches)  # before the read: a change is read again
        if self._known is None or self._known[0] != revisions:
            self._known = revisions, self._read()
        return self._known[1]
