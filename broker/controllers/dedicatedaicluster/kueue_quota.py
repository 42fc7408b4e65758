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
from typing import Any, Final

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
from broker.apis.meta import Condition, condition
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apis.units import CPU, units, written
from broker.controllers.dedicatedaicluster.demand import ClusterDemand
from broker.controllers.dedicatedaicluster.machines import dedicated
from broker.controllers.dedicatedaicluster.status import ClusterEviction
from broker.controllers.kueue.answers import BY_CHECK, refused
from broker.controllers.kueue.render import CHECK
from broker.kube.conditions import ConditionUpdate, condition_body, owner_reference, set_conditions
from broker.quota.entitled import AdmissionDecision, AdmissionPhase, held_of
from broker.quota.model import Amounts, FlavorResource
from broker.reservations.kueue_objects import BROKER
from broker.reservations.sizing import ACCELERATORS

Json = dict[str, Any]

PREEMPTED: Final = "Preempted"
_MAIN, _REST = "main", "rest"
_LONGEST: Final = 40
_MOST_PODS: Final = 1 << 30  # of a set: its count is an int32
_MOST_SETS: Final = 8  # of a Workload (apis/kueue/v1beta2/workload_types.go)
PODS: Final = "pods"

Piece = tuple[str, int, Mapping[str, int]]


def pieces(amounts: Mapping[str, int], *, apart: bool = False) -> tuple[Piece, ...]:
    """Pod sets as (name, count, requests of one pod).

    `apart`: one set for each resource, in the smallest units, so that any part can be given back by itself.
    Otherwise one pod for each accelerator, or else each core, and one for the remainder: Kueue gives all
    resources of a set the same flavor, but not several sets.
    """
    if apart:
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


def can_be_apart(spec: ClusterQueueSpec, amounts: Mapping[str, int]) -> bool:
    """Whether each resource has one flavor in the queue, so that pod sets cannot get different ones.

    Not if the queue counts `pods`, since it would count each small pod, nor for accelerators alone.
    """
    flavors = {name: len(group.flavors) for group in spec.resource_groups for name in group.covered_resources}
    some = any(name not in ACCELERATORS for name in amounts)
    single = all(flavors.get(name) == 1 for name in amounts)
    return some and single and PODS not in flavors and len(pieces(amounts, apart=True)) <= _MOST_SETS


def _pieces(workload: Workload) -> tuple[Piece, ...]:
    """The pieces from which the Workload was made."""
    return tuple((pods.name, pods.count, _each(pods)) for pods in workload.spec.pod_sets)


def asked(workload: Workload) -> Mapping[str, int]:
    """The requests of the Workload's spec, which Kueue counts, including all that was given back since."""
    total: dict[str, int] = {}
    for pods in workload.spec.pod_sets:
        for resource, value in _each(pods).items():
            total[resource] = total.get(resource, 0) + value * pods.count
    return total


def left(workload: Workload) -> Mapping[str, int]:
    """The part of its requests that the Workload still holds, or waits for."""
    back = {each.name: each.count for each in workload.status.reclaimable_pods}
    total = dict(asked(workload))
    for name, _, each in _pieces(workload):
        for resource, value in each.items():
            total[resource] -= value * back.get(name, 0)
    return total


def usage(workloads: Iterable[Workload]) -> Amounts:
    """The quota held by admitted Workloads. A spec is immutable while it holds quota
    (pkg/webhooks/workload_webhook.go)."""
    found: dict[FlavorResource, int] = {}
    for each in workloads:
        flavors = _flavors(each)
        for resource, value in left(each).items():
            if value and resource in flavors:
                key = FlavorResource(flavors[resource], resource)
                found[key] = found.get(key, 0) + value
    return found


def _each(pods: PodSet) -> Mapping[str, int]:
    """The requests of one pod of a set."""
    found: dict[str, int] = {}
    for container in pods.template.spec.containers:
        for resource, text in container.resources.requests.items():
            found[resource] = found.get(resource, 0) + _units(resource, text)
    return found


def _units(resource: str, text: str) -> int:
    """Zero for a quantity that cannot be read: another Workload is made instead."""
    try:
        return max(0, units(resource, text))
    except ValueError:
        return 0


def _flavors(workload: Workload) -> Mapping[str, str]:
    """The assigned flavor of each resource."""
    admission = workload.status.admission
    return {
        resource: flavor
        for one in (admission.pod_set_assignments if admission else ())
        for resource, flavor in one.flavors.items()
    }


def admitted(workload: Workload) -> bool:
    return workload.status.admission is not None and _is(workload, ADMITTED) and not _is(workload, EVICTED)


def verdict(
    mine: Sequence[Workload], wanted: ClusterDemand, held: Amounts | None, never: AdmissionDecision | None
) -> AdmissionDecision | None:
    """Kueue's decision in the form of the broker's own; None if there is nothing to decide. `never`: the
    decision for a request that could not fit empty queues."""
    has = usage(each for each in mine if admitted(each))
    enough = all(value <= held_of(has).get(name, 0) for name, value in wanted.requests.items())
    before = held_of(held or {})
    if held is not None and all(value <= before.get(name, 0) for name, value in wanted.requests.items()):
        return None
    if enough:
        return AdmissionDecision(phase=AdmissionPhase.ADMITTED, usage=has)
    if never is not None:
        return never
    return AdmissionDecision(phase=AdmissionPhase.WAITING, why=_why(mine))


def counted(workload: Workload) -> bool:
    """Whether the cluster may have instances for this Workload: it is admitted, or was. Kueue keeps Admitted
    True while it evicts, and records the elapsed time when it removes the admission. Admitted may be False
    for a Workload that was never admitted (pkg/workload/admissionchecks.go, SyncAdmittedCondition)."""
    return _is(workload, ADMITTED) or workload.status.accumulated_past_execution_time_seconds is not None


def evicted(workload: Workload) -> bool:
    return _is(workload, EVICTED)


def eviction(mine: Sequence[Workload]) -> ClusterEviction | None:
    """Kueue's eviction of quota that the cluster has had; a growth that still waits does not count. The
    cluster keeps the quota of its other admitted Workloads."""
    keeps = usage(each for each in mine if admitted(each)) or None
    for each in mine:
        told = condition(each.status.conditions, EVICTED)
        if counted(each) and told is not None and told.status == "True":
            said = condition(each.status.conditions, PREEMPTED)
            if said is not None and said.status == "True":
                return ClusterEviction(reason=said.reason, message=said.message, keeps=keeps)
            why = f"Workload {each.key} is evicted: {told.message}"
            return ClusterEviction(reason=told.reason, message=why, keeps=keeps)
    return None


def lacking(mine: Iterable[Workload], wanted: ClusterDemand) -> Mapping[str, int]:
    """The part of the demand that no Workload requests yet."""
    total: dict[str, int] = {}
    for each in mine:
        for name, value in left(each).items():
            total[name] = total.get(name, 0) + value
    return {
        name: value - total.get(name, 0)
        for name, value in wanted.requests.items()
        if value > total.get(name, 0)
    }


def outdated(mine: Iterable[Workload], wanted: ClusterDemand) -> list[Workload]:
    """The waiting Workloads, if they and the admitted ones exceed the demand. Others replace them."""
    # A Workload with reserved quota may wait long for its check.
    waiting = [each for each in mine if not counted(each)]
    total = dict(held_of(usage(each for each in mine if counted(each))))
    for each in waiting:
        for name, value in asked(each).items():
            total[name] = total.get(name, 0) + value
    more = any(value > wanted.requests.get(name, 0) for name, value in total.items())
    return waiting if more else []


def given_back(mine: Sequence[Workload], held: Amounts) -> Iterable[tuple[Workload, Mapping[str, int]]]:
    """The Workloads with more quota than the cluster holds, and the pods of each set to give back in all."""
    holding = [each for each in mine if admitted(each)]
    over = {name: value - held_of(held).get(name, 0) for name, value in held_of(usage(holding)).items()}
    for each in reversed(holding):
        before = {one.name: one.count for one in each.status.reclaimable_pods}
        back = dict(before)
        for name, count, pod in _pieces(each):
            fits = [over.get(resource, 0) // value for resource, value in pod.items() if value]
            more = min([count - back.get(name, 0), *fits])
            if more > 0:
                back[name] = back.get(name, 0) + more
                for resource, value in pod.items():
                    over[resource] -= value * more
        if back != before:
            yield each, back


def kept(mine: Sequence[Workload], held: Amounts) -> Amounts:
    """The quota that Kueue still counts for a cluster that needs `held`: more, if only a part of a pod is
    unneeded."""
    has = dict(usage(each for each in mine if admitted(each)))
    for each, back in given_back(mine, held):
        before = {one.name: one.count for one in each.status.reclaimable_pods}
        flavors = _flavors(each)
        for name, _, pod in _pieces(each):
            more = back.get(name, 0) - before.get(name, 0)
            for resource, value in pod.items() if more else ():
                has[FlavorResource(flavors[resource], resource)] -= value * more
    return {
        key: max(has.get(key, 0), held.get(key, 0)) for key in {*has, *held} if has.get(key) or held.get(key)
    }


def pods_ready(workload: Workload, now: datetime) -> Json:
    """The status of an admitted Workload, for server-side apply. It has no pods, and Kueue's waitForPodsReady
    would evict it for that (keps/349-all-or-nothing)."""
    said = Condition(
        type=PODS_READY,
        status="True",
        reason="NoPods",
        message="it stands for the quota of a dedicated cluster, which has no pods of its own",
        last_transition_time=now,
    )
    meta = {"name": workload.name, "namespace": workload.namespace}
    meta |= {"uid": workload.uid, "resourceVersion": workload.metadata.resource_version}
    return {"metadata": meta, "status": {"conditions": [condition_body(said)]}}


def sent_back(workload: Workload) -> bool:
    """Whether the check evicted the Workload before admission: it gives its quota back and queues again."""
    return workload.status.admission is not None and not counted(workload) and refused(workload, CHECK)


def unreserved(workload: Workload, now: datetime) -> Json:
    """The merge patch of the status that frees the quota of a Workload that was `sent_back`. Kueue leaves
    this to the reconciler of the job (pkg/controller/jobframework/reconciler.go): here, the broker.

    Only for a parked Workload (`answers.is_parked`): any other would be queued again at once."""
    told = condition(workload.status.conditions, EVICTED)
    message = told.message if told is not None else ""
    said = workload.status.conditions
    for type_, reason in ((QUOTA_RESERVED, "Pending"), (REQUEUED, BY_CHECK)):
        update = ConditionUpdate(type=type_, status="False", reason=reason, message=message)
        said = set_conditions(said, update, now=now)
    return {
        "metadata": {"resourceVersion": workload.metadata.resource_version},
        "status": {"admission": None, "conditions": [condition_body(each) for each in said]},
    }


def unready(workload: Workload) -> bool:
    """Whether Kueue waits for the Workload's pods."""
    return admitted(workload) and not _is(workload, PODS_READY)


def body(
    cluster: DedicatedAICluster,
    at: int,
    amounts: Mapping[str, int],
    *,
    namespace: str,
    queue: str,
    wanted: ClusterDemand,
    priority: int,
    apart: bool = False,
) -> Json:
    """The body of a Workload of the cluster. Its pods are never made."""
    pod: Json = {"restartPolicy": "Never", "nodeSelector": dict(wanted.node_selector)}
    pod["tolerations"] = [each.wire() for each in wanted.tolerations]
    if affinity := wanted.affinity.wire():
        pod["affinity"] = affinity

    def pod_set(name: str, count: int, each: Mapping[str, int]) -> Json:
        requests = {resource: written(resource, value) for resource, value in each.items()}
        containers = [{"name": "quota", "resources": {"requests": requests}}]
        return {"name": name, "count": count, "template": {"spec": {**pod, "containers": containers}}}

    return {
        "metadata": {
            "name": f"{cluster.name[:_LONGEST].rstrip('-.')}-{cluster.uid[:8]}-{at}",
            "namespace": namespace,
            "labels": {names.MANAGED_BY: BROKER, names.DEDICATED: dedicated(cluster)},
            "ownerReferences": [owner_reference(cluster, block=False)],
        },
        "spec": {
            "queueName": queue,
            "priority": priority,
            "podSets": [pod_set(*each) for each in pieces(amounts, apart=apart)],
        },
    }


def _why(mine: Sequence[Workload]) -> str:
    for each in mine:
        if admitted(each):
            continue
        told = condition(each.status.conditions, QUOTA_RESERVED)
        if told is not None and told.status != "True" and told.message:
            return f"Kueue says of Workload {each.key}: {told.message}"
        if waits := [check for check in each.status.admission_checks if check.state != "Ready"]:
            return (
                f"AdmissionCheck {waits[0].name} of Workload {each.key}: {waits[0].message or waits[0].state}"
            )
    return "Kueue has not decided yet" if mine else "its reservation has no LocalQueue to ask Kueue by yet"


def _is(workload: Workload, type_: str) -> bool:
    found = condition(workload.status.conditions, type_)
    return found is not None and found.status == "True"
