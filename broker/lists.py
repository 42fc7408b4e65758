"""Lists of values by key."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def lists_by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in order, and the keys in the order in which they first come."""
    result: dict[K, list[V]] = {}
    for key, value in pairs:
        result.setdefault(key, []).append(value)
    return result
