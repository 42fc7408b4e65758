"""Create, update and patch: one way from a request's object to a stored one.

Order and rules: k8s.io/apiserver/pkg/registry/generic/registry/store.go (Create, Update), pkg/registry/rest.
"""

from __future__ import annotations

from local.kube.admission import admit
from local.kube.errors import (
    ErrorSubject,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    invalid,
    not_found,
    problem,
)
from local.kube.incoming import read_object
from local.kube.kind import ServedKind
from local.kube.kinds import kind_of
from local.kube.managing import managed, unique_owners
from local.kube.options import ApiCall
from local.kube.patching import Change, patching
from local.kube.resources import Resource
from local.kube.state import ApiState
from local.kube.store import Key
from local.kube.times import stamp
from local.kube.webhooks import validating
from local.kube.wire import Obj

_NAME_ATTEMPTS = 8
_MADE_BY_SERVER = ("selfLink", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def create(state: ApiState, call: ApiCall) -> tuple[Obj, bool]:
    call.check("CreateOptions")
    obj = read_object(call)
    _wipe(obj["metadata"])
    set_namespace(call, obj["metadata"])
    unique_owners(call, obj)
    return insert(state, call, managed(state, call, None, obj)), True


def _wipe(meta: Obj) -> None:
    for name in _MADE_BY_SERVER:
        meta.pop(name, None)


def insert(state: ApiState, call: ApiCall, obj: Obj) -> Obj:
    """Writes a new object, from its admission to the store."""
    resource, meta = call.target.resource, obj["metadata"]
    kind = kind_of(resource)
    obj = admit(state, call, obj, None)
    unique_owners(call, obj, after=True)
    _wipe(meta)
    meta["uid"], meta["creationTimestamp"] = state.ids.uid(), stamp(state.clock())
    items = state.store.collection(resource.storage).items
    if not meta.get("name") and meta.get("generateName"):
        for _ in range(_NAME_ATTEMPTS):
            meta["name"] = state.ids.name(meta["generateName"])
            if (meta.get("namespace", ""), meta["name"]) not in items:
                break
    if kind.rules.generation:
        meta["generation"] = 1
    kind.rules.create(obj)
    if errors := kind.validate(obj, None, ""):
        raise invalid(kind.subject(obj), meta.get("name", ""), errors)
    call.warn(*kind.rules.warnings(obj, None))
    validating.validate(state, call, obj, None)
    key: Key = (meta.get("namespace", ""), meta.get("name", ""))
    if meta.get("resourceVersion") and not call.dry_run:
        raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
    if (existing := items.get(key)) is not None:
        error = already_exists(resource.subject, key[1])
        if existing.obj["metadata"].get("deletionTimestamp"):
            error.message = f"object is being deleted: {error.message}"
        raise error
    if call.dry_run:
        return obj
    return state.put(resource, key, resource.store(obj)).obj


def set_namespace(call: ApiCall, meta: Obj) -> None:
    expected = call.target.namespace if call.target.resource.namespaced else ""
    given = meta.get("namespace", "")
    if given and expected and given != expected:
        text = "the namespace of the provided object does not match the namespace sent on the request"
        raise bad_request(text)
    if expected:
        meta["namespace"] = expected
    else:
        meta.pop("namespace", None)


def check_name(meta: Obj, expected: str) -> None:
    if (name := meta.get("name", "")) != expected:
        if not name:
            why = "name must be provided"
            raise bad_request(f"the name of the object ({expected} based on URL) was undeterminable: {why}")
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({expected})")


def update(state: ApiState, call: ApiCall) -> tuple[Obj, bool]:
    call.check("UpdateOptions")
    target = call.target
    obj = read_object(call)
    meta = obj["metadata"]
    set_namespace(call, meta)
    check_name(meta, target.name)
    uid = meta.get("uid", "")

    def change(live: Obj | None) -> Obj:
        actual = live["metadata"]["uid"] if live else ""
        if uid and uid != actual:
            place = "" if call.dry_run else "/registry"
            key = "/".join(filter(None, (target.resource.registry, target.namespace, target.name)))
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}"
            stored = f"Key: {place}/{key}, ResourceVersion: 0, AdditionalErrorMsg: {why}"
            raise conflict(
                target.resource.subject, target.name, f"StorageError: invalid object, Code: 4, {stored}"
            )
        if live is None:
            meta.pop("resourceVersion", None)  # of an object that is gone
        return managed(state, call, live, obj)

    return store_change(state, call, change, create=kind_of(target.resource).rules.create_on_update)


def patch(state: ApiState, call: ApiCall) -> tuple[Obj, bool]:
    change = patching(state, call)
    target = call.target

    def checked(live: Obj | None) -> Obj:
        obj = change(live)
        if live is None:
            obj["metadata"].setdefault("name", target.name)
            if uid := obj["metadata"].get("uid"):
                why = (
                    f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                )
                raise conflict(target.resource.subject, target.name, why)
        set_namespace(call, obj["metadata"])
        check_name(obj["metadata"], target.name)
        return obj

    applies = call.content_type.startswith("application/apply-patch")
    return store_change(state, call, checked, create=applies and not target.subresource)


def store_change(state: ApiState, call: ApiCall, change: Change, *, create: bool) -> tuple[Obj, bool]:
    """Reads, changes and writes one object; True when it was created."""
    target, resource = call.target, call.target.resource
    key: Key = (target.namespace if resource.namespaced else "", target.name)
    live = state.store.collection(resource.storage).items.get(key)
    if live is None:
        if not create:
            raise not_found(resource.subject, target.name)
        return insert(state, call, change(None)), True
    before = resource.show(live.obj)
    return replace(state, call, kind_of(resource), key, change(before), before), False


def replace(state: ApiState, call: ApiCall, kind: ServedKind, key: Key, obj: Obj, before: Obj) -> Obj:
    """Writes `obj` over the live object, keeping the server's own fields."""
    resource, old = call.target.resource, before["metadata"]
    obj = admit(state, call, obj, before)
    unique_owners(call, obj, after=True)
    _check_version(resource, kind, call.target.name, obj["metadata"], old)
    _keep_generation(obj["metadata"], old)
    if call.target.subresource == "finalize":
        obj = {**before, "metadata": obj["metadata"], "spec": obj["spec"]}
    elif call.target.subresource == "status":
        obj = _status_only(obj, before) if resource.custom else _aside(kind, obj, before)
        kind.rules.update_status(obj, before)
    else:
        if kind.status:
            _keep_status(obj, before)
        kind.rules.update(obj, before)
        if kind.rules.generation and _generation_fields(obj, kind) != _generation_fields(before, kind):
            obj["metadata"]["generation"] = old.get("generation", 0) + 1
    _keep(obj["metadata"], old)
    if errors := kind.validate(obj, before, call.target.subresource):
        raise invalid(kind.subject(obj), obj["metadata"].get("name", ""), errors)
    call.warn(*kind.rules.warnings(obj, before))
    validating.validate(state, call, obj, before)
    if obj == before or _only_times(obj, before):
        return before
    if call.dry_run:
        return obj
    if _finished(obj, old):
        state.delete(resource, key)
        return obj
    return state.put(resource, key, resource.store(obj)).obj


def _check_version(resource: Resource, kind: ServedKind, name: str, meta: Obj, old: Obj) -> None:
    version = meta.get("resourceVersion") or ""
    if version and not version.isdigit():
        raise StatusError(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
    if version in ("", "0"):
        if not kind.rules.unconditional:
            wrong = problem("invalid", "metadata.resourceVersion", "must be specified for an update", 0)
            # The real server names the resource in place of the kind, and so does this one.
            raise invalid(ErrorSubject(resource.group, resource.plural, resource.plural), name, [wrong])
        meta["resourceVersion"] = old["resourceVersion"]
    elif int(version) != int(old["resourceVersion"]):
        raise conflict(resource.subject, name)


def _only_times(obj: Obj, before: Obj) -> bool:
    """Nothing changed but when a manager last did something: not worth a write."""
    new, old = (version["metadata"].get("managedFields") or () for version in (obj, before))
    same = ({**a, "time": ""} == {**b, "time": ""} for a, b in zip(new, old, strict=False))
    if len(new) != len(old) or not all(same):
        return False
    if old:
        obj["metadata"]["managedFields"] = old
    return obj == before


def _keep_generation(meta: Obj, old: Obj) -> None:
    meta.pop("generation", None)
    if old.get("generation"):
        meta["generation"] = old["generation"]


def _keep(meta: Obj, old: Obj) -> None:
    """The fields that no update can change and that it may leave out."""
    meta.setdefault("uid", old["uid"])
    meta["creationTimestamp"] = old["creationTimestamp"]
    if old.get("deletionTimestamp"):
        meta["deletionTimestamp"] = old["deletionTimestamp"]
    if old.get("deletionGracePeriodSeconds") is not None:
        meta.setdefault("deletionGracePeriodSeconds", old["deletionGracePeriodSeconds"])


def _keep_status(obj: Obj, before: Obj) -> None:
    obj.pop("status", None)
    if "status" in before:
        obj["status"] = before["status"]


def _status_only(obj: Obj, before: Obj) -> Obj:
    """A write through /status: everything but the status and its managers stays."""
    out = {key: value for key, value in before.items() if key != "status"}
    if "status" in obj:
        out["status"] = obj["status"]
    meta = {key: value for key, value in before["metadata"].items() if key != "managedFields"}
    if obj["metadata"].get("managedFields"):
        meta["managedFields"] = obj["metadata"]["managedFields"]
    return {**out, "metadata": meta}


def _aside(kind: ServedKind, obj: Obj, before: Obj) -> Obj:
    """The same for a built-in kind, where its spec stays and mostly its metadata may change."""
    out, meta = dict(obj), dict(obj["metadata"])
    for part, now, then in (
        *(("spec", out, before),),
        *((name, meta, before["metadata"]) for name in kind.rules.status_ignores),
    ):
        now.pop(part, None)
        if part in then:
            now[part] = then[part]
    return {**out, "metadata": meta}


def _generation_fields(obj: Obj, kind: ServedKind) -> Obj:
    """The fields that make a new generation when they change."""
    left_out = kind.rules.uncounted if not kind.status else (*kind.rules.uncounted, "status")
    return {key: value for key, value in obj.items() if key not in left_out}


def _finished(obj: Obj, old: Obj) -> bool:
    """The last finalizer of a deleted object has gone: so does the object."""
    held = obj["metadata"].get("finalizers") or old.get("deletionGracePeriodSeconds")
    if obj["kind"] == "Namespace" and obj["apiVersion"] == "v1":
        held = held or (obj.get("spec") or {}).get("finalizers")
    return bool(old.get("deletionTimestamp")) and not held
