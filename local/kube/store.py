"""A revisioned store of objects, in place of etcd and the watch cache.

Invariants: one revision counter over everything; an object's resourceVersion is the revision that wrote it;
events of a collection are in revision order and none is missing above `compacted`. Values handed in are
never changed afterwards: a change is a new value. The log of events is capped by bytes, oldest dropped first.
Rule: https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

import orjson

from local.kube.wire import Obj

Key = tuple[str, str]  # (namespace, name)
LOG_BYTES = 64 << 20
_revision = attrgetter("revision")


@dataclass(frozen=True, slots=True)
class Item:
    """One version of one object, with the bytes that go on the wire."""

    obj: Obj
    wire: bytes
    revision: int


_META = (
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
)


def encode(obj: Obj, *, bare: bool) -> bytes:
    """The bytes of an object, in the order in which Go writes them.

    Those of built-in kinds are bare: they leave out the kind, as lists do. Custom ones are sorted like maps.
    """
    if not bare:
        return orjson.dumps(obj, option=orjson.OPT_SORT_KEYS)
    given = obj["metadata"]
    meta = {name: given[name] for name in _META if name in given}
    rest = {key: value for key, value in obj.items() if key not in ("kind", "apiVersion", "metadata")}
    return orjson.dumps({"metadata": meta, **rest})


@dataclass(frozen=True, slots=True)
class StoreEvent:
    revision: int
    type: str
    key: Key
    item: Item
    before: Item | None


class Compacted(Exception):
    """Some events after the requested revision have been dropped."""

    def __init__(self, requested: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {requested} ({oldest})")
        self.requested, self.oldest = requested, oldest


@dataclass(slots=True)
class Collection:
    """All objects of one resource, in key order, with the events that led here."""

    name: str
    items: dict[Key, Item] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=list)
    log: list[StoreEvent] = field(default_factory=list)
    dropped: int = 0  # events of `log` already let go, still in the list until it is trimmed
    base: int = 0  # position of log[0] since the beginning
    compacted: int = 0
    listeners: dict[int, Callable[[], None]] = field(default_factory=dict)
    served: int = 0  # how often its served form changed: a change ends the watches on it

    @property
    def end(self) -> int:
        return self.base + len(self.log)

    def position_after(self, revision: int) -> int:
        if revision < self.compacted:
            raise Compacted(revision, self.compacted)
        return self.base + bisect_right(self.log, revision, lo=self.dropped, key=_revision)

    def read(self, position: int, limit: int) -> list[StoreEvent]:
        """Events from a position on; a position that was dropped is gone for good."""
        if position < self.base + self.dropped:
            raise Compacted(position, self.compacted)
        start = position - self.base
        return self.log[start : start + limit]

    def end_watches(self) -> None:
        """Ends every open watch once it has given the events until now."""
        self.served += 1
        self.wake()

    def wake(self) -> None:
        for listener in tuple(self.listeners.values()):
            listener()


class Store:
    """Not thread-safe by itself: callers hold `lock`."""

    def __init__(self, *, log_bytes: int = LOG_BYTES) -> None:
        self.lock = threading.RLock()
        self.revision = 1
        self._collections: dict[str, Collection] = {}
        self._order: deque[tuple[Collection, int]] = deque()
        self._bytes, self._limit = 0, log_bytes
        self._changed: list[Callable[[str, StoreEvent], None]] = []

    def begin_with(self, other: Collection, revision: int) -> None:
        """Fills an empty store with these objects at their revisions, without the events that led to them."""
        self.revision = revision
        self._collections[other.name] = Collection(
            other.name, dict(other.items), list(other.keys), compacted=revision
        )

    def collection(self, resource: str) -> Collection:
        collection = self._collections.get(resource)
        if collection is None:
            collection = self._collections[resource] = Collection(resource)
        return collection

    def put(self, resource: str, key: Key, obj: Obj, *, bare: bool) -> Item:
        """Writes `obj` (which the store owns from now on) under a new revision; see `encode` for `bare`."""
        collection = self.collection(resource)
        before = collection.items.get(key)
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        item = Item(obj, encode(obj, bare=bare), self.revision)
        if before is None:
            insort(collection.keys, key)
        collection.items[key] = item
        self._emit(
            collection, StoreEvent(self.revision, "MODIFIED" if before else "ADDED", key, item, before)
        )
        return item

    def delete(self, resource: str, key: Key, *, bare: bool) -> Item:
        """Removes an object; the last event shows it as it was, at the revision of its removal."""
        collection = self.collection(resource)
        before = collection.items.pop(key)
        del collection.keys[bisect_right(collection.keys, key) - 1]
        self.revision += 1
        obj = {**before.obj, "metadata": {**before.obj["metadata"], "resourceVersion": str(self.revision)}}
        item = Item(obj, encode(obj, bare=bare), self.revision)
        self._emit(collection, StoreEvent(self.revision, "DELETED", key, item, before))
        return item

    def on_change(self, callback: Callable[[str, StoreEvent], None]) -> None:
        """Calls back, in the writer's thread and with the store locked, after every write of anything."""
        self._changed.append(callback)

    def everything(self) -> Iterator[tuple[str, Key, Item]]:
        for name, collection in self._collections.items():
            for key, item in collection.items.items():
                yield name, key, item

    def snapshot(self, resource: str, revision: int) -> dict[Key, Item]:
        """The collection as it was at `revision`, by undoing the later events of the log."""
        collection = self.collection(resource)
        start = collection.position_after(revision) - collection.base
        items = dict(collection.items)
        for event in reversed(collection.log[start:]):
            if event.before is None:
                items.pop(event.key, None)
            else:
                items[event.key] = event.before
        return items

    def compact(self) -> None:
        """Forgets every event, as etcd's compaction does: older watches and tokens expire."""
        while self._order:
            self._drop()
        for collection in self._collections.values():
            collection.compacted = self.revision

    def _emit(self, collection: Collection, event: StoreEvent) -> None:
        collection.log.append(event)
        self._order.append((collection, len(event.item.wire)))
        self._bytes += len(event.item.wire)
        while self._bytes > self._limit and len(self._order) > 1:
            self._drop()
        collection.wake()
        for changed in self._changed:
            changed(collection.name, event)

    def _drop(self) -> None:
        collection, size = self._order.popleft()
        self._bytes -= size
        collection.compacted = collection.log[collection.dropped].revision
        collection.dropped += 1
        # Trimming by halves keeps dropping cheap however long the log is.
        if collection.dropped > 64 and collection.dropped * 2 > len(collection.log):
            del collection.log[: collection.dropped]
            collection.base += collection.dropped
            collection.dropped = 0
