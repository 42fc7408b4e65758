"""The columns of storage, networking and roles.

Rule: k8s.io/kubernetes/pkg/printers/internalversion.
"""

from __future__ import annotations

from typing import Any

from local.kube.columns.base import Table, age_of, parts, selector, simple
from local.kube.wire import Obj

_BINDINGS = "Name, Role, Age, Users+, Groups+, ServiceAccounts+"


def _binding(obj: Obj, now: float) -> list[Any]:
    role, by_kind = obj.get("roleRef") or {}, dict[str, list[str]]()
    for subject in obj.get("subjects") or ():
        named = (
            f"{subject.get('namespace', '')}/{subject['name']}"
            if subject["kind"] == "ServiceAccount"
            else subject["name"]
        )
        by_kind.setdefault(subject["kind"], []).append(named)
    subjects = [", ".join(by_kind.get(kind, ())) for kind in ("User", "Group", "ServiceAccount")]
    return [obj["metadata"]["name"], f"{role.get('kind')}/{role.get('name')}", age_of(obj, now), *subjects]


def _volume(obj: Obj, now: float) -> list[Any]:
    name, spec, status = parts(obj)
    claim = spec.get("claimRef")
    return [
        name,
        (spec.get("capacity") or {}).get("storage", "0"),
        _modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName", "<unset>"),
        status.get("reason", ""),
        age_of(obj, now),
        spec.get("volumeMode", "<unset>"),
    ]


_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(modes: list[str] | None) -> str:
    return ",".join(_MODES[mode] for mode in _MODES if mode in (modes or ()))


def _claim(obj: Obj, now: float) -> list[Any]:
    name, spec, status = parts(obj)
    bound = bool(spec.get("volumeName"))
    return [
        name,
        "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", "0") if bound else "",
        _modes(status.get("accessModes")) if bound else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName", "<unset>"),
        age_of(obj, now),
        spec.get("volumeMode", "<unset>"),
    ]


_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def _storage_class(obj: Obj, now: float) -> list[Any]:
    default = (obj["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    return [
        obj["metadata"]["name"] + " (default)" * default,
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"),
        obj.get("allowVolumeExpansion", False),
        age_of(obj, now),
    ]


def _listed(values: list[str], total: int, empty: str) -> str:
    """The first three, and how many more there are."""
    shown = ",".join(values[:3])
    return (f"{shown} + {total - 3} more..." if total > 3 else shown) or empty


def _ingress(obj: Obj, now: float) -> list[Any]:
    name, spec, status = parts(obj)
    hosts, balancer = spec.get("rules") or [], (status.get("loadBalancer") or {}).get("ingress") or ()
    named = [item["host"] for item in hosts if item.get("host")]
    addresses = sorted({item.get("ip") or item.get("hostname", "") for item in balancer})
    return [
        name,
        spec.get("ingressClassName") or "<none>",
        _listed(named, len(hosts), "*"),
        ",".join(addresses),
        "80, 443" if spec.get("tls") else "80",
        age_of(obj, now),
    ]


def _slice(obj: Obj, now: float) -> list[Any]:
    ports = [str(item.get("port") or item.get("name") or "*") for item in obj.get("ports") or ()]
    addresses = [ip for item in obj.get("endpoints") or () for ip in item.get("addresses") or ()]
    shown = [_listed(values, len(values), "<unset>") for values in (ports, addresses)]
    return [obj["metadata"]["name"], obj.get("addressType", ""), *shown, age_of(obj, now)]


def _attachment(obj: Obj, now: float) -> list[Any]:
    name, spec, status = parts(obj)
    volume = (spec.get("source") or {}).get("persistentVolumeName", "")
    where = [spec.get("attacher", ""), volume, spec.get("nodeName", "")]
    return [name, *where, status.get("attached", False), age_of(obj, now)]


TABLE: Table = {
    "persistentvolumes.": (
        "Name, Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, VolumeAttributesClass, "
        "Reason, Age, VolumeMode+",
        _volume,
    ),
    "persistentvolumeclaims.": (
        "Name, Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age, VolumeMode+",
        _claim,
    ),
    "rolebindings.rbac.authorization.k8s.io": (_BINDINGS, _binding),
    "clusterrolebindings.rbac.authorization.k8s.io": (_BINDINGS, _binding),
    "storageclasses.storage.k8s.io": (
        "Name, Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age",
        _storage_class,
    ),
    "volumeattachments.storage.k8s.io": (
        "Name, Attacher:string:name, PV, Node, Attached:boolean, Age",
        _attachment,
    ),
    "csinodes.storage.k8s.io": (
        "Name, Drivers:integer, Age",
        simple(lambda o: len((o.get("spec") or {}).get("drivers") or ())),
    ),
    "ingresses.networking.k8s.io": ("Name, Class, Hosts, Address, Ports, Age", _ingress),
    "networkpolicies.networking.k8s.io": (
        "Name, Pod-Selector, Age",
        simple(lambda o: selector((o.get("spec") or {}).get("podSelector")) or "<none>"),
    ),
    "endpointslices.discovery.k8s.io": ("Name, AddressType, Ports, Endpoints, Age", _slice),
    "runtimeclasses.node.k8s.io": ("Name, Handler, Age", simple(lambda o: o.get("handler", ""))),
    "ingressclasses.networking.k8s.io": (
        "Name, Controller, Parameters, Age",
        lambda o, now: [
            o["metadata"]["name"],
            (o.get("spec") or {}).get("controller", ""),
            "<none>",
            age_of(o, now),
        ],
    ),
}
