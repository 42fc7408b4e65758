"""Delete and deletecollection: finalizers, grace, propagation, preconditions.

Order and rules: k8s.io/apiserver/pkg/registry/rest/delete.go and generic/registry/store.go (Delete).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from local.kube.admission import may_delete_namespace
from local.kube.errors import StatusError, conflict, not_found
from local.kube.finalize import mark
from local.kube.kinds import kind_of
from local.kube.options import ApiCall, DeleteOptions
from local.kube.resources import Resource
from local.kube.state import ApiState
from local.kube.store import Key
from local.kube.times import parse, stamp
from local.kube.webhooks import validating
from local.kube.wire import Obj

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"


@dataclass(frozen=True, slots=True)
class Deleted:
    """The result of a delete: the object as it is or was, and whether it is gone."""

    obj: Obj
    gone: bool

    def answer(self, resource: Resource) -> Obj:
        """The object, or a Status for kinds that answer their deletion with one."""
        if not self.gone or kind_of(resource).rules.returns_deleted:
            return resource.show(self.obj)
        meta = self.obj["metadata"]
        details = {**resource.subject.details(meta["name"]), "uid": meta["uid"]}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def delete(
    state: ApiState, resource: Resource, key: Key, options: DeleteOptions, *, call: ApiCall | None = None
) -> Deleted:
    """`call` is the request of a client, which webhooks review."""
    item = state.store.collection(resource.storage).items.get(key)
    if item is None:
        raise not_found(resource.subject, key[1])
    live = item.obj
    check_preconditions(resource, live, options)
    if call is not None:
        validating.validate(state, call, None, resource.show(live))
    if resource.storage == "namespaces.":
        may_delete_namespace(key[1])
        if not live["metadata"].get("deletionTimestamp") or (live.get("spec") or {}).get("finalizers"):
            return Deleted(mark(state, resource, key, live, options), False)
    graceful, pending, grace, until = _grace(state, resource, live, options)
    if pending:
        return Deleted(live, False)
    meta = dict(live["metadata"])
    finalizers = _finalizers(meta, resource, options)
    changed = set(finalizers) != set(meta.get("finalizers") or ())
    _set(meta, "finalizers", finalizers)
    if graceful:
        if not meta.get("deletionTimestamp") and meta.get("generation"):
            meta["generation"] += 1
        meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = until, grace
    elif finalizers:
        _mark(state, meta)
    if (graceful and (finalizers or grace > 0)) or (not graceful and finalizers):
        obj = {**live, "metadata": meta}
        if obj == live and not changed:
            return Deleted(live, False)
        if not options.dry_run:
            obj = state.put(resource, key, obj).obj
        return Deleted(obj, False)
    if options.dry_run:
        return Deleted(live if not graceful else {**live, "metadata": meta}, True)
    if graceful:
        # Like the real server, which first writes the zero grace period and then removes the object.
        state.put(resource, key, {**live, "metadata": meta})
    return Deleted(state.delete(resource, key).obj, True)


def _set(meta: Obj, name: str, value: Any) -> None:
    if value:
        meta[name] = value
    else:
        meta.pop(name, None)


def check_preconditions(resource: Resource, live: Obj, options: DeleteOptions) -> None:
    meta, subject = live["metadata"], type(resource.subject)(resource.group, resource.kind, resource.kind)
    if options.uid is not None and options.uid != meta["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({meta['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(subject, meta["name"], why)
    version = meta["resourceVersion"]
    if options.resource_version is not None and options.resource_version != version:
        why = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the "
            f"ResourceVersion in record ({version}). The object might have been modified"
        )
        raise conflict(subject, meta["name"], why)


def _grace(
    state: ApiState, resource: Resource, live: Obj, options: DeleteOptions
) -> tuple[bool, bool, int, str]:
    """(graceful, nothing left to do, seconds, until when)."""
    meta, now = live["metadata"], state.clock()
    if resource.storage != "pods.":
        return False, False, 0, ""
    requested = None if options.grace is None else 1 if options.grace < 0 else options.grace
    if meta.get("deletionTimestamp"):
        have = meta.get("deletionGracePeriodSeconds") or 0
        if not have:
            return False, False, 0, ""
        if requested is None or requested >= have:
            return False, True, have, ""
        at = parse(meta["deletionTimestamp"])
        assert at is not None
        until = at.timestamp() - have + requested
        if until < now:
            until, requested = now, 1 if requested else 0
        return True, False, requested, stamp(until)
    spec, phase = live.get("spec") or {}, (live.get("status") or {}).get("phase")
    grace = requested
    if grace is None:
        grace = spec.get("terminationGracePeriodSeconds")
        grace = 30 if grace is None else grace
    # Nothing runs: there is nothing to wait for.
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        grace = 0
    grace = 1 if grace < 0 else grace
    return True, False, grace, stamp(now + grace)


def _finalizers(meta: Obj, resource: Resource, options: DeleteOptions) -> list[str]:
    """The finalizers of the propagation policy, which a garbage collector removes."""
    have = list(meta.get("finalizers") or ())
    orphan = foreground = False
    if options.orphan is not None:
        orphan = options.orphan
    elif options.policy:
        orphan, foreground = options.policy == "Orphan", options.policy == "Foreground"
    else:
        first = next((name for name in have if name in (ORPHAN, FOREGROUND)), "")
        orphan, foreground = first == ORPHAN, first == FOREGROUND
        if not first:
            orphan = kind_of(resource).rules.orphans
    out = [name for name in have if name not in (ORPHAN, FOREGROUND)]
    after = out + [ORPHAN] * orphan + [FOREGROUND] * foreground
    return have if set(after) == set(have) else after


def _mark(state: ApiState, meta: Obj) -> None:
    now = stamp(state.clock())
    if not meta.get("deletionTimestamp") and meta.get("generation"):
        meta["generation"] += 1
    if not meta.get("deletionTimestamp") or meta["deletionTimestamp"] > now:
        meta["deletionTimestamp"] = now
    meta["deletionGracePeriodSeconds"] = 0


def delete_many(state: ApiState, call: ApiCall, options: DeleteOptions, keys: list[Key]) -> None:
    for key in keys:
        try:
            delete(state, call.target.resource, key, options, call=call)
        except StatusError as error:
            if error.code != 404:
                raise
