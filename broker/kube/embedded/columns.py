"""The columns that people see of each built-in kind, and how a row is read from an object.

Rule: k8s.io/kubernetes/pkg/printers/internalversion. A kind that is not here shows its name and when it was
made. A name ends in `+` if the column is for wide output, and names its type after `:` if that is not string.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from .durations import age, span
from .wire import Obj

Cells = Callable[[Obj, float], list[Any]]


@dataclass(frozen=True, slots=True)
class Columns:
    definitions: tuple[Obj, ...]
    cells: Cells


def definition(name: str, kind: str = "string", *, form: str = "", text: str = "", priority: int = 0) -> Obj:
    return {"name": name, "type": kind, "format": form, "description": text, "priority": priority}


@cache
def of(storage: str) -> Columns:
    names, cells = _TABLE.get(storage, ("Name, Created At:date", _created))
    return Columns(tuple(_parse(name.strip()) for name in names.split(",")), cells)


def _parse(text: str) -> Obj:
    name, _, kind = text.partition(":")
    wide = name.endswith("+")
    name = name.removesuffix("+")
    return definition(name, kind or "string", form="name" * (name == "Name"), priority=int(wide))


def _meta(obj: Obj) -> tuple[str, Obj, Obj]:
    return obj["metadata"]["name"], obj.get("spec") or {}, obj.get("status") or {}


def _age(obj: Obj, now: float) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _created(obj: Obj, now: float) -> list[Any]:
    return [obj["metadata"]["name"], obj["metadata"].get("creationTimestamp")]


def _name_age(obj: Obj, now: float) -> list[Any]:
    return [obj["metadata"]["name"], _age(obj, now)]


def _pod(obj: Obj, now: float) -> list[Any]:
    from .podstatus import summary

    name, spec, status = _meta(obj)
    ready, reason, restarts = summary(obj, now)
    ips, gates = status.get("podIPs") or (), spec.get("readinessGates") or ()
    true = {one["type"] for one in status.get("conditions") or () if one.get("status") == "True"}
    met = sum(gate["conditionType"] in true for gate in gates)
    return [
        name,
        ready,
        reason,
        restarts,
        _age(obj, now),
        ips[0].get("ip") if ips else "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        f"{met}/{len(gates)}" if gates else "<none>",
    ]


_ROLE = "node-role.kubernetes.io/"


def _node(obj: Obj, now: float) -> list[Any]:
    name, spec, status = _meta(obj)
    ready = [one for one in status.get("conditions") or () if one.get("type") == "Ready"]
    state = ("Ready" if ready[-1].get("status") == "True" else "NotReady") if ready else "Unknown"
    if spec.get("unschedulable"):
        state += ",SchedulingDisabled"
    labels = obj["metadata"].get("labels") or {}
    roles = {key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE) and key != _ROLE}
    if labels.get("kubernetes.io/role"):
        roles.add(labels["kubernetes.io/role"])
    info = status.get("nodeInfo") or {}
    kernel = info.get("kernelVersion") or "<unknown>"
    if info.get("architecture"):
        kernel += f" ({info['architecture']})"
    return [
        name,
        state,
        ",".join(sorted(roles)) or "<none>",
        _age(obj, now),
        info.get("kubeletVersion", ""),
        _address(status, "InternalIP"),
        _address(status, "ExternalIP"),
        info.get("osImage") or "<unknown>",
        kernel,
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _address(status: Obj, kind: str) -> str:
    found = (one.get("address", "") for one in status.get("addresses") or () if one.get("type") == kind)
    return next(found, "<none>")


def _event(obj: Obj, now: float) -> list[Any]:
    first = age(obj.get("firstTimestamp") or obj.get("eventTime"), now)
    last = age(obj["lastTimestamp"], now) if obj.get("lastTimestamp") else first
    count, series = obj.get("count") or 1, obj.get("series")
    if series:
        last, count = age(series.get("lastObservedTime"), now), series.get("count", 0)
    about, source = obj.get("involvedObject") or {}, obj.get("source") or {}
    target = about.get("kind", "").lower()
    component = source.get("component") or obj.get("reportingComponent", "")
    instance = source.get("host") or obj.get("reportingInstance", "")
    return [
        last,
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{target}/{about['name']}" if about.get("name") else target,
        about.get("fieldPath", ""),
        f"{component}, {instance}" if instance else component,
        obj.get("message", "").strip(),
        first,
        count,
        obj["metadata"]["name"],
    ]


def _service(obj: Obj, now: float) -> list[Any]:
    name, spec, status = _meta(obj)
    kind, external = spec.get("type", ""), list(spec.get("externalIPs") or ())
    if kind == "LoadBalancer":
        balancer = (status.get("loadBalancer") or {}).get("ingress") or ()
        external = [one.get("ip") or one.get("hostname", "") for one in balancer] + external
    shown = ",".join(external) or ("<pending>" if kind == "LoadBalancer" else "<none>")
    if kind == "ExternalName":
        shown = spec.get("externalName", "")
    ports = ",".join(
        f"{one['port']}{':' + str(one['nodePort']) if one.get('nodePort') else ''}/{one.get('protocol', '')}"
        for one in spec.get("ports") or ()
    )
    ips = spec.get("clusterIPs") or ()
    return [
        name,
        kind,
        ips[0] if ips else "<none>",
        shown,
        ports or "<none>",
        _age(obj, now),
        pairs(spec.get("selector")),
    ]


def pairs(labels: Obj | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or "<none>"


def selector(value: Obj | None) -> str:
    """A LabelSelector as one line of text."""
    value = value or {}
    out = [f"{key}={one}" for key, one in sorted((value.get("matchLabels") or {}).items())]
    for term in value.get("matchExpressions") or ():
        key, values = term["key"], ",".join(term.get("values") or ())
        form = {"In": "{k} in ({v})", "NotIn": "{k} notin ({v})", "Exists": "{k}", "DoesNotExist": "!{k}"}
        out.append(form[term["operator"]].format(k=key, v=values))
    return ",".join(out)


def _containers(spec: Obj) -> list[str]:
    listed = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    return [",".join(one.get("name", "") for one in listed), ",".join(one.get("image", "") for one in listed)]


def _deployment(obj: Obj, now: float) -> list[Any]:
    name, spec, status = _meta(obj)
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    counts = [status.get("updatedReplicas", 0), status.get("availableReplicas", 0)]
    return [name, ready, *counts, _age(obj, now), *_containers(spec), selector(spec.get("selector"))]


def _replicaset(obj: Obj, now: float) -> list[Any]:
    name, spec, status = _meta(obj)
    counts = [spec.get("replicas", 0), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [name, *counts, _age(obj, now), *_containers(spec), selector(spec.get("selector")) or "<none>"]


def _statefulset(obj: Obj, now: float) -> list[Any]:
    name, spec, status = _meta(obj)
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}"
    return [name, ready, _age(obj, now), *_containers(spec)]


_DAEMONS = (
    "desiredNumberScheduled",
    "currentNumberScheduled",
    "numberReady",
    "updatedNumberScheduled",
    "numberAvailable",
)


def _daemonset(obj: Obj, now: float) -> list[Any]:
    name, spec, status = _meta(obj)
    nodes = ((spec.get("template") or {}).get("spec") or {}).get("nodeSelector")
    counts = [status.get(part, 0) for part in _DAEMONS]
    wide = [*_containers(spec), selector(spec.get("selector")) or "<none>"]
    return [name, *counts, pairs(nodes), _age(obj, now), *wide]


_JOB_STATES = (
    ("Complete", "Complete"),
    ("Failed", "Failed"),
    ("", "Terminating"),
    ("Suspended", "Suspended"),
    ("FailureTarget", "FailureTarget"),
    ("SuccessCriteriaMet", "SuccessCriteriaMet"),
)


def _job(obj: Obj, now: float) -> list[Any]:
    name, spec, status = _meta(obj)
    true = {one["type"] for one in status.get("conditions") or () if one.get("status") == "True"}
    if obj["metadata"].get("deletionTimestamp"):
        true.add("")
    state = next((text for kind, text in _JOB_STATES if kind in true), "Running")
    done, parallel = status.get("succeeded", 0), spec.get("parallelism") or 0
    wanted = str(spec["completions"]) if spec.get("completions") is not None else "1"
    if spec.get("completions") is None and parallel > 1:
        wanted += f" of {parallel}"
    took = span(status.get("startTime"), status.get("completionTime"), now)
    wide = [*_containers(spec), selector(spec.get("selector")) or "<none>"]
    return [name, state, f"{done}/{wanted}", took, _age(obj, now), *wide]


def _budget(obj: Obj, now: float) -> list[Any]:
    name, spec, status = _meta(obj)
    limits = [str(spec.get(part, "N/A")) for part in ("minAvailable", "maxUnavailable")]
    return [name, *limits, status.get("disruptionsAllowed", 0), _age(obj, now)]


def _quota(obj: Obj, now: float) -> list[Any]:
    name, _, status = _meta(obj)
    hard, used = status.get("hard") or {}, status.get("used") or {}
    text = {key: f"{key}: {used.get(key, '0')}/{hard[key]}" for key in sorted(hard)}
    requests = ", ".join(one for key, one in text.items() if not key.startswith("limits."))
    return [
        name,
        requests,
        ", ".join(one for key, one in text.items() if key.startswith("limits.")),
        _age(obj, now),
    ]


def _binding(obj: Obj, now: float) -> list[Any]:
    role, by_kind = obj.get("roleRef") or {}, dict[str, list[str]]()
    for one in obj.get("subjects") or ():
        named = (
            f"{one.get('namespace', '')}/{one['name']}" if one["kind"] == "ServiceAccount" else one["name"]
        )
        by_kind.setdefault(one["kind"], []).append(named)
    subjects = [", ".join(by_kind.get(kind, ())) for kind in ("User", "Group", "ServiceAccount")]
    return [obj["metadata"]["name"], f"{role.get('kind')}/{role.get('name')}", _age(obj, now), *subjects]


_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(modes: list[str] | None) -> str:
    return ",".join(_MODES[mode] for mode in _MODES if mode in (modes or ()))


def _volume(obj: Obj, now: float) -> list[Any]:
    name, spec, status = _meta(obj)
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
        _age(obj, now),
        spec.get("volumeMode", "<unset>"),
    ]


def _claim(obj: Obj, now: float) -> list[Any]:
    name, spec, status = _meta(obj)
    bound = bool(spec.get("volumeName"))
    return [
        name,
        "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", "0") if bound else "",
        _modes(status.get("accessModes")) if bound else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName", "<unset>"),
        _age(obj, now),
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
        _age(obj, now),
    ]


def _attachment(obj: Obj, now: float) -> list[Any]:
    name, spec, status = _meta(obj)
    volume = (spec.get("source") or {}).get("persistentVolumeName", "")
    where = [spec.get("attacher", ""), volume, spec.get("nodeName", "")]
    return [name, *where, status.get("attached", False), _age(obj, now)]


def _endpoints(obj: Obj, now: float) -> list[Any]:
    found = [
        f"{address['ip']}:{port['port']}"
        for subset in obj.get("subsets") or ()
        for port in subset.get("ports") or ()
        for address in subset.get("addresses") or ()
    ]
    shown = ",".join(found[:3]) + (f" + {len(found) - 3} more..." if len(found) > 3 else "")
    return [obj["metadata"]["name"], shown or "<none>", _age(obj, now)]


def _priority_class(obj: Obj, now: float) -> list[Any]:
    known = [obj.get("value", 0), obj.get("globalDefault", False)]
    return [obj["metadata"]["name"], *known, _age(obj, now), obj.get("preemptionPolicy", "")]


def _simple(read: Callable[[Obj], Any]) -> Cells:
    """A name, one thing more, and the age."""
    return lambda obj, now: [obj["metadata"]["name"], read(obj), _age(obj, now)]


_WORKLOAD = "Containers+, Images+, Selector+"
_BINDINGS = "Name, Role, Age, Users+, Groups+, ServiceAccounts+"
_TABLE: dict[str, tuple[str, Cells]] = {
    "pods.": (
        "Name, Ready, Status, Restarts, Age, IP+, Node+, Nominated Node+, Readiness Gates+",
        _pod,
    ),
    "nodes.": (
        "Name, Status, Roles, Age, Version, Internal-IP+, External-IP+, OS-Image+, Kernel-Version+, "
        "Container-Runtime+",
        _node,
    ),
    "events.": (
        "Last Seen, Type, Reason, Object, Subobject+, Source+, Message, First Seen+, Count+, Name+",
        _event,
    ),
    "namespaces.": ("Name, Status, Age", _simple(lambda o: (o.get("status") or {}).get("phase", ""))),
    "configmaps.": (
        "Name, Data, Age",
        _simple(lambda o: len(o.get("data") or ()) + len(o.get("binaryData") or ())),
    ),
    "secrets.": (
        "Name, Type, Data, Age",
        lambda o, now: [o["metadata"]["name"], o.get("type", ""), len(o.get("data") or ()), _age(o, now)],
    ),
    "serviceaccounts.": ("Name, Age", _name_age),
    "services.": ("Name, Type, Cluster-IP, External-IP, Port(s), Age, Selector+", _service),
    "endpoints.": ("Name, Endpoints, Age", _endpoints),
    "resourcequotas.": ("Name, Request, Limit, Age", _quota),
    "persistentvolumes.": (
        "Name, Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, VolumeAttributesClass, "
        "Reason, Age, VolumeMode+",
        _volume,
    ),
    "persistentvolumeclaims.": (
        "Name, Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age, VolumeMode+",
        _claim,
    ),
    "leases.coordination.k8s.io": (
        "Name, Holder, Age",
        _simple(lambda o: (o.get("spec") or {}).get("holderIdentity", "")),
    ),
    "priorityclasses.scheduling.k8s.io": (
        "Name, Value:integer, Global-Default:boolean, Age, PreemptionPolicy+",
        _priority_class,
    ),
    "poddisruptionbudgets.policy": (
        "Name, Min Available, Max Unavailable, Allowed Disruptions:integer, Age",
        _budget,
    ),
    "deployments.apps": (f"Name, Ready, Up-to-date, Available, Age, {_WORKLOAD}", _deployment),
    "replicasets.apps": (
        f"Name, Desired:integer, Current:integer, Ready:integer, Age, {_WORKLOAD}",
        _replicaset,
    ),
    "statefulsets.apps": ("Name, Ready, Age, Containers+, Images+", _statefulset),
    "daemonsets.apps": (
        "Name, Desired:integer, Current:integer, Ready:integer, Up-to-date:integer, Available:integer, "
        f"Node Selector, Age, {_WORKLOAD}",
        _daemonset,
    ),
    "jobs.batch": (f"Name, Status, Completions, Duration, Age, {_WORKLOAD}", _job),
    "rolebindings.rbac.authorization.k8s.io": (_BINDINGS, _binding),
    "clusterrolebindings.rbac.authorization.k8s.io": (_BINDINGS, _binding),
    "storageclasses.storage.k8s.io": (
        "Name, Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age",
        _storage_class,
    ),
    "volumeattachments.storage.k8s.io": ("Name, Attacher, PV, Node, Attached:boolean, Age", _attachment),
    "csinodes.storage.k8s.io": (
        "Name, Drivers:integer, Age",
        _simple(lambda o: len((o.get("spec") or {}).get("drivers") or ())),
    ),
    "ingressclasses.networking.k8s.io": (
        "Name, Controller, Parameters, Age",
        lambda o, now: [
            o["metadata"]["name"],
            (o.get("spec") or {}).get("controller", ""),
            "<none>",
            _age(o, now),
        ],
    ),
}
