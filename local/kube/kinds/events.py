"""Events, which two groups show under different names for the same fields.

Rule: k8s.io/kubernetes/pkg/apis/events/v1 (conversion), pkg/apis/core/validation/events.go.
"""

from __future__ import annotations

from local.kube.errors import FieldError, problem
from local.kube.kind import KindRules
from local.kube.names import dns_subdomain, qualified
from local.kube.wire import Obj

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
    component = (obj.get("source") or {}).get("component") or obj.get("reportingComponent", "")
    return str(component)


_LENGTHS = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}


def _common(obj: Obj, controller: str) -> list[FieldError]:
    """Checks of both forms; an event without an eventTime is of the old kind, with few required fields."""
    namespace, timed = obj["metadata"].get("namespace", ""), bool(obj.get("eventTime"))
    about, out = (obj.get("involvedObject") or {}).get("namespace", ""), list[FieldError]()
    free = ("default", "kube-system") if timed else ("default",)
    if namespace not in free if not about else not timed and namespace != about:
        out.append(problem("invalid", "involvedObject.namespace", "does not match event.namespace", about))
    if not timed:
        return out
    reporter = obj.get("reportingComponent", "")
    if not reporter:
        out.append(problem("required", controller))
    out += [problem("invalid", controller, why, reporter) for why in qualified(reporter)]
    for name, most in _LENGTHS.items():
        value = obj.get(name, "")
        if not value and name != "message":
            out.append(problem("required", name))
        if len(value.encode()) > most:
            out.append(problem("invalid", name, f"can have at most {most} characters", value))
    return out


def _validate(obj: Obj) -> list[FieldError]:
    return _common(obj, "reportingComponent")


_UNSET = ("firstTimestamp", "lastTimestamp", "count", "source")


def _validate_new_form(shown: Obj) -> list[FieldError]:
    obj = stored(shown)
    out = _common(obj, "reportingController")
    if not obj.get("eventTime"):
        out.append(problem("required", "eventTime"))
    if obj.get("type") not in ("Normal", "Warning"):
        out.append(problem("invalid", "type", f"has invalid value: {obj.get('type', '')}", ""))
    return out + [problem("invalid", name, "needs to be unset", "") for name in _UNSET if obj.get(name)]


_FIXED = (
    *("involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count"),
    *("reason", "type", "eventTime", "action", "related", "reportingController", "reportingInstance"),
)


def _validate_update(shown: Obj, before: Obj) -> list[FieldError]:
    """The event itself is immutable; only its count may change."""
    now, was = stored(shown), stored(before)
    out = _common(now, "reportingController")
    for name in _FIXED:
        key = _BACK.get(name, name)
        if now.get(key) != was.get(key):
            out.append(problem("invalid", name, "field is immutable", now.get(key, "")))
    return out


def _renamed(path: str) -> str:
    head, dot, rest = path.partition(".")
    return _NAMES.get(head, head) + dot + rest


CORE = KindRules(
    validate=_validate,
    name=dns_subdomain,
    create_on_update=True,
    selectable={**{path: path for path in _SELECTABLE}, "source": _source},
)
NEW = KindRules(
    validate_new=lambda obj, _: _validate_new_form(obj),
    validate_update=_validate_update,
    create_on_update=True,
    selectable={_renamed(path): path for path in _SELECTABLE},
)
