"""Kubernetes' default admission: changes objects on their way in, after their managers are recorded.

Namespaces must be there and live, pods get their priority and the tolerations that give nodes five minutes.
Rule: https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/ (NamespaceLifecycle,
Priority, DefaultTolerationSeconds). Quotas and limit ranges are stored, not enforced.
"""

from __future__ import annotations

from local.kube.errors import ErrorSubject, forbidden, not_found
from local.kube.options import ApiCall
from local.kube.state import ApiState
from local.kube.wire import Obj

_NAMESPACE = ErrorSubject("", "namespaces", "Namespace")
_IMMORTAL = frozenset({"default", "kube-system", "kube-public"})
_GRACE_SECONDS = 300
_WAITED_FOR = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_PODS = "pods."
# Storage in use stays until a controller removes this finalizer.
_PROTECTED = {
    "persistentvolumes.": "kubernetes.io/pv-protection",
    "persistentvolumeclaims.": "kubernetes.io/pvc-protection",
}
# Reviews are answered in every namespace.
_ANYWHERE = frozenset({"localsubjectaccessreviews", "subjectaccessreviews", "selfsubjectaccessreviews"})


def admit(state: ApiState, call: ApiCall, obj: Obj, old: Obj | None) -> Obj:
    """Changes `obj` in place where admission does; raises where it refuses."""
    resource = call.target.resource
    if resource.namespaced and resource.plural not in _ANYWHERE:
        _live_namespace(state, call, obj, old)
    if (protection := _PROTECTED.get(resource.storage)) and old is None:
        meta = obj["metadata"]
        meta["finalizers"] = list(dict.fromkeys([*(meta.get("finalizers") or ()), protection]))
    if resource.storage == _PODS and not call.target.subresource:
        _priority(state, call, obj, old)
        _tolerations(obj)
    return obj


def _live_namespace(state: ApiState, call: ApiCall, obj: Obj, old: Obj | None) -> None:
    name = call.target.namespace
    namespace = state.get("namespaces.", "", name)
    if namespace is None:
        raise not_found(_NAMESPACE, name)
    if old is None and namespace["metadata"].get("deletionTimestamp"):
        causes = [
            {
                "reason": "NamespaceTerminating",
                "message": f"namespace {name} is being terminated",
                "field": "metadata.namespace",
            }
        ]
        why = f"unable to create new content in namespace {name} because it is being terminated"
        object_name = obj["metadata"].get("name") or obj["metadata"].get("generateName", "")
        raise forbidden(call.target.resource.subject, object_name, why, causes=causes)


def may_delete_namespace(name: str) -> None:
    if name in _IMMORTAL:
        raise forbidden(_NAMESPACE, name, "this namespace may not be deleted")


def _priority(state: ApiState, call: ApiCall, obj: Obj, old: Obj | None) -> None:
    spec = obj.setdefault("spec", {})
    if old is not None:
        was = old.get("spec") or {}
        for name in ("priority", "preemptionPolicy"):
            if spec.get(name) is None and was.get(name) is not None:
                spec[name] = was[name]
        return
    meta = obj["metadata"]
    subject, object_name = call.target.resource.subject, meta.get("name") or meta.get("generateName", "")
    name = spec.get("priorityClassName")
    priority_class = (
        state.get("priorityclasses.scheduling.k8s.io", "", name) if name else _default_class(state)
    )
    if name and priority_class is None:
        raise forbidden(subject, object_name, f"no PriorityClass with name {name} was found")
    value = priority_class.get("value", 0) if priority_class else 0
    policy = (priority_class or {}).get("preemptionPolicy", "PreemptLowerPriority")
    if not name and priority_class is not None:
        spec["priorityClassName"] = priority_class["metadata"]["name"]
    for part, computed in (("priority", value), ("preemptionPolicy", policy)):
        if spec.get(part) is not None and spec[part] != computed:
            shown = "integer value of priority" if part == "priority" else "string value of PreemptionPolicy"
            why = (
                f"the {shown} ({spec[part]}) must not be provided in pod spec; priority admission controller "
                f"computed {computed} from the given PriorityClass name"
            )
            raise forbidden(subject, object_name, why)
        spec[part] = computed


def _default_class(state: ApiState) -> Obj | None:
    items = state.store.collection("priorityclasses.scheduling.k8s.io").items.values()
    defaults = [item.obj for item in items if item.obj.get("globalDefault")]
    return min(defaults, key=lambda priority_class: priority_class.get("value", 0), default=None)


def _tolerations(obj: Obj) -> None:
    """A pod stays on a lost node for five minutes, unless its tolerations differ."""
    spec = obj.get("spec")
    if spec is None:
        return
    given = spec.get("tolerations") or []
    for key in _WAITED_FOR:
        tolerated = any(
            toleration.get("key", "") in (key, "") and toleration.get("effect", "") in ("NoExecute", "")
            for toleration in given
        )
        if not tolerated:
            wait = {
                "key": key,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": _GRACE_SECONDS,
            }
            given = [*given, wait]
            spec["tolerations"] = given
