"""One remembered value a key, until it is too old.

Invariant: a value is never returned later than `ttl` seconds after it was loaded. A failed load is not
remembered, and simultaneous callers cause one load.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    def __init__(self, *, ttl: float, monotonic: Callable[[], float]) -> None:
        self._ttl = ttl
        self._monotonic = monotonic
        self._values: dict[K, tuple[float, V]] = {}
        self._locks: dict[K, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: K, load: Callable[[], V]) -> V:
        """The remembered value, else the result of `load`."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            entry = self._values.get(key)
            if entry is not None and self._monotonic() - entry[0] < self._ttl:
                return entry[1]
            value = load()
            self._values[key] = (self._monotonic(), value)
            return value

    def drop(self, key: K) -> None:
        """Forgets one value."""
        with self._lock:
            self._values.pop(key, None)

    def renew(self, key: K, load: Callable[[], V]) -> V:
        """The result of `load`; if it raises, the remembered value stays."""
        value = load()
        self._values[key] = (self._monotonic(), value)
        return value

    def clear(self) -> None:
        """Forgets every value."""
        with self._lock:
            self._values.clear()
