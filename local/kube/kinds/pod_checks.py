"""Checks of a pod's spec: the part of Kubernetes's validation that schedulers and nodes rely on.

Rule: k8s.io/kubernetes/pkg/apis/core/validation (ValidatePodSpec), in its order. Volumes, affinity, probes
and security contexts are kept as they come.
"""

from __future__ import annotations

import re

from local.kube.errors import FieldError, problem, supported
from local.kube.kinds.checks import MAX_INT32, label_name, resource_value, taint_effect
from local.kube.names import dns_label, dns_subdomain, label_value, labels
from local.kube.quantity import amount
from local.kube.wire import Obj

_PORT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_POLICIES = {
    "restartPolicy": ["Always", "OnFailure", "Never"],
    "dnsPolicy": ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
}
_STANDARD = ("cpu", "memory", "ephemeral-storage")
_OVERCOMMIT = ("cpu", "memory", "ephemeral-storage")


def spec_problems(spec: Obj) -> list[FieldError]:
    containers, first = spec.get("containers") or [], spec.get("initContainers") or []
    out: list[FieldError] = []
    if not containers:
        out.append(problem("required", "spec.containers"))
    taken: set[str] = set()
    for at, container in enumerate(containers):
        out += _container(container, f"spec.containers[{at}]", taken)
    taken_first = set(taken)
    for at, container in enumerate(first):
        out += _container(container, f"spec.initContainers[{at}]", taken_first)
    out += _one_of(spec, "restartPolicy") + _one_of(spec, "dnsPolicy")
    out += labels(spec.get("nodeSelector") or {}, "spec.nodeSelector")
    out += gates(spec.get("schedulingGates") or [])
    for name, check in (("serviceAccountName", dns_subdomain), ("nodeName", dns_subdomain)):
        out += [problem("invalid", f"spec.{name}", why, spec[name]) for why in check(spec.get(name) or "a")]
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= MAX_INT32:
        why = f"must be between 1 and {MAX_INT32}, inclusive"
        out.append(problem("invalid", "spec.activeDeadlineSeconds", why, deadline))
    for name in ("hostname", "subdomain"):
        out += [
            problem("invalid", f"spec.{name}", why, spec[name]) for why in dns_label(spec.get(name) or "a")
        ]
    out += tolerations(spec.get("tolerations") or [])
    out += [
        problem("invalid", "spec.priorityClassName", why, spec["priorityClassName"])
        for why in dns_subdomain(spec.get("priorityClassName") or "a")
    ]
    policy = spec.get("preemptionPolicy")
    if policy is not None and policy not in ("PreemptLowerPriority", "Never"):
        out.append(supported("spec.preemptionPolicy", policy, ["PreemptLowerPriority", "Never"]))
    return out + _spaces(containers, "containers") + _spaces(first, "initContainers")


def _spaces(containers: list[Obj], name: str) -> list[FieldError]:
    why = "must not have leading or trailing whitespace"
    return [
        problem("invalid", f"spec.{name}[{at}].image", why, container["image"])
        for at, container in enumerate(containers)
        if container.get("image", "") != container.get("image", "").strip()
    ]


def _one_of(spec: Obj, name: str) -> list[FieldError]:
    value, values = spec.get(name) or "", _POLICIES[name]
    return [] if value in values else [supported(f"spec.{name}", value, values)]


def _container(container: Obj, path: str, taken: set[str]) -> list[FieldError]:
    name, out = container.get("name", ""), list[FieldError]()
    if not name:
        out.append(problem("required", f"{path}.name"))
    else:
        out += [problem("invalid", f"{path}.name", why, name) for why in dns_label(name)]
    if not container.get("image"):
        out.append(problem("required", f"{path}.image"))
    policy = container.get("terminationMessagePolicy", "")
    if policy not in ("File", "FallbackToLogsOnError"):
        out.append(supported(f"{path}.terminationMessagePolicy", policy, ["File", "FallbackToLogsOnError"]))
    out += _ports(container.get("ports") or [], f"{path}.ports")
    pull = container.get("imagePullPolicy", "")
    if pull not in ("Always", "IfNotPresent", "Never"):
        out.append(supported(f"{path}.imagePullPolicy", pull, ["Always", "IfNotPresent", "Never"]))
    out += _resources(container.get("resources") or {}, f"{path}.resources")
    if name in taken:
        out.append(problem("duplicate", f"{path}.name", "", name))
    taken.add(name)
    return out


def _ports(ports: list[Obj], path: str) -> list[FieldError]:
    out, taken = list[FieldError](), set[str]()
    for at, port in enumerate(ports):
        here, name = f"{path}[{at}]", port.get("name", "")
        if name and wrong_port_name(name):
            out += [problem("invalid", f"{here}.name", why, name) for why in wrong_port_name(name)]
        elif name in taken:
            out.append(problem("duplicate", f"{here}.name", "", name))
        taken |= {name} - {""}
        for part in ("containerPort", "hostPort"):
            number = port.get(part) or 0
            if not number and part == "containerPort":
                out.append(problem("required", f"{here}.{part}"))
            elif number and not 1 <= number <= 65535:
                why = "must be between 1 and 65535, inclusive"
                out.append(problem("invalid", f"{here}.{part}", why, number))
        if port.get("protocol") not in ("SCTP", "TCP", "UDP"):
            out.append(supported(f"{here}.protocol", port.get("protocol", ""), ["SCTP", "TCP", "UDP"]))
    return out


def wrong_port_name(name: str) -> list[str]:
    out = ["must be no more than 15 characters"] if len(name) > 15 else []
    if not re.fullmatch(r"[-a-z0-9]+", name):
        out.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search(r"[a-z]", name):
        out.append("must contain at least one letter (a-z)")
    if "--" in name:
        out.append("must not contain consecutive hyphens")
    if name.startswith("-") or name.endswith("-"):
        out.append("must not begin or end with a hyphen")
    return out


def _resources(resources: Obj, path: str) -> list[FieldError]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    out: list[FieldError] = []
    for part, values in (("limits", limits), ("requests", requests)):
        for name, quantity in sorted(values.items()):
            here = f"{path}.{part}[{name}]"
            out += _resource_name(name, here) + resource_value(name, quantity, here)
            if part == "requests":
                out += _fits(name, quantity, limits, path)
    return out


def _fits(name: str, quantity: str, limits: Obj, path: str) -> list[FieldError]:
    shared = name in _OVERCOMMIT
    if name not in limits:
        why = "Limit must be set for non overcommitable resources"
        return [] if shared else [problem("required", f"{path}.limits", why)]
    requested, limit = amount(str(quantity)), amount(str(limits[name]))
    if requested is None or limit is None or requested == limit or (shared and requested < limit):
        return []
    how = "less than or equal" if shared else "equal"
    return [
        problem("invalid", f"{path}.requests", f"must be {how} to {name} limit of {limits[name]}", quantity)
    ]


def _resource_name(name: str, path: str) -> list[FieldError]:
    if out := label_name(name, path):
        return out
    if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
        whys = ["must be a standard resource for containers"]
        if name not in ("pods", "services", "secrets", "configmaps", "storage"):
            whys.insert(0, "must be a standard resource type or fully qualified")
        return [problem("invalid", path, why, name) for why in whys]
    return []


def gates(readiness_gates: list[Obj]) -> list[FieldError]:
    out, seen = list[FieldError](), set[str]()
    for at, gate in enumerate(readiness_gates):
        path, name = f"spec.schedulingGates[{at}]", gate.get("name", "")
        out += label_name(name, path)
        if name in seen:
            out.append(problem("duplicate", path, "", name))
        seen.add(name)
    return out


def tolerations(given: list[Obj]) -> list[FieldError]:
    out: list[FieldError] = []
    for at, toleration in enumerate(given):
        path, key = f"spec.tolerations[{at}]", toleration.get("key", "")
        operator, value, effect = (
            toleration.get("operator", ""),
            toleration.get("value", ""),
            toleration.get("effect", ""),
        )
        if key:
            out += label_name(key, f"{path}.key")
        elif operator != "Exists":
            why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            out.append(problem("invalid", f"{path}.operator", why, operator))
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            out.append(problem("invalid", f"{path}.effect", why, effect))
        if operator in ("Equal", ""):
            if wrong := label_value(value):
                out.append(problem("invalid", f"{path}.operator", ";".join(wrong), value))
        elif operator != "Exists":
            out.append(supported(f"{path}.operator", operator, ["Equal", "Exists"]))
        elif value:
            out.append(
                problem(
                    "invalid", f"{path}.operator", "value must be empty when `operator` is 'Exists'", value
                )
            )
        if effect:
            out += taint_effect(effect, f"{path}.effect")
    return out
