"""Services: an address that stays the same, made from the service's own id. Nothing routes to it here.

Rule: k8s.io/kubernetes/pkg/apis/core/v1 (defaults), pkg/registry/core/service/storage (allocation).
"""

from __future__ import annotations

import uuid

from local.kube.errors import FieldError, problem, supported
from local.kube.kind import KindRules
from local.kube.names import dns_1035_label
from local.kube.wire import Obj

_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_ADDRESSED = ("ClusterIP", "LoadBalancer", "NodePort")
_OUTSIDE = ("LoadBalancer", "NodePort")
# Objects of the API server itself: the range, and the Service that has its first address.
RANGE = "10.96.0.0/16"
KUBERNETES: Obj = {
    "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
    "spec": {
        "clusterIP": "10.96.0.1",
        "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
    },
}
_FIRST_PORT, _PORTS = 30_000, 2_768


def _default(obj: Obj) -> None:
    spec = obj["spec"]
    spec["sessionAffinity"] = spec.get("sessionAffinity") or "None"
    if spec["sessionAffinity"] == "ClientIP":
        spec.setdefault("sessionAffinityConfig", {"clientIP": {"timeoutSeconds": 10_800}})
    kind = spec["type"] = spec.get("type") or "ClusterIP"
    for port in spec.get("ports") or ():
        port["protocol"] = port.get("protocol") or "TCP"
        if port.get("targetPort") in (None, 0, ""):
            port["targetPort"] = port.get("port", 0)
    if kind in _OUTSIDE:
        spec["externalTrafficPolicy"] = spec.get("externalTrafficPolicy") or "Cluster"
    if kind in _ADDRESSED:
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)


def _create(obj: Obj) -> None:
    obj["status"] = {"loadBalancer": {}}
    _allocate(obj, obj["metadata"]["uid"])


def _allocate(obj: Obj, uid: str) -> None:
    spec = obj["spec"]
    if spec["type"] not in _ADDRESSED:
        return
    number = uuid.UUID(uid).int
    spec["clusterIP"] = spec.get("clusterIP") or f"10.96.{number >> 8 & 255}.{number & 255}"
    spec["clusterIPs"] = spec.get("clusterIPs") or [spec["clusterIP"]]
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    for i, port in enumerate(spec.get("ports") or ()):
        if spec["type"] in _OUTSIDE and not port.get("nodePort"):
            port["nodePort"] = _FIRST_PORT + (number + i) % _PORTS


def _update(obj: Obj, old: Obj) -> None:
    spec, was = obj["spec"], old.get("spec") or {}
    if spec["type"] in _ADDRESSED:
        for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if not spec.get(name) and was.get(name):
                spec[name] = was[name]
    _allocate(obj, old["metadata"]["uid"])


def _validate(obj: Obj) -> list[FieldError]:
    spec, out = obj["spec"], list[FieldError]()
    ports = spec.get("ports") or []
    if spec["type"] not in _TYPES:
        out.append(supported("spec.type", spec["type"], _TYPES))
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        out.append(problem("required", "spec.ports"))
    if spec["type"] == "ExternalName" and not spec.get("externalName"):
        out.append(problem("required", "spec.externalName", "must be specified for external name service"))
    for at, port in enumerate(ports):
        path, number = f"spec.ports[{at}]", port.get("port", 0)
        if len(ports) > 1 and not port.get("name"):
            out.append(problem("required", f"{path}.name"))
        if not 1 <= number <= 65_535:
            why = "must be between 1 and 65535, inclusive"
            out.append(problem("invalid", f"{path}.port", why, number))
    return out


def _validate_update(obj: Obj, old: Obj) -> list[FieldError]:
    now, was = obj["spec"].get("clusterIP"), (old.get("spec") or {}).get("clusterIP")
    if was and now != was and obj["spec"]["type"] in _ADDRESSED:
        return [problem("invalid", "spec.clusterIPs[0]", "may not change once set", now)]
    return []


RULES = KindRules(
    default=_default,
    create=_create,
    update=_update,
    validate=_validate,
    validate_update=_validate_update,
    name=dns_1035_label,
    returns_deleted=True,
    selectable={"spec.clusterIP": "spec.clusterIP", "spec.type": "spec.type"},
)
