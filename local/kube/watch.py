"""Watch streams: each reader keeps a position in the collection's log and takes new events in batches.

Invariant: a reader sees every event after its starting revision once and in order, or an ERROR event with
a 410 Status and the end. An object that stops matching the selector is shown as DELETED.
Rule: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import orjson

from local.kube.errors import expired
from local.kube.selectors import Predicate
from local.kube.store import Collection, Compacted, Item, Key, Store, StoreEvent, encode
from local.kube.wire import Obj

BATCH = 256
BOOKMARK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class WatchFilter:
    """One watcher's selection and encoding of objects."""

    namespace: str
    match: Predicate | None
    encode: Callable[[str, Item], bytes]
    bookmark: Callable[[int, bool], bytes]
    bare: bool

    def selects(self, key: Key, obj: Obj) -> bool:
        if self.namespace and key[0] != self.namespace:
            return False
        return self.match is None or self.match(obj)

    def line(self, event: StoreEvent) -> bytes | None:
        """The line for an event, as seen through the selector; None when it does not concern the watcher."""
        if self.namespace and event.key[0] != self.namespace:
            return None
        if self.match is None:
            return self.encode(event.type, event.item)
        after = event.type != "DELETED" and self.match(event.item.obj)
        before = event.before is not None and self.match(event.before.obj)
        if after:
            return self.encode("MODIFIED" if before else "ADDED", event.item)
        if not before:
            return None
        if event.type == "DELETED":
            return self.encode("DELETED", event.item)
        # The object lives on: the watcher sees the last state that matched, at the new revision.
        assert event.before is not None
        meta = {**event.before.obj["metadata"], "resourceVersion": str(event.revision)}
        obj = {**event.before.obj, "metadata": meta}
        return self.encode("DELETED", Item(obj, encode(obj, bare=self.bare), event.revision))


class WatchStream:
    """One watcher. Iterate it (blocking), or `poll` it after `on_ready` called back (an event loop)."""

    def __init__(
        self,
        store: Store,
        collection: Collection,
        view: WatchFilter,
        *,
        after: int,
        initial: list[bytes],
        timeout: float,
        bookmarks: bool,
        closed: Callable[[WatchStream], None],
    ) -> None:
        """Called with the store locked, so that no event falls between `initial` and the stream."""
        self._store, self._collection, self._view = store, collection, view
        self._position, self._seen = collection.position_after(after), after
        self._served = collection.served
        self._initial, self._bookmarks = initial, bookmarks
        self._deadline = time.monotonic() + timeout
        self._next_bookmark = time.monotonic() + BOOKMARK_SECONDS
        self._ready = threading.Event()
        self._ended = False
        self._closed = closed
        self._callback: Callable[[], None] = self._ready.set
        collection.listeners[id(self)] = self._wake

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while True:
            chunk = self.poll()
            if chunk is None:
                raise StopIteration
            if chunk:
                return chunk
            self._ready.wait(self.idle())
            self._ready.clear()

    def on_ready(self, callback: Callable[[], None]) -> None:
        """Calls back, from the writer's thread, when there may be something to poll."""
        self._callback = callback

    def idle(self) -> float:
        """Seconds until the stream has something to do by itself: a bookmark or its end."""
        due = min(self._deadline, self._next_bookmark) if self._bookmarks else self._deadline
        return max(0.0, due - time.monotonic())

    def poll(self) -> bytes | None:
        """New events as lines, empty if there are none, None when the stream has ended."""
        if self._ended:
            return None
        if self._initial:
            chunk, self._initial = b"".join(self._initial), []
            return chunk
        try:
            with self._store.lock:
                events = self._collection.read(self._position, BATCH)
                revision, gone = self._store.revision, self._collection.served != self._served
        except Compacted as error:
            self.close()
            return error_line(expired(str(error)).status())
        self._position += len(events)
        out = [line for event in events if (line := self._view.line(event)) is not None]
        if events:
            self._seen = events[-1].revision
            if gone or len(events) == BATCH:
                self._callback()
        elif gone:
            self.close()
        elif (mark := self._timer(revision)) is not None:
            out.append(mark)
        return b"".join(out) if out or not self._over() else None

    def _over(self) -> bool:
        return self._ended

    def close(self) -> None:
        self._ended = True
        self._collection.listeners.pop(id(self), None)
        self._callback()
        self._ready.set()
        self._closed(self)

    def _timer(self, revision: int) -> bytes | None:
        now = time.monotonic()
        last = now >= self._deadline
        due = self._bookmarks and (last or now >= self._next_bookmark)
        self._next_bookmark = now + BOOKMARK_SECONDS if due else self._next_bookmark
        if last:
            self.close()
        return self._view.bookmark(revision, False) if due else None

    def _wake(self) -> None:
        self._callback()


def error_line(status: Obj) -> bytes:
    return b'{"type":"ERROR","object":' + orjson.dumps(status) + b"}\n"
