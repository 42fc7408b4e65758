"""The cluster: every request comes in here, from the HTTP front or from a caller in the process.

Invariant: requests see and leave the store whole (one lock); a failed request changed nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from local.kube import definitions, deletes, discovery, patching, reads, subresources, writes
from local.kube.errors import StatusError, conflict, warning_header
from local.kube.faults import ScriptedFaults
from local.kube.ids import Ids
from local.kube.incoming import given_options
from local.kube.kinds import events, services
from local.kube.options import ApiCall, list_options, options_of
from local.kube.resources import Registry
from local.kube.route import route
from local.kube.state import ApiState
from local.kube.store import LOG_BYTES, Item, Store, encode
from local.kube.tables import rendering
from local.kube.watch import WatchStream
from local.kube.webhooks import matching
from local.kube.webhooks.validating import Moved
from local.kube.wire import JSON, ApiRequest, Obj, Response, reply, text

NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
BODY_LIMIT = 3 << 20
_ATTEMPTS = 10  # at a write of an object that changes during every webhook call
_HEALTH = frozenset({"/healthz", "/livez", "/readyz"})


class Cluster:
    """An API server without a network: `handle` a request, or use the verbs below it."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        seed: int | None = None,
        log_bytes: int = LOG_BYTES,
        definitions_of: Cluster | None = None,
    ) -> None:
        """`clock` gives the time that objects are stamped with; `seed` makes uids and names repeatable.

        `definitions_of`: it serves the custom resources of that cluster from the beginning.
        """
        self.faults = ScriptedFaults()
        self.faults.on_drop(self._drop_watches)
        # For the parts of this package; all other callers use `handle`.
        self.state = ApiState(Store(log_bytes=log_bytes), Registry(), clock, Ids(seed))
        self.state.hooks[definitions.STORAGE] = definitions.written
        self.state.registry.convert("events.k8s.io", "v1", "events", show=events.shown, store=events.stored)
        self._streams: set[WatchStream] = set()
        if definitions_of is not None:
            definitions.copy(definitions_of.state, self.state)
        for name in NAMESPACES:
            self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self.create(
            "/apis/networking.k8s.io/v1/servicecidrs",
            {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": [services.RANGE]}},
        )
        self.create("/api/v1/namespaces/default/services", services.KUBERNETES)

    def handle(self, request: ApiRequest) -> Response:
        """Answers one request. A watch answers with a `stream`, which the caller iterates and closes."""
        try:
            return self._handle(request)
        except StatusError as error:
            return error.response()

    @property
    def slow(self) -> bool:
        """Whether a request may wait: for a scripted fault or a webhook."""
        return self.faults.active or matching.any_at_all(self.state)

    @property
    def services(self) -> dict[tuple[str, str, int], tuple[str, int]]:
        """(namespace, name, port) of a Service → host and port where webhooks are served for it: no Service
        leads anywhere here by itself."""
        return self.state.services

    def _called(self, call: ApiCall) -> Response:
        try:
            return self._warned(call, self._dispatch(call))
        except StatusError as error:
            error.warnings = call.warnings
            raise

    def _handle(self, request: ApiRequest) -> Response:
        if request.path.rstrip("/") in _HEALTH:
            return text("ok")
        if len(request.body or b"") > BODY_LIMIT:
            message = f"Request entity too large: limit is {BODY_LIMIT}"
            raise StatusError(413, "RequestEntityTooLarge", message)
        with self.state.store.lock:
            if (response := discovery.answer(self.state.registry, request)) is not None:
                return response
            target = route(self.state.registry, request)
        self.faults.check(target.verb, target.plural, target.name)
        with self.state.store.lock:
            for _ in range(_ATTEMPTS):
                try:
                    return self._called(ApiCall(request, target))
                except Moved:
                    continue
            raise conflict(target.resource.subject, target.name)

    def _dispatch(self, call: ApiCall) -> Response:
        verb = call.target.verb
        if (special := subresources.handler(call)) is not None:
            return special(self.state, call)
        if verb == "get":
            return reads.get(self.state, call)
        if verb == "list":
            return reads.list_all(self.state, call)
        if verb == "watch":
            stream = reads.watch(self.state, call, self._streams.discard)
            self._streams.add(stream)
            return Response(200, {"Content-Type": JSON}, stream=stream)
        if verb in ("delete", "deletecollection"):
            return self._delete(call)
        obj, created = _WRITES[verb](self.state, call)
        return self._written(call, obj, created=created)

    def _written(self, call: ApiCall, obj: Obj, *, created: bool) -> Response:
        resource = call.target.resource
        shown = rendering(resource, call, self.state.clock())
        view = resource.show(obj)
        body = shown.one(Item(view, encode(view, bare=resource.custom is None), 0))
        headers = {"Content-Type": shown.content_type}
        return Response(201 if created else 200, headers, body)

    def _warned(self, call: ApiCall, response: Response) -> Response:
        if not call.warnings:
            return response
        return replace(response, headers={**response.headers, "Warning": warning_header(call.warnings)})

    def _delete(self, call: ApiCall) -> Response:
        target, resource = call.target, call.target.resource
        options = options_of(given_options(call))
        if target.verb == "deletecollection":
            selected = list_options(call)
            items, meta = reads.page(self.state, call, selected)
            keys = [reads.key_of(item) for item in items]
            deletes.delete_many(self.state, call, options, keys)
            shown = rendering(resource, call, self.state.clock())
            return Response(200, {"Content-Type": shown.content_type}, shown.many(items, meta))
        key = (target.namespace if resource.namespaced else "", target.name)
        deleted = deletes.delete(self.state, resource, key, options, call=call)
        accepted = not deleted.gone and options.orphan is False
        return reply(deleted.answer(resource), status=202 if accepted else 200)

    def _drop_watches(self) -> None:
        for stream in tuple(self._streams):
            stream.close()

    # The most frequent requests of tests and in-process callers, as one call each: they raise StatusError.

    def request(
        self,
        method: str,
        path: str,
        payload: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """One request with a JSON body and a JSON answer."""
        raw = None if payload is None else orjson.dumps(payload)
        response = self._handle(ApiRequest(method, path, query or {}, headers or {}, raw))
        return orjson.loads(response.body)

    def create(self, path: str, obj: Obj, **query: str) -> Obj:
        out: Obj = self.request("POST", path, obj, query=query)
        return out

    def get(self, path: str, **query: str) -> Obj:
        out: Obj = self.request("GET", path, query=query)
        return out

    def update(self, path: str, obj: Obj, **query: str) -> Obj:
        out: Obj = self.request("PUT", path, obj, query=query)
        return out

    def patch(self, path: str, patch: Any, *, kind: str = patching.MERGE_PATCH, **query: str) -> Obj:
        out: Obj = self.request("PATCH", path, patch, query=query, headers={"Content-Type": kind})
        return out

    def apply(self, path: str, obj: Obj, *, manager: str, force: bool = False) -> Obj:
        query = {"fieldManager": manager, **({"force": "true"} if force else {})}
        return self.patch(path, obj, kind=patching.APPLY_PATCH, **query)

    def delete(self, path: str, **query: str) -> Obj:
        out: Obj = self.request("DELETE", path, query=query)
        return out

    def compact(self) -> None:
        """Forgets past events: older watches and continue tokens get 410 from now on."""
        with self.state.store.lock:
            self.state.store.compact()


_WRITES: dict[str, Callable[[ApiState, ApiCall], tuple[Obj, bool]]] = {
    "create": writes.create,
    "update": writes.update,
    "patch": writes.patch,
}
