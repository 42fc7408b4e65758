"""A few verbs of an API server in memory, as a Transport, with faults on order.

It has the parts that the runtime's tests need: revisions, conflicts, pages, watches from a revision,
bookmarks, 410. Everything else of an API server is left to the embedded one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from broker.apis.meta import Kind, Object
from broker.kube.client import Client, Reply, Request
from broker.kube.clock import Clock, SystemClock
from broker.kube.errors import ApiError, Expired, Unavailable
from broker.kube.informer import Informer
from local.kube.patches import merge

Json = dict[str, Any]


class Thing(Object):
    KIND = Kind(group="test.io", version="v1", kind="Thing", plural="things", namespaced=True)

    size: int = 0
    colors: tuple[str, ...] = ()


def thing(name: str, *, size: Any = 0, namespace: str = "default", **more: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": namespace, **more.pop("metadata", {})},
        "size": size,
        **more,
    }


def sizes(things: Informer[Thing]) -> dict[str, int]:
    """The size of each thing in the informer's cache, by name."""
    return {item.name: item.size for item in things.cache.list()}


class Server:
    """The Transport, and the state behind it."""

    def __init__(self, *, page: int | None = None, clock: Clock | None = None) -> None:
        """Open watches wait by `clock`, which so knows that their threads wait."""
        self.clock = clock if clock is not None else SystemClock()
        self.revision = 100
        self.objects: dict[str, Json] = {}  # path → object
        self.log: list[tuple[int, str, str, Json]] = []  # revision, type, path, object
        self.compacted = 0  # a watch from before this is too old
        self.page = page  # a smaller page than the client requests
        self.requests: list[Request] = []
        self.faults: deque[Callable[[Request], Reply | None]] = deque()  # each meets one request
        self.broken_streams: deque[ApiError] = deque()  # each meets one watch
        self.patient = True  # a watch waits for more; else it ends after the last event
        self.streams: list[Stream] = []
        self.changed = threading.Condition()
        self.client = Client(self)

    # Orders of tests.

    def fail(self, error: ApiError | int, *, times: int = 1, after: bool = False) -> None:
        """The next requests fail; `after` the work was done, so that only the reply is lost."""

        def fault(request: Request) -> Reply:
            if after:
                self.answer(request)
            if isinstance(error, ApiError):
                raise error
            return status(error, "Ordered")

        self.faults.extend([fault] * times)

    def drop(self, error: ApiError | None = None) -> None:
        """Every open watch ends, or breaks."""
        for stream in [*self.streams]:
            stream.end(error)

    def compact(self) -> None:
        self.compacted = self.revision

    def send_event(self, event: str, obj: Json) -> None:
        """One event on every open watch, whatever the state."""
        for stream in [*self.streams]:
            stream.send(orjson.dumps({"type": event, "object": obj}) + b"\n")

    def put(self, obj: Json, kind: Kind = Thing.KIND) -> Json:
        """Creates or replaces, as another client would."""
        path = path_of(kind, obj)
        return self._store("MODIFIED" if path in self.objects else "ADDED", path, obj)

    def remove(self, name: str, namespace: str = "default", kind: Kind = Thing.KIND) -> Json:
        path = kind.path(namespace=namespace, name=name)
        return self._store("DELETED", path, self.objects[path])

    def count(self, *, watch: bool) -> int:
        return sum((request.query.get("watch") == "true") is watch for request in self.requests)

    # Transport.

    def request(self, request: Request, *, timeout: float) -> Reply:
        with self.changed:
            self.requests.append(request)
            if self.faults and (reply := self.faults.popleft()(request)) is not None:
                return reply
        return self.answer(request)

    def stream(self, request: Request, *, timeout: float) -> Stream:
        with self.changed:
            self.requests.append(request)
            if self.broken_streams:
                raise self.broken_streams.popleft()
            since = int(request.query["resourceVersion"])
            stream = Stream(self)
            if since < self.compacted:
                gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                stream.send(orjson.dumps({"type": "ERROR", "object": gone}) + b"\n")
            for revision, event, path, obj in self.log:
                if revision > since and path.rpartition("/")[0].endswith(request.path.rpartition("/")[2]):
                    stream.send(orjson.dumps({"type": event, "object": obj}) + b"\n")
            if not self.patient or since < self.compacted:
                stream.end()
            self.streams.append(stream)
            self.changed.notify_all()
            return stream

    def answer(self, request: Request) -> Reply:
        with self.changed:
            live = self.objects.get(request.path)
            body = orjson.loads(request.body) if request.body else {}
            if request.method == "POST":
                path = f"{request.path}/{body['metadata']['name']}"
                if path in self.objects:
                    return status(409, "AlreadyExists")
                return ok(self._store("ADDED", path, body))
            if request.method == "GET" and request.path.endswith("s"):
                return self._list(request)
            if live is None:
                return status(404, "NotFound")
            if request.method == "PATCH":
                expected_version = body.get("metadata", {}).get(
                    "resourceVersion", live["metadata"]["resourceVersion"]
                )
                if expected_version != live["metadata"]["resourceVersion"]:
                    return status(409, "Conflict")
                return ok(self._store("MODIFIED", request.path, merge(live, body)))
            if request.method == "DELETE":
                return ok(self._store("DELETED", request.path, live))
            return ok(live)

    def _list(self, request: Request) -> Reply:
        place = request.path.rpartition("/")[2]
        matching = [obj for path, obj in sorted(self.objects.items()) if path.split("/")[-2] == place]
        token = request.query.get("continue", "")
        if token and int(token.split(":")[1]) < self.compacted:
            return status(410, "Expired")
        start = int(token.split(":")[0]) if token else 0
        limit = self.page if self.page and "limit" in request.query else len(matching)
        meta = {"resourceVersion": str(self.revision)}
        if start + limit < len(matching):
            meta["continue"] = f"{start + limit}:{self.revision}"
        return ok({"metadata": meta, "items": matching[start : start + limit]})

    def _store(self, event: str, path: str, obj: Json) -> Json:
        with self.changed:
            self.revision += 1
            meta = {"uid": f"uid-{path}", **obj["metadata"], "resourceVersion": str(self.revision)}
            stored = {**obj, "metadata": meta}
            if event == "DELETED":
                del self.objects[path]
            else:
                self.objects[path] = stored
            self.log.append((self.revision, event, path, stored))
            for stream in self.streams:
                stream.send(orjson.dumps({"type": event, "object": stored}) + b"\n")
            self.changed.notify_all()
            return stored


class Stream:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._lines: deque[bytes] = deque()
        self._ended = False
        self._error: ApiError | None = None

    def send(self, line: bytes) -> None:
        with self._server.changed:
            self._lines.append(line)
            self._server.changed.notify_all()

    def end(self, error: ApiError | None = None) -> None:
        with self._server.changed:
            self._ended, self._error = True, error
            if self in self._server.streams:
                self._server.streams.remove(self)
            self._server.changed.notify_all()

    def close(self) -> None:
        self.end()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with self._server.changed:
                while not (self._lines or self._ended):
                    self._server.clock.wait(self._server.changed)
                if not self._lines:
                    break
                line = self._lines.popleft()
            yield line
        if self._error is not None:
            raise self._error


def path_of(kind: Kind, obj: Json) -> str:
    return kind.path(namespace=obj["metadata"].get("namespace"), name=obj["metadata"]["name"])


def ok(body: Json) -> Reply:
    return Reply(status=200, body=orjson.dumps(body))


def status(code: int, reason: str) -> Reply:
    return Reply(status=code, body=orjson.dumps({"kind": "Status", "code": code, "reason": reason}))


NO_ANSWER = Unavailable(0, "NewConnectionError", "no answer from the API server: refused")
GONE = Expired(410, "Expired", "too old")
