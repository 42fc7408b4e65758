"""POST pods/NAME/eviction: a delete that first checks the disruption budgets, and takes one from them.

Rule: k8s.io/kubernetes/pkg/registry/core/pod/storage/eviction.go. Healthy pods are not counted here:
a budget's status stays as written, as on a server without a disruption controller.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from local.kube import writes
from local.kube.bindings import BOUND, posted
from local.kube.deletes import check_preconditions, delete
from local.kube.errors import ErrorSubject, StatusError, forbidden, not_found
from local.kube.incoming import body
from local.kube.kind import with_condition
from local.kube.options import ApiCall, DeleteOptions, options_of
from local.kube.route import route
from local.kube.selectors import matches
from local.kube.state import ApiState
from local.kube.times import stamp
from local.kube.wire import ApiRequest, Obj, Response, reply

_BUDGETS = "poddisruptionbudgets.policy"
_REFUSED = "Cannot evict pod as it would violate the pod's disruption budget."
_MOST_DISRUPTED = 2000
_TARGET = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}


def evict(state: ApiState, call: ApiCall) -> Response:
    call.check("CreateOptions")
    eviction = posted(call, body(call), ("policy", "v1", "Eviction"))
    dry_run = {"dryRun": ["All"]} if call.dry_run else {}
    options = options_of({**(eviction.get("deleteOptions") or {}), **dry_run})
    target, resource = call.target, call.target.resource
    pod = state.get(resource.storage, target.namespace, target.name)
    if pod is None:
        raise not_found(resource.subject, target.name)
    phase = (pod.get("status") or {}).get("phase")
    over = phase in ("Succeeded", "Failed") or bool(pod["metadata"].get("deletionTimestamp"))
    if not over and phase != "Pending":
        _spend(state, pod, dry_run=options.dry_run)
    _delete(state, call, pod, options)
    return reply(BOUND, status=201)


def _delete(state: ApiState, call: ApiCall, pod: Obj, options: DeleteOptions) -> None:
    resource, key = call.target.resource, (call.target.namespace, call.target.name)
    if not options.dry_run:
        # Up to here the real server ignores preconditions without a value; its delete compares them.
        given = replace(options, uid=options.uid or None, resource_version=options.resource_version or None)
        check_preconditions(resource, pod, given)
        status = with_condition(pod.get("status") or {}, stamp(state.clock()), _TARGET)
        if status != pod.get("status"):
            pod = state.put(resource, key, {**pod, "status": status}).obj
        if options.resource_version is not None:
            options = replace(options, resource_version=pod["metadata"]["resourceVersion"])
    delete(state, resource, key, options)


def _spend(state: ApiState, pod: Obj, *, dry_run: bool) -> None:
    """Takes one disruption from the pod's budget, or refuses."""
    budgets = _budgets(state, pod)
    if len(budgets) > 1:
        why = (
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
        raise StatusError(500, "", why)
    if not budgets or (not _ready(pod) and _unready_may_go(budgets[0])):
        return
    budget = budgets[0]
    status = _decremented(budget, pod["metadata"]["name"], stamp(state.clock()))
    if dry_run:
        return
    meta = budget["metadata"]
    path = f"/apis/policy/v1/namespaces/{meta['namespace']}/poddisruptionbudgets/{meta['name']}/status"
    request = ApiRequest(
        "PUT",
        path,
        headers={"User-Agent": "kube-apiserver/", "Content-Type": "application/json"},
        body=orjson.dumps({**budget, "status": status}),
    )
    writes.update(state, ApiCall(request, route(state.registry, request)))


def _budgets(state: ApiState, pod: Obj) -> list[Obj]:
    meta, labels = pod["metadata"], pod["metadata"].get("labels") or {}
    items = state.store.collection(_BUDGETS).items
    budgets = [item.obj for key, item in sorted(items.items()) if key[0] == meta["namespace"]]
    return [budget for budget in budgets if matches((budget.get("spec") or {}).get("selector"), labels)]


def _ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions
    )


def _unready_may_go(budget: Obj) -> bool:
    status, spec = budget.get("status") or {}, budget.get("spec") or {}
    desired = status.get("desiredHealthy") or 0
    enough = desired > 0 and (status.get("currentHealthy") or 0) >= desired
    return enough or spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow"


def _decremented(budget: Obj, pod: str, now: str) -> Obj:
    meta, status = budget["metadata"], dict(budget.get("status") or {})
    name, allowed = meta["name"], status.get("disruptionsAllowed") or 0
    if (status.get("observedGeneration") or 0) < meta.get("generation", 0):
        why = f"The disruption budget {name} is still being processed by the server."
        raise _too_many(why, retry_after=10)
    subject = ErrorSubject("policy", "poddisruptionbudget", "PodDisruptionBudget")
    if allowed < 0:
        raise forbidden(subject, name, "pdb disruptions allowed is negative")
    if len(status.get("disruptedPods") or ()) > _MOST_DISRUPTED:
        why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise forbidden(subject, name, why)
    if allowed == 0:
        raise _too_many(_why_not(name, status))
    status["disruptionsAllowed"] = allowed - 1
    status["disruptedPods"] = {**(status.get("disruptedPods") or {}), pod: now}
    if allowed == 1:
        status = with_condition(
            status,
            now,
            {
                "type": "DisruptionAllowed",
                "status": "False",
                "reason": "InsufficientPods",
                "message": "",
                **({"observedGeneration": g} if (g := status.get("observedGeneration")) else {}),
            },
            probe=False,
        )
    return status


def _why_not(name: str, status: Obj) -> str:
    conditions = status.get("conditions") or ()
    condition: Any = next(
        (condition for condition in conditions if condition.get("type") == "DisruptionAllowed"), {}
    )
    explained = condition.get("status") == "False" and bool(condition.get("message"))
    if explained and condition.get("reason") == "SyncFailed":
        return (
            f"The disruption budget {name} does not allow evicting pods currently because it failed sync: "
            f"{condition['message']}"
        )
    current, desired = status.get("currentHealthy") or 0, status.get("desiredHealthy") or 0
    if current <= desired:
        return f"The disruption budget {name} needs {desired} healthy pods and has {current} currently"
    why = f"The disruption budget {name} does not allow evicting pods currently"
    return f"{why} ({condition['reason']}): {condition['message']}" if explained else why


def _too_many(why: str, *, retry_after: int = 0) -> StatusError:
    details: Obj = {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    if retry_after:
        details["retryAfterSeconds"] = retry_after
    return StatusError(429, "TooManyRequests", _REFUSED, details=details)
