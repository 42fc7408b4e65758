"""A transport that counts its requests, and loses those that a test selects.

It stands before both API servers, so a fault is the same on each.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.kube.client import READS, Reply, Request, Stream, Transport
from broker.kube.errors import Unavailable

Chosen = Callable[[Request], bool]


def status_of(resource: str, name: str = "") -> Chosen:
    """Writes to the status of one object, or of any of a resource."""
    ending = f"/{resource}/{name}/status" if name else "/status"
    return lambda r: r.method not in READS and f"/{resource}/" in r.path and r.path.endswith(ending)


def writes_of(resource: str, name: str = "") -> Chosen:
    """Writes to an object itself, not to its subresources."""

    def chosen(request: Request) -> bool:
        _, separator, rest = request.path.partition(f"/{resource}/")
        return bool(separator) and request.method not in READS and "/" not in rest and name in ("", rest)

    return chosen


def deletions_of(resource: str) -> Chosen:
    return lambda r: r.method == "DELETE" and f"/{resource}/" in r.path


@dataclass(slots=True)
class SlowStream:
    """Gives nothing more while the event is not set."""

    inner: Stream
    flows: threading.Event

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.inner:
            self.flows.wait()
            yield piece

    def close(self) -> None:
        self.flows.set()
        self.inner.close()


@dataclass(slots=True)
class Rule:
    chosen: Chosen
    times: int
    does: Callable[[Request], None]


@dataclass(eq=False)
class Tap:
    """Stands between a client and its transport."""

    inner: Transport
    log: list[tuple[str, str]] = field(default_factory=list)
    lost: int = 0
    under_way: int = 0  # requests without a reply yet
    fake_replies: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _slow: list[tuple[str, threading.Event]] = field(default_factory=list)
    _rules: list[Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def request(self, request: Request, *, timeout: float) -> Reply:
        with self._lock:
            self.under_way += 1
        try:
            return self._request(request, timeout)
        finally:
            with self._lock:
                self.under_way -= 1

    def _request(self, request: Request, timeout: float) -> Reply:
        self._pass(request)
        if request.method == "GET" and (body := self.fake_replies.get(request.path)) is not None:
            return Reply(status=int(body.get("code", 200)), body=json.dumps(body).encode())
        return self.inner.request(request, timeout=timeout)

    def fake_reply(self, path: str, body: Mapping[str, Any]) -> None:
        """The broker reads this body at the path, whatever the API server has there; `code` makes it an
        error."""
        self.fake_replies[path] = body

    def stream(self, request: Request, *, timeout: float) -> Stream:
        self._pass(request)
        stream = self.inner.stream(request, timeout=timeout)
        flows = next((flows for path, flows in self._slow if path == request.path), None)
        return stream if flows is None else SlowStream(stream, flows)

    def slow(self, path: str) -> threading.Event:
        """Watches of the path that begin from now on give events only while the result is set."""
        flows = threading.Event()
        flows.set()
        self._slow.append((path, flows))
        return flows

    def lose(self, chosen: Chosen, *, times: int = -1) -> None:
        """The chosen requests do not arrive."""

        def lose(request: Request) -> None:
            self.lost += 1
            raise Unavailable(0, "Lost", f"{request.method} {request.path} was lost, as ordered by the test")

        self.on(chosen, lose, times=times)

    def on(self, chosen: Chosen, does: Callable[[Request], None], *, times: int = 1) -> None:
        """Calls `does` before the chosen requests are sent."""
        with self._lock:
            self._rules.append(Rule(chosen, times, does))

    def heal(self) -> None:
        self.fake_replies.clear()
        with self._lock:
            self._rules.clear()

    def writes(self) -> list[tuple[str, str]]:
        """Every write so far: method and path."""
        with self._lock:
            return [entry for entry in self.log if entry[0] not in READS]

    def forget(self) -> None:
        with self._lock:
            self.log.clear()

    def _pass(self, request: Request) -> None:
        with self._lock:
            self.log.append((request.method, request.path))
            rule = next((r for r in self._rules if r.times != 0 and r.chosen(request)), None)
            if rule is not None and rule.times > 0:
                rule.times -= 1
        if rule is not None:
            rule.does(request)
