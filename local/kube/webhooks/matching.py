"""The webhooks that match a request.

Rule: k8s.io/apiserver/pkg/admission/plugin/webhook/predicates. One thing is simpler here: a rule means the
versions that it names, matchPolicy Equivalent is Exact.
"""

from __future__ import annotations

from collections.abc import Iterator

from local.kube.options import ApiCall
from local.kube.selectors import matches
from local.kube.state import ApiState
from local.kube.wire import Obj

GROUP = "admissionregistration.k8s.io"
STORAGE = f"validatingwebhookconfigurations.{GROUP}"
# A webhook must not prevent the repair of its own configuration.
_EXEMPT = frozenset({STORAGE, f"mutatingwebhookconfigurations.{GROUP}"})
# Writes through other subresources have kinds of their own, or come from the server itself.
_REVIEWED = frozenset({"", "status"})


def matching_hooks(
    state: ApiState, call: ApiCall, operation: str, new: Obj | None, old: Obj | None
) -> list[Obj]:
    """The webhooks in the order of their configurations' names."""
    target = call.target
    if target.subresource not in _REVIEWED or target.resource.storage in _EXEMPT:
        return []
    return [
        hook
        for hook in _all(state)
        if any(_rule(rule, call, operation) for rule in hook.get("rules") or ())
        and _namespace(state, hook, call, new, old)
        and any(
            matches(hook.get("objectSelector") or {}, _labels(version)) for version in (new, old) if version
        )
    ]


def any_at_all(state: ApiState) -> bool:
    return bool(state.store.collection(STORAGE).items)


def _all(state: ApiState) -> Iterator[Obj]:
    for item in state.store.collection(STORAGE).items.values():
        yield from item.obj.get("webhooks") or ()


def _rule(rule: Obj, call: ApiCall, operation: str) -> bool:
    resource = call.target.resource
    scope = rule.get("scope") or "*"
    return (
        _one_of(rule.get("operations"), operation)
        and _one_of(rule.get("apiGroups"), resource.group)
        and _one_of(rule.get("apiVersions"), resource.version)
        and scope in ("*", "Namespaced" if resource.namespaced else "Cluster")
        and any(_resource(resource, call) for resource in rule.get("resources") or ())
    )


def _one_of(given: list[str] | None, value: str) -> bool:
    return given is not None and ("*" in given or value in given)


def _resource(pattern: str, call: ApiCall) -> bool:
    """`pods`, `pods/status`, `pods/*`, `*/status`, `*`, `*/*`; without a slash no subresource is meant."""
    name, slash, sub = pattern.partition("/")
    plural, subresource = call.target.resource.plural, call.target.subresource
    return name in ("*", plural) and (sub in ("*", subresource) if slash else not subresource)


def _namespace(state: ApiState, hook: Obj, call: ApiCall, new: Obj | None, old: Obj | None) -> bool:
    """Matches the namespace's labels; a namespace has its own. Others without a namespace match always."""
    selector = hook.get("namespaceSelector") or {}
    resource = call.target.resource
    if resource.storage == "namespaces.":
        labeled = new or old
    elif resource.namespaced:
        labeled = state.get("namespaces.", "", call.target.namespace)
    else:
        return True
    return labeled is None or matches(selector, _labels(labeled))


def _labels(obj: Obj) -> dict[str, str]:
    labels: dict[str, str] = obj["metadata"].get("labels") or {}
    return labels
