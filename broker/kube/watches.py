"""Declares which changes put which keys into a loop's queue, as controller-runtime's builder does.

Invariant: a handler only enqueues keys; the loop itself decides, later, from its caches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, Self, TypeVar

from broker.kube.queue import K

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
Predicate = Callable[[V | None, V | None], bool]


class Source(Protocol[V_co]):
    """An informer, or its cache."""

    def on_change(self, handler: Callable[[V_co | None, V_co | None], None]) -> None: ...


class Signal:
    """A call that wakes loops, made before the loops are.

    The code that calls it does not know its loops: each loop names the signal with `on`.
    """

    def __init__(self) -> None:
        self._handlers: list[Callable[..., None]] = []

    def __call__(self, *keys: Any) -> None:
        for handler in self._handlers:
            handler(*keys)

    def subscribe(self, handler: Callable[..., None]) -> None:
        self._handlers.append(handler)


class Watches(ABC, Generic[K]):
    """The declarations of a loop: `watches` for objects, `on` for everything else."""

    @abstractmethod
    def enqueue(self, keys: Iterable[K]) -> None:
        """Adds the keys; the same key is not added twice while it waits."""

    @abstractmethod
    def default_keys(self, *args: Any) -> Iterable[K]:
        """The keys of a change for which the declaration has no map."""

    def watches(
        self,
        source: Source[V],
        map_: Callable[[V], Iterable[K]] | None = None,
        predicate: Predicate[V] | None = None,
    ) -> Self:
        """Enqueues the keys of the old and of the new object, for each change that the predicate accepts."""
        keys = map_ or self.default_keys

        def changed(old: V | None, new: V | None) -> None:
            if predicate is not None and not predicate(old, new):
                return
            if old is not None and new is not None:
                self.enqueue(dict.fromkeys([*keys(new), *keys(old)]))
            elif (version := new if old is None else old) is not None:
                self.enqueue(keys(version))

        source.on_change(changed)
        return self

    def on(
        self,
        subscribe: Callable[[Callable[..., None]], None],
        map_: Callable[..., Iterable[K]] | None = None,
    ) -> Self:
        """Enqueues keys for each call of the handler that `subscribe` registers."""
        keys = map_ or self.default_keys
        subscribe(lambda *args: self.enqueue(keys(*args)))
        return self
