"""The columns of pods, nodes and related kinds.

Rule: k8s.io/kubernetes/pkg/printers/internalversion.
"""

from __future__ import annotations

from typing import Any

from local.kube.columns.base import Table, age_of, name_and_age, pairs, parts, simple
from local.kube.durations import age
from local.kube.podstatus import summary
from local.kube.wire import Obj


def _pod(obj: Obj, now: float) -> list[Any]:
    name, spec, status = parts(obj)
    ready, reason, restarts = summary(obj, now)
    ips, gates = status.get("podIPs") or (), spec.get("readinessGates") or ()
    true = {
        condition["type"] for condition in status.get("conditions") or () if condition.get("status") == "True"
    }
    met = sum(gate["conditionType"] in true for gate in gates)
    return [
        name,
        ready,
        reason,
        restarts,
        age_of(obj, now),
        ips[0].get("ip") if ips else "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        f"{met}/{len(gates)}" if gates else "<none>",
    ]


_ROLE = "node-role.kubernetes.io/"


def _node(obj: Obj, now: float) -> list[Any]:
    name, spec, status = parts(obj)
    ready = [condition for condition in status.get("conditions") or () if condition.get("type") == "Ready"]
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
        age_of(obj, now),
        info.get("kubeletVersion", ""),
        _address(status, "InternalIP"),
        _address(status, "ExternalIP"),
        info.get("osImage") or "<unknown>",
        kernel,
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _address(status: Obj, kind: str) -> str:
    addresses = (
        address.get("address", "") for address in status.get("addresses") or () if address.get("type") == kind
    )
    return next(addresses, "<none>")


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
    name, spec, status = parts(obj)
    kind, external = spec.get("type", ""), list(spec.get("externalIPs") or ())
    if kind == "LoadBalancer":
        balancer = (status.get("loadBalancer") or {}).get("ingress") or ()
        external = [item.get("ip") or item.get("hostname", "") for item in balancer] + external
    shown = ",".join(external) or ("<pending>" if kind == "LoadBalancer" else "<none>")
    if kind == "ExternalName":
        shown = spec.get("externalName", "")
    ports = ",".join(
        f"{p['port']}{':' + str(p['nodePort']) if p.get('nodePort') else ''}/{p.get('protocol', '')}"
        for p in spec.get("ports") or ()
    )
    ips = spec.get("clusterIPs") or ()
    return [
        name,
        kind,
        ips[0] if ips else "<none>",
        shown,
        ports or "<none>",
        age_of(obj, now),
        pairs(spec.get("selector")),
    ]


def _quota(obj: Obj, now: float) -> list[Any]:
    name, _, status = parts(obj)
    hard, used = status.get("hard") or {}, status.get("used") or {}
    text = {key: f"{key}: {used.get(key, '0')}/{hard[key]}" for key in sorted(hard)}
    requests = ", ".join(usage for key, usage in text.items() if not key.startswith("limits."))
    return [
        name,
        requests,
        ", ".join(usage for key, usage in text.items() if key.startswith("limits.")),
        age_of(obj, now),
    ]


def _endpoints(obj: Obj, now: float) -> list[Any]:
    addresses = [
        f"{address['ip']}:{port['port']}"
        for subset in obj.get("subsets") or ()
        for port in subset.get("ports") or ()
        for address in subset.get("addresses") or ()
    ]
    shown = ",".join(addresses[:3]) + (f" + {len(addresses) - 3} more..." if len(addresses) > 3 else "")
    return [obj["metadata"]["name"], shown or "<none>", age_of(obj, now)]


def _priority_class(obj: Obj, now: float) -> list[Any]:
    known = [obj.get("value", 0), obj.get("globalDefault", False)]
    return [obj["metadata"]["name"], *known, age_of(obj, now), obj.get("preemptionPolicy", "")]


TABLE: Table = {
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
    "namespaces.": ("Name, Status, Age", simple(lambda o: (o.get("status") or {}).get("phase", ""))),
    "configmaps.": (
        "Name, Data, Age",
        simple(lambda o: len(o.get("data") or ()) + len(o.get("binaryData") or ())),
    ),
    "secrets.": (
        "Name, Type, Data, Age",
        lambda o, now: [o["metadata"]["name"], o.get("type", ""), len(o.get("data") or ()), age_of(o, now)],
    ),
    "serviceaccounts.": ("Name, Age", name_and_age),
    "services.": ("Name, Type, Cluster-IP, External-IP, Port(s), Age, Selector+", _service),
    "endpoints.": ("Name, Endpoints, Age", _endpoints),
    "resourcequotas.": ("Name, Request, Limit, Age", _quota),
    "leases.coordination.k8s.io": (
        "Name, Holder, Age",
        simple(lambda o: (o.get("spec") or {}).get("holderIdentity", "")),
    ),
    "priorityclasses.scheduling.k8s.io": (
        "Name, Value:integer, Global-Default:boolean, Age, PreemptionPolicy",
        _priority_class,
    ),
}
