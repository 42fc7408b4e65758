"""The managers of an object's fields, kept in its `metadata.managedFields`.

Invariant: a field leaves its managers only when another manager changes it.
Rule: k8s.io/apimachinery/pkg/util/managedfields/internal over structured-merge-diff's merge/update.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from local.kube.apply.compare import Difference, compare, fields_of
from local.kube.apply.fields import SELF, Fields, difference, intersection, paths, union, with_named
from local.kube.apply.merge import merge, remove
from local.kube.errors import StatusError
from local.kube.shape import Shape
from local.kube.wire import Obj

UPDATE, APPLY = "Update", "Apply"
BEFORE_FIRST_APPLY, ANCIENT, MAX_UPDATERS = "before-first-apply", "ancient-changes", 10
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_META = (
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
)
_NEVER: Fields = {
    "f:apiVersion": {},
    "f:kind": {},
    "f:metadata": {SELF: {}, **{f"f:{name}": {} for name in (*_META, "resourceVersion")}},
}


@dataclass(frozen=True, slots=True)
class Manager:
    """The identity of an entry: one for all versions if it was applied, otherwise one for each version."""

    name: str
    operation: str
    version: str
    subresource: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.name, self.operation, "" if self.operation == APPLY else self.version, self.subresource)


@dataclass(slots=True)
class ManagedFieldsEntry:
    manager: Manager
    fields: Fields
    time: str | None


Managed = dict[tuple[str, str, str, str], ManagedFieldsEntry]


@dataclass(frozen=True, slots=True)
class Context:
    """The context of a write: the kind's shape, its version, the fields that this way of writing ignores."""

    shape: Shape
    version: str
    subresource: str
    ignored: Fields = field(default_factory=dict)
    empty: Obj = field(default_factory=dict)  # an object without any field


def read(meta: Obj) -> Managed:
    """The managers of an object; entries that make no sense count as none at all."""
    out: Managed = {}
    for raw in meta.get("managedFields") or ():
        operation = raw.get("operation")
        if (
            operation not in (UPDATE, APPLY)
            or not raw.get("apiVersion")
            or raw.get("fieldsType") != "FieldsV1"
        ):
            return {}
        manager = Manager(raw.get("manager", ""), operation, raw["apiVersion"], raw.get("subresource", ""))
        out[manager.key] = ManagedFieldsEntry(manager, raw.get("fieldsV1") or {}, raw.get("time"))
    return out


def write(meta: Obj, managed: Managed) -> None:
    if not managed:
        meta.pop("managedFields", None)
        return
    meta["managedFields"] = [_encoded(entry) for entry in sorted(managed.values(), key=_rank)]


def _rank(entry: ManagedFieldsEntry) -> tuple[str, str, str, str, str]:
    manager = entry.manager
    return (manager.operation, entry.time or "", manager.name, manager.version, manager.subresource)


def _encoded(entry: ManagedFieldsEntry) -> Obj:
    manager = entry.manager
    out: Obj = {"manager": manager.name, "operation": manager.operation, "apiVersion": manager.version}
    if entry.time:
        out["time"] = entry.time
    out["fieldsType"], out["fieldsV1"] = "FieldsV1", entry.fields
    if manager.subresource:
        out["subresource"] = manager.subresource
    return out


def updated(live: Obj, new: Obj, name: str, now: str, context: Context) -> None:
    """Records in `new` (changed in place) the managers of fields after a create, update or patch."""
    managed = _before(live, new, context)
    old, bare = _bare(live), _bare(new)
    new["metadata"].pop("managedFields", None)
    if not managed and live.get("metadata", {}).get("uid"):
        return  # cleared managers are tracked no longer
    delta = compare(old, bare, context.shape)
    _take_changed(managed, delta, context)
    taken = difference(union(delta.modified, delta.added), context.ignored, below=True)
    taken = difference(taken, _NEVER)
    if taken:
        manager = Manager(name, UPDATE, context.version, context.subresource)
        have = managed.get(manager.key)
        managed[manager.key] = ManagedFieldsEntry(manager, union(have.fields, taken) if have else taken, now)
    _cap(managed)
    write(new["metadata"], managed)


def _before(live: Obj, new: Obj, context: Context) -> Managed:
    """The managers that a write starts from: a client may hand in its own, or an empty list to clear them."""
    old = live.get("metadata", {})
    if context.subresource:
        return read(old)
    given = new["metadata"].get("managedFields")
    if given is not None and given in ([], [{}]):
        return {}
    return read(new["metadata"]) or read(old)


def _bare(obj: Obj) -> Obj:
    """The object without the record of its managers."""
    meta = obj.get("metadata")
    if not meta or "managedFields" not in meta:
        return obj
    return {**obj, "metadata": {key: value for key, value in meta.items() if key != "managedFields"}}


def _take_changed(
    managed: Managed, delta: Difference, context: Context, *, but: Any = None
) -> dict[Any, Fields]:
    """Takes changed and removed fields from all managers (but one); returns the fields taken from each."""
    every = union(delta.modified, delta.added), delta.removed
    own = tuple(difference(fields, context.ignored, below=True) for fields in every)
    taken: dict[Any, Fields] = {}
    if not any(every):
        return taken
    for key, entry in list(managed.items()):
        if key == but:
            continue
        # The main endpoint ignores status for its own version only, the status endpoint for all.
        ignoring = entry.manager.version == context.version or context.subresource
        changed, removed = own if ignoring else every
        if conflict := intersection(entry.fields, changed):
            taken[key] = conflict
        rest = difference(difference(entry.fields, conflict), removed)
        if not rest:
            del managed[key]
        elif rest is not entry.fields:
            managed[key] = ManagedFieldsEntry(entry.manager, rest, entry.time)
    return taken


def _cap(managed: Managed) -> None:
    """Too many updaters: the oldest are merged into one entry."""
    updaters = [entry for entry in managed.values() if entry.manager.operation == UPDATE]
    if len(updaters) <= MAX_UPDATERS:
        return
    updaters.sort(key=lambda entry: (entry.time or "", entry.manager.key))
    left, first = len(updaters), dict[str, ManagedFieldsEntry]()
    for entry in updaters:
        if left <= MAX_UPDATERS:
            return
        version = entry.manager.version
        if version not in first:
            first[version] = entry
            continue
        bucket = Manager(ANCIENT, UPDATE, version)
        have = managed.get(bucket.key)
        if have is None:
            have = managed.pop(first[version].manager.key)
        managed[bucket.key] = ManagedFieldsEntry(bucket, union(entry.fields, have.fields), entry.time)
        managed.pop(entry.manager.key, None)
        left -= 1


def applied(live: Obj, config: Obj, name: str, now: str, context: Context, *, force: bool) -> Obj:
    """The live object with a configuration applied by a manager. Raises for fields of other managers."""
    managed = read(live["metadata"])
    base = _bare(live)
    if not managed and base["metadata"].get("uid"):
        # Everything there was before the first apply belongs to a manager of its own.
        delta = compare(context.empty, base, context.shape)
        taken = difference(
            difference(union(delta.modified, delta.added), context.ignored, below=True), _NEVER
        )
        if taken:
            before = Manager(BEFORE_FIRST_APPLY, UPDATE, context.version, context.subresource)
            managed[before.key] = ManagedFieldsEntry(before, taken, now)
    out, after = _apply(base, dict(managed), config, name, context, force=force)
    key = Manager(name, APPLY, context.version, context.subresource).key
    changed = out is not None
    if key in after and changed:
        after[key].time = now
    result = dict(out if out is not None else base)
    result["metadata"] = dict(result["metadata"])
    if name == "kubectl" and (result["metadata"].get("annotations") or {}).get(LAST_APPLIED):
        result["metadata"]["annotations"] = {**result["metadata"]["annotations"], LAST_APPLIED: _last(config)}
    write(result["metadata"], after)
    return result


def _apply(
    base: Obj, managed: Managed, config: Obj, name: str, context: Context, *, force: bool
) -> tuple[Obj | None, Managed]:
    manager = Manager(name, APPLY, context.version, context.subresource)
    merged = merge(base, config, context.shape)
    last = managed.get(manager.key)
    config_fields = difference(fields_of(config, context.shape), context.ignored, below=True)
    own = ManagedFieldsEntry(manager, config_fields, last.time if last else None)
    managed[manager.key] = own
    if last is not None:
        merged = _pruned(merged, last.fields, managed, context)
    delta = compare(base, merged, context.shape)
    before = dict(managed)
    taken = _take_changed(managed, delta, context, but=manager.key)
    if taken and not force:
        allowed = _from_client_side(base, context) if name == "kubectl" else {}
        taken = {key: rest for key, fields in taken.items() if (rest := difference(fields, allowed))}
        if taken:
            raise _conflicts({before[key].manager: fields for key, fields in taken.items()})
    rest = difference(config_fields, _NEVER)
    if rest:
        managed[manager.key] = ManagedFieldsEntry(manager, rest, own.time)
    else:
        managed.pop(manager.key, None)
    same = merged == base
    if last is not None and same:
        return None, managed
    return (None if same else merged), managed


def _pruned(merged: Obj, last: Fields, managed: Managed, context: Context) -> Obj:
    """Without the fields that this manager no longer applies, unless another manager has them."""
    shape = context.shape
    last = with_named(last, shape)
    pruned = remove(merged, last, shape) or {}
    owned: Fields = {}
    for entry in managed.values():
        owned = union(owned, entry.fields)
    whole = with_named(fields_of(merged, shape), shape)
    keep = union(with_named(fields_of(pruned, shape), shape), with_named(owned, shape))
    pruned = remove(merged, difference(whole, keep), shape) or {}
    kept = with_named(fields_of(pruned, shape), shape)
    return remove(merged, intersection(difference(whole, kept), last), shape) or {}


def _from_client_side(base: Obj, context: Context) -> Fields:
    """The fields that client-side `kubectl apply` recorded as its own, as far as they still hold."""
    text = (base["metadata"].get("annotations") or {}).get(LAST_APPLIED)
    if not text:
        return {}
    try:
        recorded = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(recorded, dict) or recorded.get("apiVersion") != context.version:
        return {}
    delta = compare(recorded, base, context.shape)
    own = fields_of(recorded, context.shape)
    for gone in (delta.modified, delta.added, delta.removed):
        own = difference(own, gone)
    return own


def _last(config: Obj) -> str:
    meta = dict(config["metadata"])
    notes = {key: value for key, value in (meta.get("annotations") or {}).items() if key != LAST_APPLIED}
    meta.pop("annotations", None)
    if notes:
        meta["annotations"] = notes
    return orjson.dumps({**config, "metadata": meta}, option=orjson.OPT_SORT_KEYS).decode() + "\n"


def _conflicts(taken: dict[Manager, Fields]) -> StatusError:
    listed = [(_named(manager), path) for manager, fields in taken.items() for path in paths(fields)]
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": path}
        for manager, path in listed
    ]
    if len(listed) == 1:
        manager, path = listed[0]
        text = f"Apply failed with 1 conflict: conflict with {manager}: {path}"
    else:
        lines = []
        for manager in sorted({manager for manager, _ in listed}):
            lines += [
                f"conflicts with {manager}:",
                *(f"- {path}" for name, path in listed if name == manager),
            ]
        text = f"Apply failed with {len(listed)} conflicts: " + "\n".join(lines)
    return StatusError(409, "Conflict", text, details={"causes": causes})


def _named(manager: Manager) -> str:
    text = f'"{manager.name}"'
    if manager.subresource:
        text += f' with subresource "{manager.subresource}"'
    return f"{text} using {manager.version}" if manager.operation == UPDATE else text
