"""Pods: their quality of service, their mutable fields, and their status.

Rule: k8s.io/kubernetes/pkg/registry/core/pod/strategy.go, pkg/apis/core/validation (ValidatePodUpdate).
"""

from __future__ import annotations

from typing import Any

from local.kube.errors import FieldError, problem
from local.kube.kind import CHANGED, FIXED, META, STATUS, VALID, KindRules
from local.kube.kinds import pod_defaults
from local.kube.kinds.checks import label_name
from local.kube.kinds.pod_checks import spec_problems, tolerations
from local.kube.names import dns_subdomain
from local.kube.quantity import amount
from local.kube.wire import Obj

GATED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
_UPDATABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_SYSTEM_CONDITIONS = ("PodScheduled", "Ready", "Initialized")


def quality(spec: Obj) -> str:
    """Guaranteed if all containers have limits of cpu and memory and request all of them."""
    requested, capped, every = set[str](), set[str](), True
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        resources = container.get("resources") or {}
        requests, limits = (_compute(resources.get(part) or {}) for part in ("requests", "limits"))
        requested |= requests.keys()
        capped |= limits.keys()
        every = every and limits.keys() == {"cpu", "memory"} and requests == limits
    if not requested and not capped:
        return "BestEffort"
    return "Guaranteed" if every else "Burstable"


def _compute(values: Obj) -> dict[str, Any]:
    amounts = {name: amount(str(values[name])) for name in ("cpu", "memory") if name in values}
    return {name: value for name, value in amounts.items() if value}


def _create(obj: Obj) -> None:
    spec = obj.get("spec") or {}
    obj["status"] = {"phase": "Pending", "qosClass": quality(spec)}
    if spec.get("schedulingGates"):
        now = obj["metadata"].get("creationTimestamp")
        obj["status"]["conditions"] = [{**GATED, "lastProbeTime": None, "lastTransitionTime": now}]


def _update_status(obj: Obj, old: Obj) -> None:
    status, before = obj.setdefault("status", {}), old.get("status") or {}
    if not status.get("qosClass") and before.get("qosClass"):
        status["qosClass"] = before["qosClass"]
    if not status.get("observedGeneration") and before.get("observedGeneration"):
        status["observedGeneration"] = before["observedGeneration"]
    seen: dict[str, list[int]] = {}
    for condition in before.get("conditions") or ():
        seen.setdefault(condition.get("type", ""), []).append(condition.get("observedGeneration") or 0)
    for condition in status.get("conditions") or ():
        known = seen.get(condition.get("type", "")) or [0]
        generation = known.pop(0)
        if not condition.get("observedGeneration") and generation:
            condition["observedGeneration"] = generation
    meta, owners = obj["metadata"], old["metadata"].get("ownerReferences")
    meta.pop("ownerReferences", None)
    if owners:
        meta["ownerReferences"] = owners


def _validate(obj: Obj) -> list[FieldError]:
    return spec_problems(obj.get("spec") or {})


def _validate_new(obj: Obj, _: Obj) -> list[FieldError]:
    spec, out = obj.get("spec") or {}, list[FieldError]()
    if spec.get("ephemeralContainers"):
        out.append(problem("forbidden", "spec.ephemeralContainers", "cannot be set on create"))
    if spec.get("nodeName") and spec.get("schedulingGates"):
        why = "cannot be set until all schedulingGates have been cleared"
        out.append(problem("forbidden", "spec.nodeName", why))
    return out


def _validate_update(obj: Obj, old: Obj) -> list[FieldError]:
    spec, before, out = obj.get("spec") or {}, old.get("spec") or {}, list[FieldError]()
    for name in ("containers", "initContainers"):
        containers = spec.get(name) or []
        if len(containers) != len(before.get(name) or []):
            return [
                *out,
                problem("forbidden", f"spec.{name}", "pod updates may not add or remove containers"),
            ]
        for at, container in enumerate(containers):
            image = container.get("image", "")
            if not image:
                out.append(problem("required", f"spec.{name}[{at}].image"))
            if image != image.strip():
                why = "must not have leading or trailing whitespace"
                out.append(problem("invalid", f"spec.{name}[{at}].image", why, image))
    deadline, was = spec.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds")
    if deadline is None and was is not None:
        why = "must not update from a positive integer to nil value"
        out.append(problem("invalid", "spec.activeDeadlineSeconds", why, None))
    elif deadline is not None and was is not None and was < deadline:
        why = "must be less than or equal to previous value"
        return [*out, problem("invalid", "spec.activeDeadlineSeconds", why, deadline)]
    out += _only_added(spec.get("tolerations") or [], before.get("tolerations") or [])
    out += _only_removed(spec.get("schedulingGates") or [], before.get("schedulingGates") or [])
    return out + _otherwise_the_same(spec, before)


def _only_added(after: list[Obj], before: list[Obj]) -> list[FieldError]:
    kept = [{**toleration, "tolerationSeconds": None} for toleration in after]
    if any({**toleration, "tolerationSeconds": None} not in kept for toleration in before):
        why = "existing toleration can not be modified except its tolerationSeconds"
        return [problem("forbidden", "spec.tolerations", why)]
    return tolerations(after)


def _only_removed(after: list[Obj], before: list[Obj]) -> list[FieldError]:
    known = {gate.get("name") for gate in before}
    return [
        problem(
            "forbidden",
            f"spec.schedulingGates[{at}].name",
            f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'",
        )
        for at, gate in enumerate(after)
        if gate.get("name") not in known
    ]


def _otherwise_the_same(spec: Obj, before: Obj) -> list[FieldError]:
    now, was, out = _without_free(spec), _without_free(before), list[FieldError]()
    grace = before.get("terminationGracePeriodSeconds") or 0
    if grace < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        now["terminationGracePeriodSeconds"] = grace
    if before.get("schedulingGates"):
        # A pod that waits at a gate may still be narrowed to some nodes.
        chosen, had = spec.get("nodeSelector") or {}, before.get("nodeSelector") or {}
        if any(chosen.get(key) != value for key, value in had.items()):
            why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
            out.append(problem("invalid", "spec.nodeSelector", why, chosen or None))
        now.pop("nodeSelector", None)
        was.pop("nodeSelector", None)
    if now != was:
        why = f"pod updates may not change fields other than {_UPDATABLE}\n{_difference(was, now)}"
        out.append(problem("forbidden", "spec", why))
    return out


def _without_free(spec: Obj) -> Obj:
    """The spec without its mutable fields (and those that are checked apart)."""
    free = ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    out = {key: value for key, value in spec.items() if key not in free and value not in (None, [], {}, "")}
    for name in ("containers", "initContainers"):
        if name in out:
            out[name] = [{k: v for k, v in container.items() if k != "image"} for container in out[name]]
    return out


def _difference(was: Obj, now: Obj) -> str:
    changed = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    return "\n".join(f"- {name}: {was.get(name)}\n+ {name}: {now.get(name)}" for name in changed)


def _validate_status(obj: Obj, old: Obj) -> list[FieldError]:
    status, before, out = obj.get("status") or {}, old.get("status") or {}, list[FieldError]()
    for at, condition in enumerate(status.get("conditions") or ()):
        if condition.get("type") not in _SYSTEM_CONDITIONS:
            out += label_name(condition.get("type", ""), f"status.conditions[{at}].Type")
    nominated = status.get("nominatedNodeName")
    if nominated and nominated != before.get("nominatedNodeName"):
        path = "status.nominatedNodeName"
        out += [problem("invalid", path, why, nominated) for why in dns_subdomain(nominated)]
        if (old.get("spec") or {}).get("nodeName"):
            why = "may not be set on pods that are already bound to a node"
            out.append(problem("forbidden", path, why))
    if status.get("qosClass", "") != before.get("qosClass", ""):
        out.append(problem("invalid", "status.qosClass", "field is immutable", status.get("qosClass", "")))
    return out


def _host_network(obj: Obj) -> str:
    return str(bool((obj.get("spec") or {}).get("hostNetwork"))).lower()


_SELECTABLE = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)

RULES = KindRules(
    default=pod_defaults.default,
    create=_create,
    update_status=_update_status,
    validate=_validate,
    validate_new=_validate_new,
    validate_update=_validate_update,
    validate_status=_validate_status,
    core=True,
    generation=True,
    returns_deleted=True,
    update_order=(FIXED, META, VALID, CHANGED),
    status_order=(FIXED, STATUS),
    status_ignores=("deletionTimestamp", "ownerReferences"),
    selectable={**{path: path for path in _SELECTABLE}, "spec.hostNetwork": _host_network},
)
