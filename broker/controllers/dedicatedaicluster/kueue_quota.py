"""Requests quota for dedicated clusters from Kueue, by Workloads in the queues of their reservations.

Invariant: Kueue alone decides about quota. A cluster requests its demand in pod sets that each fit an
instance, and has quota once Kueue admits them. For more quota it makes another Workload. Unneeded quota is
given back pod by pod (`status.reclaimablePods`), in any ratio of resources if each has one flavor. A
Workload that Kueue evicts after admission is deleted, and made anew, only when the cluster's instances are
gone. Until then Kueue cannot give its quota away (apis/kueue/v1beta2/workload_types.go). A Workload that was
never admitted has no instances and is deleted at once. If the check has evicted it, it gives its quota back
and queues again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from broker.apis import names
from broker.apis.kueue import (
    ADMITTED,
    EVICTED,
    PODS_READY,
    QUOTA_RESERVED,
    REQUEUED,
    ClusterQueueSpec,
    PodSet,
    Workload,
)
from broker.apis.meta import Condition, ConditionUpdate, Json, condition, is_true, true_condition
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apis.units import CPU, units_or_zero, written
from broker.capacity.types import ACCELERATORS
from broker.controllers.dedicatedaicluster.demand import ClusterDemand
from broker.controllers.dedicatedaicluster.machines import dedicated
from broker.controllers.dedicatedaicluster.status import ClusterEviction
from broker.kube.conditions import condition_body, owner_reference, set_conditions
from broker.quota.entitled import AdmissionDecision, AdmissionPhase, held_of
from broker.quota.model import Amounts, FlavorResource, summed
from broker.reservations.kueue_checks import BY_CHECK, CHECK, identity, refused
from providers.names import MANAGED_BY, MANAGER

PREEMPTED: Final = "Preempted"
_MAIN, _REST = "main", "rest"
_LONGEST: Final = 40
_MOST_PODS: Final = 1 << 30  # of a set: its count is an int32
_MOST_SETS: Final = 8  # of a Workload (apis/kueue/v1beta2/workload_types.go)
PODS: Final = "pods"

Piece = tuple[str, int, Mapping[str, int]]


def pieces(amounts: Mapping[str, int], *, split: bool = False) -> tuple[Piece, ...]:
    """Pod sets as (name, count, requests of one pod).

    `split`: one set for each resource, in the smallest units, so that any part can be given back by itself.
    Otherwise one pod for each accelerator, or else each core, and one for the remainder: Kueue gives all
    resources of a set the same flavor, but not several sets.
    """
    if split:
        return tuple(piece for name, value in sorted(amounts.items()) for piece in _units_of(name, value))
    counted = [amounts[name] for name in ACCELERATORS if amounts.get(name)]
    count = max(1, counted[0] if counted else amounts.get(CPU, 0) // 1000)
    base = {name: value // count for name, value in amounts.items()}
    rest = {name: value - base[name] * (count - 1) for name, value in amounts.items()}
    if rest == base:
        return ((_MAIN, count, base),)
    return ((_MAIN, count - 1, {name: value for name, value in base.items() if value}), (_REST, 1, rest))


def _units_of(resource: str, value: int) -> Iterable[Piece]:
    """One resource, in units of the smallest power of two that keeps the count within its limit."""
    unit = 1
    while value // unit > _MOST_PODS:
        unit *= 2
    name = re.sub("[^a-z0-9]+", "-", resource.lower()).strip("-")[:_LONGEST]
    yield name, value // unit, {resource: unit}
    if value % unit:
        yield f"{name}-{_REST}", 1, {resource: value % unit}


def can_split(spec: ClusterQueueSpec, amounts: Mapping[str, int]) -> bool:
    """Whether each resource has one flavor in the queue, so that pod sets cannot get different ones.

    Not if the queue counts `pods`, since it would count each small pod, nor for accelerators alone.
    """
    flavors = {name: len(group.flavors) for group in spec.resource_groups for name in group.covered_resources}
    beyond_accelerators = any(name not in ACCELERATORS for name in amounts)
    single = all(flavors.get(name) == 1 for name in amounts)
    return (
        beyond_accelerators
        and single
        and PODS not in flavors
        and len(pieces(amounts, split=True)) <= _MOST_SETS
    )


def _pieces(workload: Workload) -> tuple[Piece, ...]:
    """The pieces from which the Workload was made."""
    return tuple((pods.name, pods.count, _pod_requests(pods)) for pods in workload.spec.pod_sets)


def requested(workload: Workload) -> Mapping[str, int]:
    """The requests of the Workload's spec, which Kueue counts, including all that was given back since."""
    return summed(
        {resource: value * pods.count for resource, value in _pod_requests(pods).items()}
        for pods in workload.spec.pod_sets
    )


def remaining(workload: Workload) -> Mapping[str, int]:
    """The part of its requests that the Workload still holds, or waits for."""
    back = {pods.name: pods.count for pods in workload.status.reclaimable_pods}
    total = dict(requested(workload))
    for name, _, pod in _pieces(workload):
        for resource, value in pod.items():
            total[resource] -= value * back.get(name, 0)
    return total


def usage(workloads: Iterable[Workload]) -> Amounts:
    """The quota held by admitted Workloads. A spec is immutable while it holds quota
    (pkg/webhooks/workload_webhook.go)."""
    amounts: dict[FlavorResource, int] = {}
    for workload in workloads:
        flavors = _flavors(workload)
        for resource, value in remaining(workload).items():
            if value and resource in flavors:
                key = FlavorResource(flavors[resource], resource)
                amounts[key] = amounts.get(key, 0) + value
    return amounts


def _pod_requests(pods: PodSet) -> Mapping[str, int]:
    """The requests of one pod of a set."""
    return summed(
        {name: max(0, units_or_zero(name, text)) for name, text in container.resources.requests.items()}
        for container in pods.template.spec.containers
    )


def _flavors(workload: Workload) -> Mapping[str, str]:
    """The assigned flavor of each resource."""
    admission = workload.status.admission
    return {
        resource: flavor
        for assignment in (admission.pod_set_assignments if admission else ())
        for resource, flavor in assignment.flavors.items()
    }


def admitted(workload: Workload) -> bool:
    return (
        workload.status.admission is not None
        and is_true(workload, ADMITTED)
        and not is_true(workload, EVICTED)
    )


def decision(
    workloads: Sequence[Workload],
    demand: ClusterDemand,
    held: Amounts | None,
    refusal: AdmissionDecision | None,
) -> AdmissionDecision | None:
    """Kueue's decision in the form of the broker's own; None if there is nothing to decide. `refusal`: the
    decision for a request that could not fit empty queues."""
    has = usage(workload for workload in workloads if admitted(workload))
    enough = all(value <= held_of(has).get(name, 0) for name, value in demand.requests.items())
    before = held_of(held or {})
    if held is not None and all(value <= before.get(name, 0) for name, value in demand.requests.items()):
        return None
    if enough:
        return AdmissionDecision(phase=AdmissionPhase.ADMITTED, usage=has)
    if refusal is not None:
        return refusal
    return AdmissionDecision(phase=AdmissionPhase.WAITING, why=_waiting_reason(workloads))


def counted(workload: Workload) -> bool:
    """Whether the cluster may have instances for this Workload: it is admitted, or was. Kueue keeps Admitted
    True while it evicts, and records the elapsed time when it removes the admission. Admitted may be False
    for a Workload that was never admitted (pkg/workload/admissionchecks.go, SyncAdmittedCondition)."""
    return is_true(workload, ADMITTED) or workload.status.accumulated_past_execution_time_seconds is not None


def evicted(workload: Workload) -> bool:
    return is_true(workload, EVICTED)


def eviction(workloads: Sequence[Workload]) -> ClusterEviction | None:
    """Kueue's eviction of quota that the cluster has had; a growth that still waits does not count. The
    cluster keeps the quota of its other admitted Workloads."""
    keeps = usage(workload for workload in workloads if admitted(workload)) or None
    for workload in workloads:
        if counted(workload) and (evicted_condition := true_condition(workload, EVICTED)):
            if preempted := true_condition(workload, PREEMPTED):
                return ClusterEviction(reason=preempted.reason, message=preempted.message, keeps=keeps)
            why = f"Workload {workload.key} is evicted: {evicted_condition.message}"
            return ClusterEviction(reason=evicted_condition.reason, message=why, keeps=keeps)
    return None


def lacking(workloads: Iterable[Workload], demand: ClusterDemand) -> Mapping[str, int]:
    """The part of the demand that no Workload requests yet."""
    total = summed(map(remaining, workloads))
    return {
        name: value - total.get(name, 0)
        for name, value in demand.requests.items()
        if value > total.get(name, 0)
    }


def outdated(workloads: Iterable[Workload], demand: ClusterDemand) -> list[Workload]:
    """The waiting Workloads, if they and the admitted ones exceed the demand. Others replace them."""
    # A Workload with reserved quota may wait long for its check.
    waiting = [workload for workload in workloads if not counted(workload)]
    has = held_of(usage(workload for workload in workloads if counted(workload)))
    total = summed([has, *map(requested, waiting)])
    more = any(value > demand.requests.get(name, 0) for name, value in total.items())
    return waiting if more else []


def given_back(workloads: Sequence[Workload], held: Amounts) -> Iterable[tuple[Workload, Mapping[str, int]]]:
    """The Workloads with more quota than the cluster holds, and the pods of each set to give back in all."""
    holding = [workload for workload in workloads if admitted(workload)]
    over = {name: value - held_of(held).get(name, 0) for name, value in held_of(usage(holding)).items()}
    for workload in reversed(holding):
        before = {pods.name: pods.count for pods in workload.status.reclaimable_pods}
        back = dict(before)
        for name, count, pod in _pieces(workload):
            fits = [over.get(resource, 0) // value for resource, value in pod.items() if value]
            more = min([count - back.get(name, 0), *fits])
            if more > 0:
                back[name] = back.get(name, 0) + more
                for resource, value in pod.items():
                    over[resource] -= value * more
        if back != before:
            yield workload, back


def counted_usage(workloads: Sequence[Workload], held: Amounts) -> Amounts:
    """The quota that Kueue still counts for a cluster that needs `held`: more, if only a part of a pod is
    unneeded."""
    has = dict(usage(workload for workload in workloads if admitted(workload)))
    for workload, back in given_back(workloads, held):
        before = {pods.name: pods.count for pods in workload.status.reclaimable_pods}
        flavors = _flavors(workload)
        for name, _, pod in _pieces(workload):
            more = back.get(name, 0) - before.get(name, 0)
            for resource, value in pod.items() if more else ():
                has[FlavorResource(flavors[resource], resource)] -= value * more
    return {
        key: max(has.get(key, 0), held.get(key, 0)) for key in {*has, *held} if has.get(key) or held.get(key)
    }


def pods_ready(workload: Workload, now: datetime) -> Json:
    """The status of an admitted Workload, for server-side apply. It has no pods, and Kueue's waitForPodsReady
    would evict it for that (keps/349-all-or-nothing)."""
    ready = Condition(
        type=PODS_READY,
        status="True",
        reason="NoPods",
        message="it represents the quota of a dedicated cluster, which has no pods of its own",
        last_transition_time=now,
    )
    return {"metadata": identity(workload), "status": {"conditions": [condition_body(ready)]}}


def sent_back(workload: Workload) -> bool:
    """Whether the check evicted the Workload before admission: it gives its quota back and queues again."""
    return workload.status.admission is not None and not counted(workload) and refused(workload, CHECK)


def unreserved(workload: Workload, now: datetime) -> Json:
    """The merge patch of the status that frees the quota of a Workload that was `sent_back`. Kueue leaves
    this to the reconciler of the job (pkg/controller/jobframework/reconciler.go): here, the broker.

    Only for a parked Workload (`answers.is_parked`): any other would be queued again at once."""
    eviction = condition(workload.status.conditions, EVICTED)
    message = eviction.message if eviction is not None else ""
    conditions = workload.status.conditions
    for type_, reason in ((QUOTA_RESERVED, "Pending"), (REQUEUED, BY_CHECK)):
        update = ConditionUpdate(type=type_, status="False", reason=reason, message=message)
        conditions = set_conditions(conditions, update, now=now)
    return {
        "metadata": {"resourceVersion": workload.metadata.resource_version},
        "status": {"admission": None, "conditions": [condition_body(changed) for changed in conditions]},
    }


def unready(workload: Workload) -> bool:
    """Whether Kueue waits for the Workload's pods."""
    return admitted(workload) and not is_true(workload, PODS_READY)


def body(
    cluster: DedicatedAICluster,
    number: int,
    amounts: Mapping[str, int],
    *,
    namespace: str,
    queue: str,
    demand: ClusterDemand,
    priority: int,
    split: bool = False,
) -> Json:
    """The body of a Workload of the cluster. Its pods are never made."""
    pod: Json = {"restartPolicy": "Never", "nodeSelector": dict(demand.node_selector)}
    pod["tolerations"] = [toleration.wire() for toleration in demand.tolerations]
    if affinity := demand.affinity.wire():
        pod["affinity"] = affinity

    def pod_set(name: str, count: int, amounts_of_pod: Mapping[str, int]) -> Json:
        requests = {resource: written(resource, value) for resource, value in amounts_of_pod.items()}
        containers = [{"name": "quota", "resources": {"requests": requests}}]
        return {"name": name, "count": count, "template": {"spec": {**pod, "containers": containers}}}

    return {
        "metadata": {
            "name": f"{cluster.name[:_LONGEST].rstrip('-.')}-{cluster.uid[:8]}-{number}",
            "namespace": namespace,
            "labels": {MANAGED_BY: MANAGER, names.DEDICATED: dedicated(cluster)},
            "ownerReferences": [owner_reference(cluster, block=False)],
        },
        "spec": {
            "queueName": queue,
            "priority": priority,
            "podSets": [pod_set(*piece) for piece in pieces(amounts, split=split)],
        },
    }


def _waiting_reason(workloads: Sequence[Workload]) -> str:
    for workload in workloads:
        if admitted(workload):
            continue
        reserved = condition(workload.status.conditions, QUOTA_RESERVED)
        if reserved is not None and reserved.status != "True" and reserved.message:
            return f"Kueue reports for Workload {workload.key}: {reserved.message}"
        if waits := [entry for entry in workload.status.admission_checks if entry.state != "Ready"]:
            check = waits[0]
            return f"AdmissionCheck {check.name} of Workload {workload.key}: {check.message or check.state}"
    return "Kueue has not decided yet" if workloads else "its reservation has no LocalQueue yet"
