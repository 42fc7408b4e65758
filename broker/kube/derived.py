"""Values that are read from caches, and read anew once an object in them has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from broker.kube.cache import Cache

V = TypeVar("V")


class Derived(Generic[V]):
    """A value as of the caches' last change. Any thread may call it; two may read it at once.

    `read` depends on nothing but the caches and `also`.
    """

    def __init__(
        self, read: Callable[[], V], *caches: Cache[Any], also: Callable[[], object] = lambda: None
    ) -> None:
        self._read, self._caches, self._also = read, caches, also
        self._known: tuple[tuple[object, ...], V] | None = None

    def __call__(self) -> V:
        # Before the read: what changes meanwhile is read again.
        revisions = (self._also(), *(cache.revision for cache in self._caches))
        known = self._known
        if known is None or known[0] != revisions:
            self._known = known = revisions, self._read()
        return known[1]
