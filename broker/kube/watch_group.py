"""The informers of one collection in this process: the first lists and watches for all of them.

The others wait, and get each list and each event decoded. When the first one stops, the next one goes on
from the same version, without a list. So the broker and the scheduler read each node and pod once, though
each has a cache of its own: their terms, their indexes and the objects that they leave out differ.

Invariant: an informer joins between two deliveries, with all that the first one has, and takes each delivery
after that. client-go shares one informer and its handlers instead
(https://pkg.go.dev/k8s.io/client-go/tools/cache#SharedInformer).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from broker.kube.client import Transport

if TYPE_CHECKING:
    from broker.kube.informer import Informer

Collection = tuple[str, str]  # resource and field selector


class WatchGroup:
    """An informer joins when it starts to follow, and leaves when it stops."""

    def __init__(self) -> None:
        self._delivers = threading.RLock()  # held while handlers run, so that all see changes in order
        self._members: list[Informer[Any]] = []

    def join(self, informer: Informer[Any]) -> None:
        """Sets `informer.turn` if it is the first, else begins with the first one's state. A stopped informer
        does not join."""
        with self._delivers:
            if informer.stopped:
                return
            if self._members:
                informer.begin_as(self._members[0])
            else:
                informer.turn.set()
            self._members.append(informer)

    def leave(self, informer: Informer[Any]) -> None:
        with self._delivers:
            if informer in self._members:
                self._members.remove(informer)
            if self._members:
                self._members[0].turn.set()

    @property
    def members(self) -> Sequence[Informer[Any]]:
        return tuple(self._members)

    def takers(self, source: Informer[Any]) -> Sequence[Informer[Any]]:
        """Those that take what `source` reads: all if it is the first, else itself alone."""
        members = self.members
        return members if members[:1] == (source,) else (source,)

    def deliver(self, source: Informer[Any], take: Callable[..., None], *values: Any) -> None:
        """Calls `take(informer, *values)` for each of `takers`, of which none joins or leaves meanwhile."""
        with self._delivers:
            for informer in self.takers(source):
                take(informer, *values)


Groups = WeakValueDictionary[Collection, WatchGroup]
_groups: Final[WeakKeyDictionary[Transport, Groups]] = WeakKeyDictionary()
_lock = threading.Lock()


def group_of(transport: Transport, collection: Collection) -> WatchGroup:
    """The group of all informers that read this collection from this API server."""
    with _lock:
        groups = _groups.setdefault(transport, WeakValueDictionary())
        return groups.setdefault(collection, WatchGroup())


def followers(resource: str) -> Sequence[Informer[Any]]:
    """The informers of a resource that follow now, whatever their selector is."""
    with _lock:
        groups = [
            group for of in _groups.values() for collection, group in of.items() if collection[0] == resource
        ]
    return [informer for group in groups for informer in group.members]
