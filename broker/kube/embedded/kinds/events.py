"""Events, which two groups show under different names for the same fields.

Rule: k8s.io/kubernetes/pkg/apis/events/v1 (conversion), pkg/apis/core/validation/events.go.
"""

from __future__ import annotations

from ..errors import FieldError, problem
from ..names import dns_subdomain
from ..wire import Obj
from .base import Rules

# core/v1 → events.k8s.io/v1, where the two differ
_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_BACK = {new: old for old, new in _NAMES.items()}
_SELECTABLE = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "type",
)


def shown(obj: Obj) -> Obj:
    """A stored event as events.k8s.io/v1 shows it."""
    return {**{_NAMES.get(key, key): value for key, value in obj.items()}, "apiVersion": "events.k8s.io/v1"}


def stored(obj: Obj) -> Obj:
    """An event of events.k8s.io/v1 as core/v1 keeps it."""
    out = {_BACK.get(key, key): value for key, value in obj.items()}
    return {"source": {}, "firstTimestamp": None, "lastTimestamp": None, **out, "apiVersion": "v1"}


def _source(obj: Obj) -> str:
    found = (obj.get("source") or {}).get("component") or obj.get("reportingComponent", "")
    return str(found)


def _validate(obj: Obj) -> list[FieldError]:
    about, namespace = obj.get("involvedObject") or {}, obj["metadata"].get("namespace", "")
    wanted = about.get("namespace") or "default"
    if namespace != wanted:
        why = "does not match event.namespace"
        return [problem("invalid", "involvedObject.namespace", why, about.get("namespace", ""))]
    return []


def _validate_new_form(obj: Obj) -> list[FieldError]:
    out: list[FieldError] = []
    if not obj.get("eventTime"):
        out.append(problem("required", "eventTime"))
    for name in ("reportingController", "reportingInstance", "action", "reason"):
        if not obj.get(name):
            out.append(problem("required", name))
    if obj.get("type") not in ("Normal", "Warning"):
        out.append(problem("invalid", "type", 'has invalid value: ""', obj.get("type", "")))
    about = obj.get("regarding") or {}
    if obj["metadata"].get("namespace", "") != (about.get("namespace") or "default"):
        why = "does not match event.namespace"
        out.append(problem("invalid", "involvedObject.namespace", why, about.get("namespace", "")))
    return out


def _renamed(path: str) -> str:
    head, dot, rest = path.partition(".")
    return _NAMES.get(head, head) + dot + rest


CORE = Rules(
    validate=_validate,
    name=dns_subdomain,
    create_on_update=True,
    selectable={**{path: path for path in _SELECTABLE}, "source": _source},
)
NEW = Rules(
    validate_new=lambda obj, _: _validate_new_form(obj),
    create_on_update=True,
    selectable={_renamed(path): path for path in _SELECTABLE},
)
