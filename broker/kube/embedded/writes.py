"""Create, update and patch: one way from a request's object to a stored one.

Order and rules: k8s.io/apiserver/pkg/registry/generic/registry/store.go (Create, Update) and pkg/registry/rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import patches
from .apply.managers import updated
from .apply.verb import applying, context_of
from .decode import fragment, strict_error
from .errors import (
    ApiError,
    already_exists,
    bad_request,
    conflict,
    invalid,
    not_found,
    problem,
    unsupported_media_type,
)
from .kinds import kind_of
from .kinds.base import Kind
from .options import Call, body, parse_json, parse_yaml
from .resources import Resource
from .state import State
from .store import Item, Key
from .strategic import strategic
from .times import stamp
from .wire import Obj

JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC_PATCH, APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
_NAME_ATTEMPTS = 8

# (live object or None for a new one) → the object as it shall be
Change = Callable[[Obj | None], Obj]


def create(state: State, call: Call) -> tuple[Obj, bool]:
    call.check("CreateOptions")
    obj = read_object(call, body(call))
    return insert(state, call, managed(state, call, None, obj)), True


def managed(state: State, call: Call, live: Obj | None, obj: Obj) -> Obj:
    """The object with the record of who manages what brought up to date."""
    context = context_of(call)
    before = live if live is not None else _nothing(call.target.resource)
    updated(before, obj, call.manager, stamp(state.clock()), context)
    return obj


def _nothing(resource: Resource) -> Obj:
    """What a new object is compared with: of a built-in kind, its empty struct."""
    empty: Obj = {"apiVersion": resource.api_version, "kind": resource.kind}
    return empty if resource.custom else fragment(empty, kind_of(resource).shape)


def read_object(call: Call, raw: Any) -> Obj:
    """Decodes an object sent by a client, and meets its unknown fields as the request asks."""
    resource = call.target.resource
    if not isinstance(raw, dict):
        raise bad_request("the object provided is unrecognized (must be of type Object)")
    _check_type(resource, raw)
    unknown: list[str] = []
    raw.setdefault("apiVersion", resource.api_version)
    raw.setdefault("kind", resource.kind)
    kind = kind_of(resource)
    obj = kind.decode(raw, unknown)
    if unknown and call.strict == "Strict":
        raise strict_error(unknown, kind=resource.kind, api_version=resource.version)
    if call.strict == "Warn":
        call.warnings += unknown
    obj.setdefault("metadata", {})
    kind.rules.default(obj)
    return obj


def _check_type(resource: Resource, raw: Obj) -> None:
    api_version, kind = raw.get("apiVersion"), raw.get("kind")
    if api_version in (None, "") and kind in (None, "") and not resource.custom:
        return
    if not kind:
        raise bad_request("Object 'Kind' is missing in '" + "the request body" + "'")
    if (api_version, kind) != (resource.api_version, resource.kind):
        group, _, version = str(api_version).rpartition("/")
        given = f"{group}/{version}, Kind={kind}"
        wanted = f"{resource.group}/{resource.version}, Kind={resource.kind}"
        raise bad_request(f"{given} in the request body does not match the resource {wanted}")


def insert(state: State, call: Call, obj: Obj) -> Obj:
    """Writes a new object, from its defaults to the store."""
    target, resource = call.target, call.target.resource
    kind, meta = kind_of(resource), obj["metadata"]
    _check_namespace(call, meta)
    if target.name and meta.setdefault("name", target.name) != target.name:
        raise _wrong_name(meta["name"], target.name)
    obj = state.admit(call, obj, None)
    meta = obj["metadata"]
    generated = not meta.get("name") and bool(meta.get("generateName"))
    for _ in range(_NAME_ATTEMPTS):
        if generated:
            meta["name"] = state.ids.name(meta["generateName"])
        key: Key = (meta.get("namespace", ""), meta.get("name", ""))
        if not generated or key not in state.store.collection(resource.storage).items:
            break
    for name in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"):
        meta.pop(name, None)
    meta["uid"], meta["creationTimestamp"] = state.ids.uid(), stamp(state.clock())
    meta.pop("generation", None)
    if kind.rules.generation:
        meta["generation"] = 1
    kind.rules.create(obj)
    if found := kind.validate(obj, None, ""):
        raise invalid(resource.who, meta.get("name", ""), found)
    existing = state.store.collection(resource.storage).items.get(key)
    if existing is not None:
        error = already_exists(resource.who, key[1])
        if existing.obj["metadata"].get("deletionTimestamp"):
            error.message = f"object is being deleted: {error.message}"
        raise error
    return obj if call.dry_run else state.put(resource, key, obj).obj


def _check_namespace(call: Call, meta: Obj) -> None:
    namespace = call.target.namespace
    if not call.target.resource.namespaced:
        return
    if not meta.get("namespace"):
        meta["namespace"] = namespace
    elif meta["namespace"] != namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _wrong_name(name: str, wanted: str) -> ApiError:
    return bad_request(f"the name of the object ({name}) does not match the name on the URL ({wanted})")


def update(state: State, call: Call) -> tuple[Obj, bool]:
    call.check("UpdateOptions")
    target = call.target
    obj = read_object(call, body(call))
    meta = obj["metadata"]
    if meta.get("name", "") != target.name:
        if not meta.get("name"):
            raise bad_request(
                f'the name of the object ("") does not match the name on the URL ({target.name})'
            )
        raise _wrong_name(meta["name"], target.name)
    _check_namespace(call, meta)
    may_create = kind_of(target.resource).rules.create_on_update
    return store_change(state, call, lambda live: managed(state, call, live, obj), create=may_create)


def patch(state: State, call: Call) -> tuple[Obj, bool]:
    call.check("PatchOptions")
    content, raw = call.content_type, call.request.body or b""
    if content == APPLY_PATCH:
        apply = applying(state, call, parse_yaml(raw))
        return store_change(
            state, call, lambda live: _settled(call, apply(live)), create=not call.target.subresource
        )
    change = _patching(call, content, parse_json(raw))
    return store_change(state, call, lambda live: managed(state, call, live, change(live)), create=False)


def _settled(call: Call, obj: Obj) -> Obj:
    """What an apply made, read as any object is: its types in their canonical form, with defaults."""
    kind = kind_of(call.target.resource)
    out = kind.decode(obj, [])
    kind.rules.default(out)
    return out


def _patching(call: Call, content: str, document: Any) -> Change:
    resource = call.target.resource
    if content not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH) or (
        content == STRATEGIC_PATCH and resource.custom
    ):
        accepted = [JSON_PATCH, MERGE_PATCH, APPLY_PATCH]
        raise unsupported_media_type(
            accepted if resource.custom else [*accepted[:2], STRATEGIC_PATCH, APPLY_PATCH]
        )
    if content != JSON_PATCH and not isinstance(document, dict):
        raise bad_request("error decoding patch: a patch is an object")

    def change(live: Obj | None) -> Obj:
        assert live is not None
        if content == JSON_PATCH:
            patched = patches.json_patch(live, document)
        elif content == MERGE_PATCH:
            patched = patches.merge(live, document)
        else:
            patched = strategic(live, document, kind_of(resource).shape)
        return read_object(call, patched)

    return change


def store_change(state: State, call: Call, change: Change, *, create: bool) -> tuple[Obj, bool]:
    """Reads, changes and writes one object; True when it was created."""
    target, resource = call.target, call.target.resource
    key: Key = (target.namespace if resource.namespaced else "", target.name)
    live = state.store.collection(resource.storage).items.get(key)
    if live is None:
        if not create:
            raise not_found(resource.who, target.name)
        obj = change(None)
        if obj["metadata"].get("uid"):
            raise conflict(resource.who, target.name, _uid_changed(obj["metadata"]["uid"], ""))
        return insert(state, call, obj), True
    before = resource_view(resource, live.obj)
    obj = change(before)
    return replace(state, call, kind_of(resource), key, obj, live, before), False


def resource_view(resource: Resource, obj: Obj) -> Obj:
    """A stored object as this version of its resource shows it."""
    if obj.get("apiVersion") == resource.api_version:
        return obj
    return {**obj, "apiVersion": resource.api_version, "kind": resource.kind}


def _uid_changed(wanted: str, found: str) -> str:
    return f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"


def replace(state: State, call: Call, kind: Kind, key: Key, obj: Obj, live: Item, before: Obj) -> Obj:
    """Writes `obj` over the live object, keeping what the server owns."""
    resource, name = call.target.resource, call.target.name
    meta, old = obj["metadata"], before["metadata"]
    if meta.get("name") != name:
        raise _wrong_name(meta.get("name", ""), name)
    if meta.get("uid") and meta["uid"] != old["uid"]:
        raise conflict(resource.who, name, _uid_changed(meta["uid"], old["uid"]))
    obj = state.admit(call, obj, before)
    meta = obj["metadata"]
    version = meta.get("resourceVersion") or ""
    if not version:
        if not kind.rules.unconditional:
            who = type(resource.who)(resource.group, resource.plural, resource.plural)
            wrong = problem("invalid", "metadata.resourceVersion", "must be specified for an update", 0)
            raise invalid(who, name, [wrong])
        meta["resourceVersion"] = old["resourceVersion"]
    elif version != old["resourceVersion"]:
        raise conflict(resource.who, name)
    _keep(meta, old)
    if call.target.subresource == "status":
        obj = _status_only(obj, before)
        kind.rules.update_status(obj, before)
    else:
        if kind.status:
            _keep_status(obj, before)
        kind.rules.update(obj, before)
        if kind.rules.generation and _wanted(obj, status=kind.status) != _wanted(before, status=kind.status):
            obj["metadata"]["generation"] = old.get("generation", 0) + 1
    if found := kind.validate(obj, before, call.target.subresource):
        raise invalid(resource.who, name, found)
    if obj == before or _only_times(obj, before):
        return before
    if call.dry_run:
        return obj
    if _finished(obj["metadata"], old):
        state.delete(resource, key)
        return obj
    return state.put(resource, key, obj).obj


def _only_times(obj: Obj, before: Obj) -> bool:
    """Nothing changed but when a manager last did something: not worth a write."""
    new, old = obj["metadata"].get("managedFields") or (), before["metadata"].get("managedFields") or ()
    if len(new) != len(old) or any(
        {**a, "time": ""} != {**b, "time": ""} for a, b in zip(new, old, strict=True)
    ):
        return False
    obj["metadata"]["managedFields"] = old
    return obj == before


def _keep(meta: Obj, old: Obj) -> None:
    for name in ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if old.get(name) is not None:
            meta[name] = old[name]
        elif name == "generation":
            meta.pop(name, None)


def _keep_status(obj: Obj, before: Obj) -> None:
    obj.pop("status", None)
    if "status" in before:
        obj["status"] = before["status"]


def _status_only(obj: Obj, before: Obj) -> Obj:
    """A write through /status: everything but the status, and who manages it, stays."""
    out = {key: value for key, value in before.items() if key != "status"}
    if "status" in obj:
        out["status"] = obj["status"]
    meta = {key: value for key, value in before["metadata"].items() if key != "managedFields"}
    if obj["metadata"].get("managedFields"):
        meta["managedFields"] = obj["metadata"]["managedFields"]
    return {**out, "metadata": meta}


def _wanted(obj: Obj, *, status: bool) -> Obj:
    left_out = ("metadata", "status") if status else ("metadata",)
    return {key: value for key, value in obj.items() if key not in left_out}


def _finished(meta: Obj, old: Obj) -> bool:
    """The last finalizer of a deleted object has gone: so does the object."""
    return (
        not meta.get("finalizers")
        and bool(old.get("deletionTimestamp"))
        and not old.get("deletionGracePeriodSeconds")
    )
