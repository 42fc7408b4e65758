"""Conditions, finalizers and owner references, as the bodies that a patch needs.

Invariant: lastTransitionTime moves only with the status, unless the update has its own time. An unchanged
condition causes no write, so a steady cluster sees none. Rules:
https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#typical-status-properties
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from broker.apis.meta import LONGEST_MESSAGE, Condition, ConditionUpdate, Json, Object
from broker.text import format_time


def set_conditions(
    conditions: Iterable[Condition],
    *updates: ConditionUpdate,
    now: datetime,
    observed_generation: int | None = None,
    message_limit: int = LONGEST_MESSAGE,
) -> tuple[Condition, ...]:
    """The conditions with these set: each in its old place, or at the end.

    A longer message is cut: the API server would refuse the whole status.
    """
    result = tuple(conditions)
    for update in updates:
        message = update.message[:message_limit]
        old = next((item for item in result if item.type == update.type), None)
        known = old.last_transition_time if old is not None and old.status == update.status else None
        at = update.since.replace(microsecond=0) if update.since is not None else known
        desired = (update.reason, message, observed_generation, at)
        if old and known and (old.reason, old.message, old.observed_generation, known) == desired:
            continue
        new = Condition(
            type=update.type,
            status=update.status,
            reason=update.reason,
            message=message,
            last_transition_time=at or now.replace(microsecond=0),
            observed_generation=observed_generation,
        )
        result = tuple(new if item.type == new.type else item for item in result) + (() if old else (new,))
    return result


def remove_condition(conditions: Iterable[Condition], type: str) -> tuple[Condition, ...]:  # noqa: A002
    return tuple(item for item in conditions if item.type != type)


def condition_body(condition: Condition) -> Json:
    """A condition as it is sent: reason and message always there, times in whole seconds."""
    body: Json = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
    }
    if condition.last_transition_time is not None:
        body["lastTransitionTime"] = format_time(condition.last_transition_time)
    if condition.observed_generation is not None:
        body["observedGeneration"] = condition.observed_generation
    return body


def changed(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> bool:
    """Whether writing `new` would change any field in it; fields only in `old` belong to other writers."""
    return any(not _holds((old or {}).get(key), value) for key, value in new.items())


def _holds(old: Any, new: Any) -> bool:
    if old == new:
        return True
    if isinstance(old, Mapping) and isinstance(new, Mapping) and new:
        return not changed(old, new)
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(map(_holds, old, new))
    return _absent(old) and _absent(new)


def _absent(value: Any) -> bool:
    """null, an empty list and an empty object mean the same as no field at all."""
    return value is None or (isinstance(value, Mapping | list | tuple) and not value)


def add_finalizer(obj: Object, finalizer: str) -> Json | None:
    """A merge patch that puts the finalizer on, None where it is there; Conflict if the object changed."""
    if finalizer in obj.metadata.finalizers:
        return None
    return _finalizers(obj, [*obj.metadata.finalizers, finalizer])


def remove_finalizer(obj: Object, finalizer: str) -> Json | None:
    """A merge patch that takes the finalizer off, None where it is not there; Conflict as above."""
    if finalizer not in obj.metadata.finalizers:
        return None
    return _finalizers(obj, [item for item in obj.metadata.finalizers if item != finalizer])


def _finalizers(obj: Object, finalizers: list[str]) -> Json:
    # A merge patch replaces the list, so it must be of the version that the list was read from.
    return {"metadata": {"finalizers": finalizers, "resourceVersion": obj.metadata.resource_version}}


def owner_reference(owner: Object, *, controller: bool = True, block: bool = True) -> Json:
    """An entry of metadata.ownerReferences: the garbage collector deletes dependents without an owner."""
    return {
        "apiVersion": owner.KIND.api_version,
        "kind": owner.KIND.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": controller,
        "blockOwnerDeletion": block,
    }
