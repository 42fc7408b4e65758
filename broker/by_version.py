"""Values that are computed once for each version of what they come from."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable
from typing import Generic, ParamSpec, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")


class ByVersion(Generic[K, V]):
    """A value by key, computed anew once the key has another version. Versions are compared by equality."""

    def __init__(self) -> None:
        self._known: dict[K, tuple[object, V]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, key: K, version: object, compute: Callable[P, V], /, *args: P.args, **kwargs: P.kwargs) -> V:
        known = self._known.get(key)
        if known is None or known[0] != version:
            known = self._known[key] = version, compute(*args, **kwargs)
        return known[1]

    def keep(self, keys: Container[K]) -> None:
        """Drops the values of all other keys."""
        self._known = {key: known for key, known in self._known.items() if key in keys}
