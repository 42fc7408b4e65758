"""Get, list and watch.

Rule: https://kubernetes.io/docs/reference/using-api/api-concepts/ (resource versions, chunks, streams).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from itertools import islice
from typing import Any

import orjson

from local.kube import selectors
from local.kube.errors import StatusError, bad_request, expired, not_found
from local.kube.kinds import kind_of
from local.kube.options import ApiCall, ListOptions, list_options
from local.kube.options import revision as as_revision
from local.kube.resources import Resource
from local.kube.selectors import Predicate
from local.kube.state import ApiState
from local.kube.store import Compacted, Item, Key, encode
from local.kube.tables import Rendering, rendering
from local.kube.watch import WatchFilter, WatchStream, error_line
from local.kube.wire import Obj, Response

MIN_WATCH_SECONDS = 1800.0


def get(state: ApiState, call: ApiCall) -> Response:
    target, resource = call.target, call.target.resource
    key = (target.namespace if resource.namespaced else "", target.name)
    item = state.store.collection(resource.storage).items.get(key)
    if item is None:
        raise not_found(resource.subject, target.name)
    minimum = call.request.query.get("resourceVersion") or "0"
    if minimum.isdigit() and int(minimum) > state.store.revision:
        raise _too_large(int(minimum), state.store.revision)
    shown = rendering(resource, call, state.clock())
    return Response(200, {"Content-Type": shown.content_type}, shown.one(in_version(resource, item)))


def in_version(resource: Resource, item: Item) -> Item:
    """The item as this version of the resource shows it."""
    if resource.convert is None and item.obj.get("apiVersion") == resource.api_version:
        return item
    obj = resource.show(item.obj)
    return Item(obj, encode(obj, bare=resource.custom is None), item.revision)


def _too_large(requested: int, current: int) -> StatusError:
    message = f"Too large resource version: {requested}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return StatusError(
        504, "Timeout", f"Timeout: {message}", details={"causes": causes, "retryAfterSeconds": 1}
    )


def predicate(call: ApiCall, options: ListOptions) -> Predicate | None:
    resource, tests = call.target.resource, list[Predicate]()
    if options.selected is not None:
        tests.append(options.selected)
    if options.fields:
        selector = selectors.fields(options.fields, kind_of(resource).readers, _unselectable(resource))
        tests += [selector] if selector is not None else []
    if len(tests) < 2:
        return tests[0] if tests else None
    return lambda obj: all(test(obj) for test in tests)


_ONE_NAME = re.compile(r"(?:^|,)metadata\.name==?[^=,]")
_ON_NODE = re.compile(r"(?:^|,)spec\.nodeName==?([^=,]+)")


def _one_object(call: ApiCall, options: ListOptions) -> bool:
    """Whether a selector and the path together name a single object."""
    placed = bool(call.target.namespace) or not call.target.resource.namespaced
    return placed and _ONE_NAME.search(options.fields) is not None


def _indexed(call: ApiCall, options: ListOptions) -> Predicate | None:
    """The objects that the real server reads for a list: all, unless it has an index."""
    if _one_object(call, options):
        return lambda _: False
    if on_node := _ON_NODE.search(options.fields):
        return lambda obj: (obj.get("spec") or {}).get("nodeName") == on_node[1]
    return None


def _unselectable(resource: Resource) -> str:
    if resource.custom or kind_of(resource).rules.selectable:
        return "field label not supported: {name}"
    return '"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def list_all(state: ApiState, call: ApiCall) -> Response:
    options = list_options(call)
    shown = rendering(call.target.resource, call, state.clock())
    items, meta = page(state, call, options)
    return Response(200, {"Content-Type": shown.content_type}, shown.many(items, meta))


def page(state: ApiState, call: ApiCall, options: ListOptions) -> tuple[list[Item], Obj]:
    """The requested items, and the list's metadata."""
    resource = call.target.resource
    collection = state.store.collection(resource.storage)
    match, namespace = predicate(call, options), call.target.namespace
    if options.token and options.version not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")
    requested, revision, after = as_revision(options.version), state.store.revision, ""
    if options.token:
        revision, after = _decode_token(options.token)
    elif requested:
        if requested > revision:
            raise _too_large(requested, revision)
        # One object is read as it is now.
        single = _one_object(call, options)
        if options.match == "Exact" or (options.limit and not options.match and not single):
            revision = requested
    exact = revision != state.store.revision
    source: dict[Key, Item] = collection.items
    if exact:
        source = _as_of(state, resource, revision, after)
    keys = sorted(source) if exact else collection.keys
    chosen, meta = _choose(keys, source, namespace, match, after), Obj()
    # A request for any version is served from memory, and then gets all at once.
    if not options.limit or (options.version == "0" and not options.token):
        items = list(chosen)
    else:
        items = list(islice(chosen, options.limit))
        if len(items) == options.limit:
            # Later objects are not checked: there may be another page although nothing in it matches.
            rest = _place(key_of(items[-1]), namespace) + "\0"
            left = sum(1 for _ in _choose(keys, source, namespace, _indexed(call, options), rest))
            if left:
                meta["continue"] = _token(revision, rest)
            if left and match is None:
                meta["remainingItemCount"] = left
    meta["resourceVersion"] = str(revision)
    return [in_version(resource, item) for item in items], meta


def _as_of(state: ApiState, resource: Resource, revision: int, after: str) -> dict[Key, Item]:
    try:
        return state.store.snapshot(resource.storage, revision)
    except Compacted as gone:
        if not after:
            message = "The resourceVersion for the provided list is too old."
            raise expired(message) from gone
        message = (
            "The provided continue parameter is too old to display a consistent list result. You can start a "
            "new list without the continue parameter, or use the continue token in this response to retrieve "
            "the remainder of the results. Continuing with the provided token results in an inconsistent "
            "list - objects that were created, modified, or deleted between the time the first chunk was "
            "returned and now may show up in the list."
        )
        raise expired(message, token=_token(state.store.revision, after)) from gone


def _choose(
    keys: list[Key], items: dict[Key, Item], namespace: str, match: Predicate | None, after: str
) -> Any:
    for key in keys:
        if (namespace and key[0] != namespace) or (after and _place(key, namespace) < after):
            continue
        item = items[key]
        if match is None or match(item.obj):
            yield item


def _place(key: Key, namespace: str) -> str:
    """The place of an object in the list of its namespace, or of all."""
    return key[1] if namespace or not key[0] else f"{key[0]}/{key[1]}"


def _token(revision: int, start: str) -> str:
    raw = {"v": "meta.k8s.io/v1", "rv": revision, "start": start}
    return base64.urlsafe_b64encode(orjson.dumps(raw)).decode().rstrip("=")


def _decode_token(token: str) -> tuple[int, str]:
    """The revision of the first page, and the place from which to go on."""
    try:
        raw = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(raw["rv"]), str(raw["start"])
    except (binascii.Error, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error


def _start(options: ListOptions) -> int:
    try:
        return as_revision(options.version)
    except StatusError as error:
        raise StatusError(500, "", error.message.removeprefix("invalid resource version: ")) from error


def watch(state: ApiState, call: ApiCall, closed: Callable[[WatchStream], None]) -> WatchStream:
    options, resource = list_options(call), call.target.resource
    collection = state.store.collection(resource.storage)
    shown = rendering(resource, call, state.clock())
    match = predicate(call, options)
    after = _start(options)
    view = WatchFilter(
        call.target.namespace,
        match,
        encode=_encoder(resource, shown),
        bookmark=lambda revision, initial: shown.bookmark(revision, initial=initial),
        bare=resource.custom is None,
    )
    initial: list[bytes] = []
    if options.initial_events or (options.initial_events is None and after == 0):
        items = (collection.items[key] for key in collection.keys)
        initial = [view.encode("ADDED", item) for item in items if view.selects(key_of(item), item.obj)]
        after = state.store.revision
        if options.initial_events and options.bookmarks:
            initial.append(shown.bookmark(after, initial=True))
    timeout, bookmarks = MIN_WATCH_SECONDS if options.timeout is None else options.timeout, options.bookmarks
    try:
        collection.position_after(after)
    except Compacted as gone:
        # The request succeeds; the error is the stream's only event.
        initial, after = [error_line(expired(str(gone)).status())], state.store.revision
        timeout, bookmarks = 0.0, False
    return WatchStream(
        state.store,
        collection,
        view,
        after=after,
        initial=initial,
        timeout=timeout,
        bookmarks=bookmarks,
        closed=closed,
    )


def key_of(item: Item) -> Key:
    meta = item.obj["metadata"]
    return (meta.get("namespace", ""), meta["name"])


def _encoder(resource: Resource, shown: Rendering) -> Callable[[str, Item], bytes]:
    def encode(kind: str, item: Item) -> bytes:
        wire = shown.event(in_version(resource, item))
        return b'{"type":"' + kind.encode() + b'","object":' + wire + b"}\n"

    return encode
