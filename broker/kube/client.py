"""The verbs of the Kubernetes API, over one seam: a Transport.

Invariant: a verb returns the decoded response or raises one ApiError; it neither retries nor caches. Verbs,
paging, watches and server-side apply: https://kubernetes.io/docs/reference/using-api/api-concepts/ and
https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar
from urllib.parse import quote

import orjson

from broker.apis.meta import Json, Kind
from broker.kube import undeclared
from broker.kube.errors import (
    ApiError,
    EvictionRefused,
    Expired,
    Unavailable,
    from_reply,
    from_status,
)

R = TypeVar("R")
Items = list[Json]
Collected = list[R]
PatchType = Literal["merge", "json", "strategic"]
EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]

PAGE = 500
TIMEOUT = 30.0
DRY_RUN: Mapping[str, str] = {"dryRun": "All"}  # the API server checks everything and stores nothing
READS = frozenset({"GET", "HEAD"})
CONTENT_TYPES: Mapping[str, str] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Stream(Protocol):
    """An answer that comes in pieces. `close` may be called by another thread and ends the iteration."""

    def __iter__(self) -> Iterator[bytes]: ...
    def close(self) -> None: ...


class Transport(Protocol):
    """Gets a request to an API server. Both raise Unavailable where no answer came."""

    def request(self, request: Request, *, timeout: float) -> Reply: ...

    def stream(self, request: Request, *, timeout: float) -> Stream:
        """`timeout` is the longest silence; a refusal is raised as its ApiError."""


# An object has its version once, and seldom holds the versions of others; in text the quotes differ.
_VERSION = re.compile(rb'"resourceVersion":"([0-9]+)"')
_CHANGED = b'{"type":"MODIFIED",'


class Watch(Iterator[tuple[EventType, Json]]):
    """The events of one watch, until the server ends it or `close` is called; an ERROR event is raised.

    A change to a version that is `known` comes as the bookmark that is left of it, and is not decoded.
    """

    def __init__(self, stream: Stream, known: Callable[[int], bool] | None = None) -> None:
        self._stream = stream
        self._lines = lines(stream)
        self._known = known

    def __next__(self) -> tuple[EventType, Json]:
        line = next(self._lines)
        if self._known is not None and line.startswith(_CHANGED):
            versions = _VERSION.findall(line)
            if len(versions) == 1 and self._known(int(versions[0])):
                return "BOOKMARK", {"metadata": {"resourceVersion": versions[0].decode()}}
        try:
            event = orjson.loads(line)
            kind, body = event["type"], event["object"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            received = line[:200].decode(errors="replace")
            raise Unavailable(0, "NotAnEvent", f"a watch sent {received!r}, which is no event") from error
        if kind == "ERROR":
            raise from_status(body)
        return kind, body

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lines(chunks: Stream) -> Iterator[bytes]:
    """The non-empty lines of a stream; a last line without a line break was cut off and is dropped."""
    rest: list[bytes] = []
    for chunk in chunks:
        first, *more = chunk.split(b"\n")
        rest.append(first)
        if more:
            whole = [b"".join(rest), *more[:-1]]
            rest = [more[-1]]
            yield from (line for line in whole if line.strip())


class Client:
    """Typed by Kind, untyped in bodies. `guard` runs before each write and may refuse it by raising."""

    def __init__(
        self,
        transport: Transport,
        *,
        field_manager: str = "capacity-broker",
        timeout: float = TIMEOUT,
        guard: Callable[[], None] | None = None,
    ) -> None:
        self.transport = transport
        self.field_manager = field_manager
        self._timeout = timeout
        self._guard = guard
        self._dropped = undeclared.DroppedFields()

    def replace(
        self,
        *,
        timeout: float | None = None,
        guard: Callable[[], None] | None = None,
        field_manager: str = "",
    ) -> Client:
        """The same client with another timeout, guard, or name as a manager of fields."""
        return Client(
            self.transport,
            field_manager=field_manager or self.field_manager,
            timeout=self._timeout if timeout is None else timeout,
            guard=guard or self._guard,
        )

    def check(self) -> None:
        """Raises the error with which a write would be rejected unsent, for writes to systems that know no
        Lease."""
        if self._guard is not None:
            self._guard()

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Json:
        return self.raw("GET", _path(kind, namespace, name))

    def list(
        self, kind: Kind, *, namespace: str | None = None, label_selector: str = "", field_selector: str = ""
    ) -> tuple[Items, str]:
        """Every object and the resourceVersion to watch from, read in pages of one consistent state."""
        return self.read_all(
            kind,
            lambda item: item,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
        )

    def read_all(
        self,
        kind: Kind,
        read: Callable[[Json], R],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> tuple[Collected[R], str]:
        """Lists like `list`, with each object decoded by `read`: at most one page is held raw."""
        query = _selectors(label_selector, field_selector) | {"limit": str(PAGE)}
        path = _path(kind, namespace)
        # Built-in kinds come without them in a list.
        typed = {"apiVersion": kind.api_version, "kind": kind.kind}
        items: Collected[R] = []
        page = self.raw("GET", path, query)
        while True:
            items += [read(typed | item) for item in page.pop("items") or ()]
            token = page["metadata"].get("continue", "")
            if not token:
                break
            try:
                page = self.raw("GET", path, query | {"continue": token})
            except Expired:  # the state went out of history between two pages; at once, it cannot
                del query["limit"]
                items.clear()
                page = self.raw("GET", path, query)
        return items, page["metadata"].get("resourceVersion", "")

    def watch(
        self,
        kind: Kind,
        *,
        resource_version: str,
        field_selector: str = "",
        seconds: int = 290,
        known: Callable[[int], bool] | None = None,
    ) -> Watch:
        """Changes since `resource_version`, bookmarks included, for `seconds`.

        If no byte comes for 30 seconds more, it raises Unavailable: the connection is half open. `known`: see
        `Watch`.
        """
        query = _selectors("", field_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
        }
        request = Request(
            method="GET",
            path=_path(kind),
            query=query,
            headers={"Accept": "application/json"},
        )
        return Watch(self.transport.stream(request, timeout=seconds + 30.0), known)

    def create(self, kind: Kind, body: Mapping[str, Any]) -> Json:
        return self.raw("POST", _path(kind, _namespace(body)), self._manager(), _typed(kind, body))

    def apply(
        self, kind: Kind, body: Mapping[str, Any], *, subresource: str | None = None, force: bool = True
    ) -> Json:
        """Server-side apply: `body` holds every field that this manager is to own, and nothing else.

        Fields of a status that the definition does not declare are left out, as other writes drop them.
        """
        path = _path(kind, _namespace(body), _name(body), subresource)
        query = self._manager() | {"force": "true" if force else "false"}
        typed = _typed(kind, body)
        try:
            return self.raw("PATCH", path, query, typed, content_type=CONTENT_TYPES["apply"])
        except ApiError as error:
            unknown = undeclared.paths(error.message) if subresource == "status" else ()
            if not unknown:
                raise
        self._dropped.report(kind.resource, unknown)
        left = undeclared.without(typed, unknown)
        return self.raw("PATCH", path, query, left, content_type=CONTENT_TYPES["apply"])

    def patch(
        self,
        kind: Kind,
        name: str,
        body: Mapping[str, Any] | Items,
        *,
        namespace: str | None = None,
        type: PatchType = "merge",  # noqa: A002
        subresource: str | None = None,
    ) -> Json:
        """With metadata.resourceVersion in a merge patch, Conflict unless that version is still the last."""
        path = _path(kind, namespace, name, subresource)
        return self.raw("PATCH", path, self._manager(), body, content_type=CONTENT_TYPES[type])

    def update(self, kind: Kind, body: Mapping[str, Any]) -> Json:
        """Replaces the whole object: only for objects that the broker alone writes."""
        path = _path(kind, _namespace(body), _name(body))
        return self.raw("PUT", path, self._manager(), _typed(kind, body))

    def delete(
        self,
        kind: Kind,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period: int | None = None,
        dry_run: bool = False,
    ) -> Json:
        """Conflict where `uid` or `resource_version` is given and is not the object's. `dry_run` deletes
        nothing.
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if given := {key: value for key, value in preconditions.items() if value}:
            options["preconditions"] = given
        if grace_period is not None:
            options["gracePeriodSeconds"] = grace_period
        if dry_run:
            options["dryRun"] = [DRY_RUN["dryRun"]]  # with a body, the query is not read
        return self.raw("DELETE", _path(kind, namespace, name), body=options)

    def evict(self, name: str, namespace: str, *, uid: str, dry_run: bool = False) -> Json:
        """EvictionRefused where something does not allow it now; Conflict where another pod has the name by
        now. `dry_run` evicts nothing.
        """
        body: Json = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}/eviction"
        try:
            return self.raw("POST", path, DRY_RUN if dry_run else None, body)
        except ApiError as error:
            # 500 for several budgets: https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
            by_budget = error.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.INTERNAL_SERVER_ERROR)
            if not (by_budget or error.by_policy):
                raise
            raise EvictionRefused(error.status, error.reason, error.message, error.details) from error

    def raw(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Items | None = None,
        *,
        content_type: str = "application/json",
    ) -> Json:
        """Any request; the answer must be JSON."""
        if self._guard is not None and method not in READS:
            self._guard()
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        reply = self.transport.request(
            Request(
                method=method,
                path=path,
                query=query or {},
                headers=headers,
                body=None if body is None else orjson.dumps(body),
            ),
            timeout=self._timeout,
        )
        if reply.status >= 300:
            raise from_reply(reply.status, reply.body, reply.headers)
        try:
            decoded = orjson.loads(reply.body)
        except orjson.JSONDecodeError:
            decoded = None
        if not isinstance(decoded, dict):
            received = reply.body[:200].decode(errors="replace")
            message = f"{method} {path} was answered with {received!r}, not with a JSON object"
            raise ApiError(reply.status, "NotJson", message)
        return decoded

    def _manager(self) -> Json:
        return {"fieldManager": self.field_manager}


def _path(
    kind: Kind, namespace: str | None = None, name: str | None = None, subresource: str | None = None
) -> str:
    return quote(kind.path(namespace=namespace or None, name=name, subresource=subresource))


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    given = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in given.items() if value}


def _namespace(body: Mapping[str, Any]) -> str | None:
    return body.get("metadata", {}).get("namespace") or None


def _name(body: Mapping[str, Any]) -> str:
    name = body.get("metadata", {}).get("name")
    if not name:
        raise ValueError(f"metadata.name is missing in a {body.get('kind', 'body')} to be written")
    return str(name)


def _typed(kind: Kind, body: Mapping[str, Any]) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **body}
