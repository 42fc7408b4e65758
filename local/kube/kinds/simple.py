"""Kinds with a default or a check or two: secrets, priority classes, storage, roles, quotas.

Rule: k8s.io/kubernetes/pkg/apis (defaults and validation of each group).
"""

from __future__ import annotations

import base64

from local.kube.errors import FieldError, problem
from local.kube.kind import KindRules
from local.kube.names import dns_subdomain, path_segment
from local.kube.wire import Obj

_RBAC = "rbac.authorization.k8s.io"
_HIGHEST = 1_000_000_000
_SYSTEM = ("system-node-critical", "system-cluster-critical")
_SECRET_LIMIT = 1 << 20


def _secret(obj: Obj) -> None:
    given = obj.pop("stringData", None)
    if given:
        coded = {key: base64.b64encode(value.encode()).decode() for key, value in given.items()}
        obj["data"] = {**(obj.get("data") or {}), **coded}
    obj["type"] = obj.get("type") or "Opaque"


def _secret_problems(obj: Obj) -> list[FieldError]:
    if sum(len(value or "") * 3 // 4 for value in (obj.get("data") or {}).values()) > _SECRET_LIMIT:
        return [problem("too_long", "data", f"may not be more than {_SECRET_LIMIT} bytes")]
    return []


def _secret_update(obj: Obj, old: Obj) -> list[FieldError]:
    out: list[FieldError] = []
    if obj.get("type") != old.get("type"):
        out.append(problem("invalid", "type", "field is immutable", obj.get("type", "")))
    if old.get("immutable"):
        if not obj.get("immutable"):
            out.append(problem("forbidden", "immutable", "field is immutable when `immutable` is set"))
        if obj.get("data") != old.get("data"):
            out.append(problem("forbidden", "data", "field is immutable when `immutable` is set"))
    return out


def _priority_class(obj: Obj) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _priority_problems(obj: Obj) -> list[FieldError]:
    name, value = obj["metadata"].get("name", ""), obj.get("value", 0)
    if name.startswith("system-") and name not in _SYSTEM:
        why = "priority class names with 'system-' prefix are reserved for system use only"
        return [problem("forbidden", "metadata.name", why)]
    if value > _HIGHEST and name not in _SYSTEM:
        why = f"maximum allowed value of a user defined priority is {_HIGHEST}"
        return [problem("forbidden", "value", why)]
    return []


def _priority_update(obj: Obj, old: Obj) -> list[FieldError]:
    fixed = ("value", "preemptionPolicy")
    changed = [name for name in fixed if obj.get(name) != old.get(name)]
    return [problem("forbidden", name, "may not be changed in an update.") for name in changed]


def _storage_class(obj: Obj) -> None:
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


def _volume(obj: Obj) -> None:
    spec: Obj = obj["spec"]
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")
    if isinstance(spec.get("hostPath"), dict):
        spec["hostPath"].setdefault("type", "")
    status = obj["status"] = obj.get("status") or {}
    status.setdefault("phase", "Pending")


def _claim(obj: Obj) -> None:
    obj["spec"].setdefault("volumeMode", "Filesystem")
    status = obj["status"] = obj.get("status") or {}
    status.setdefault("phase", "Pending")


def _pending(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending"}


def _new_volume(obj: Obj) -> None:
    since = obj["metadata"]["creationTimestamp"]
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": since}


def _no_status(obj: Obj) -> None:
    obj["status"] = {}


def _role_binding(obj: Obj) -> None:
    role = obj.setdefault("roleRef", {})
    role["apiGroup"] = role.get("apiGroup") or _RBAC
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = subject.get("apiGroup") or _RBAC


def _same_role(obj: Obj, old: Obj) -> list[FieldError]:
    if obj.get("roleRef") != old.get("roleRef"):
        return [problem("invalid", "roleRef", "cannot change roleRef", obj.get("roleRef"))]
    return []


def _limits(obj: Obj) -> None:
    """A container's default limit is its maximum; its default request is its limit."""
    for item in (obj.get("spec") or {}).get("limits") or ():
        if item.get("type") != "Container":
            continue
        default = {**(item.get("max") or {}), **(item.get("default") or {})}
        request = {**(item.get("min") or {}), **default, **(item.get("defaultRequest") or {})}
        item.update({name: it for name, it in (("default", default), ("defaultRequest", request)) if it})


def _policy(obj: Obj) -> None:
    spec: Obj = obj["spec"]
    spec["policyTypes"] = spec.get("policyTypes") or ["Ingress"] + ["Egress"] * bool(spec.get("egress"))


def _no_balancer(obj: Obj) -> None:
    obj["status"] = {"loadBalancer": {}}


def _endpoints(obj: Obj) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            port["protocol"] = port.get("protocol") or "TCP"


_BINDING = KindRules(default=_role_binding, validate_update=_same_role, name=path_segment)
_ROLE = KindRules(name=path_segment)
_COUNTED = KindRules(create=_no_status, generation=True)
RULES: dict[str, KindRules] = {
    "secrets.": KindRules(
        default=_secret,
        validate=_secret_problems,
        validate_update=_secret_update,
        selectable={"type": "type"},
    ),
    "serviceaccounts.": KindRules(returns_deleted=True),
    "resourcequotas.": KindRules(create=_no_status, returns_deleted=True),
    "endpoints.": KindRules(default=_endpoints, create_on_update=True),
    "persistentvolumes.": KindRules(default=_volume, create=_new_volume, returns_deleted=True),
    "persistentvolumeclaims.": KindRules(default=_claim, create=_pending, returns_deleted=True),
    "limitranges.": KindRules(default=_limits),
    "priorityclasses.scheduling.k8s.io": KindRules(
        default=_priority_class,
        validate=_priority_problems,
        validate_update=_priority_update,
        generation=True,
        name=dns_subdomain,
    ),
    "storageclasses.storage.k8s.io": KindRules(default=_storage_class, returns_deleted=True),
    "volumeattachments.storage.k8s.io": KindRules(returns_deleted=True),
    "csinodes.storage.k8s.io": KindRules(returns_deleted=True),
    "csidrivers.storage.k8s.io": KindRules(returns_deleted=True),
    f"roles.{_RBAC}": _ROLE,
    f"clusterroles.{_RBAC}": _ROLE,
    f"rolebindings.{_RBAC}": _BINDING,
    f"clusterrolebindings.{_RBAC}": _BINDING,
    "ingresses.networking.k8s.io": KindRules(create=_no_balancer, generation=True),
    "networkpolicies.networking.k8s.io": KindRules(default=_policy, generation=True),
    "ingressclasses.networking.k8s.io": KindRules(generation=True),
    "endpointslices.discovery.k8s.io": KindRules(generation=True),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": KindRules(generation=True),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": KindRules(generation=True),
    "validatingadmissionpolicies.admissionregistration.k8s.io": _COUNTED,
    "flowschemas.flowcontrol.apiserver.k8s.io": _COUNTED,
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": _COUNTED,
}
