"""The broker's answers to workloads that request reserved capacity.

Invariant: an answer follows from its arguments alone. Ready selects the nodes of the pods by labels that
Karpenter's NodePools and the broker's own claims both know. These are `karpenter.sh/capacity-type: reserved`,
and the ODCR's id if a single ODCR can take all the pods. It also names the reservation that the pods draw
from, since only the queue names it otherwise. Ready only adds keys: Kueue fails an admission that
changes a key of the flavor or of the pod sets (apis/kueue/v1beta2/workload_types.go, PodSetUpdate). Its
webhook refuses updates that do not name every pod set (pkg/webhooks/workload_webhook.go).

Retry never carries `requeueAfterSeconds`, which Kueue turns into `status.requeueState.requeueAt`. Its
reconciler returns before it evicts if `requeueAt` is in the future (pkg/controller/core/
workload_controller.go, v0.15 to v0.19): the workload would keep its quota. Retry therefore comes with a
`requeueAt` in the past, and Kueue evicts at once. A pending workload with a past `requeueAt` of another
manager stays out of the queue (same file), even if the broker is slow. Once Kueue has evicted it, the
workload is `parked`: `requeueAt` is the time of its next turn, and the broker removes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from broker.apis import names
from broker.apis.kueue import CheckState, PodSetTemplate, Workload
from broker.apis.meta import Json
from broker.controllers.kueue.room import InstanceSlots, PodGroup, is_accelerated
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_checks import WAITS, identity
from broker.reservations.sizing import amount_text
from broker.reservations.workloads import assigned
from broker.text import counted, format_time, quantity

SKEW: Final = timedelta(minutes=1)  # the allowed lag of Kueue's clock behind the broker's
FIRST, LONGEST = 60, 600  # seconds for which a workload without room is parked
RESERVED: Final = {names.CAPACITY_TYPE: "reserved"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAnswer:
    """`updates`: the fields to add, by pod set. All pod sets are named, or none."""

    state: CheckState
    message: str
    updates: Mapping[str, Json] | None = None


def demands(workload: Workload, *, dedicated: bool = False) -> Mapping[str, tuple[PodGroup, ...]]:
    """The pods that an admission needs in each flavor, without those that were given back.

    Beside pods with accelerators, those without are optional: a launcher or driver may run elsewhere.
    `dedicated`: the Workload is a dedicated cluster's. Its pod sets are shares of instances, which are
    counted by their accelerators.
    """
    groups: dict[str, list[PodGroup]] = {}
    admission = workload.status.admission
    back = {reclaimable.name: reclaimable.count for reclaimable in workload.status.reclaimable_pods}
    for assignment in admission.pod_set_assignments if admission else ():
        count = assigned(workload, assignment)
        left = max(0, count - back.get(assignment.name, 0))
        if not left:
            continue
        by_flavor: dict[str, dict[str, float]] = {}
        for resource, amount in assignment.resource_usage.items():
            if flavor := assignment.flavors.get(resource):
                by_flavor.setdefault(flavor, {})[resource] = quantity(amount) / count
        for flavor, amounts in by_flavor.items():
            groups.setdefault(flavor, []).append(PodGroup(count=left, requests=amounts))
    if dedicated:
        groups = {
            flavor: [group for group in pods if is_accelerated(group)] or pods
            for flavor, pods in groups.items()
        }
    if any(is_accelerated(group) for pods in groups.values() for group in pods):
        groups = {
            flavor: [replace(group, optional=not is_accelerated(group)) for group in pods]
            for flavor, pods in groups.items()
        }
    return {flavor: tuple(pods) for flavor, pods in groups.items()}


def increase(
    demand: Mapping[str, Sequence[PodGroup]], replaced: Mapping[str, Sequence[PodGroup]]
) -> Mapping[str, tuple[PodGroup, ...]]:
    """The pods that a workload needs beyond those of the workload that it replaces, which go on."""
    more: dict[str, tuple[PodGroup, ...]] = {}
    for flavor, pods in demand.items():
        going_on = Counter[object]()
        for group in replaced.get(flavor, ()):
            going_on[_equal(group)] += group.count
        groups = []
        for group in pods:
            kept = min(group.count, going_on[_equal(group)])
            going_on[_equal(group)] -= kept
            groups.append(replace(group, count=group.count - kept))
        more[flavor] = tuple(groups)
    return more


def _equal(pods: PodGroup) -> object:
    return tuple(sorted(pods.deciding.items()))


def ready(
    workload: Workload,
    reserved: ReservationKey,
    slots: Mapping[str, Sequence[InstanceSlots]],
    labels: Mapping[str, Mapping[str, str]],
) -> CheckAnswer:
    """Ready: the capacity exists. `slots`: the instances that the workload may use of each reserved flavor;
    `labels`: the flavors' own node labels."""
    updates: dict[str, Json] = {}
    admission = workload.status.admission
    given = {pod_set.name: pod_set.template for pod_set in workload.spec.pod_sets}
    for assignment in admission.pod_set_assignments if admission else ():
        used = {*assignment.flavors.values()}
        chosen: dict[str, str] = {}
        for flavor in sorted(used & slots.keys()):
            chosen |= RESERVED
            if len(slots[flavor]) == 1:
                chosen[names.RESERVATION_ID] = slots[flavor][0].odcr
        template = given.get(assignment.name, PodSetTemplate())
        taken = {*template.spec.node_selector, *(key for flavor in used for key in labels.get(flavor, {}))}
        selected = {key: value for key, value in sorted(chosen.items()) if key not in taken}
        update: Json = {"nodeSelector": selected} if selected else {}
        if chosen and names.DRAWS_FROM not in template.metadata.annotations:
            update["annotations"] = {names.DRAWS_FROM: str(reserved)}
        updates[assignment.name] = update
    if any(updates.values()):
        updates = {pod_set.name: updates.get(pod_set.name, {}) for pod_set in workload.spec.pod_sets}
    else:
        updates = {}
    ids = sorted({instances.odcr for odcrs in slots.values() for instances in odcrs})
    message = f"reserved instances exist: {', '.join(ids[:5])}" if ids else "none of its flavors is in EC2"
    return CheckAnswer(state="Ready", message=message, updates=updates)


def retry(short: Iterable[str], *, was_ready: bool = False) -> CheckAnswer:
    """Retry: there is no room. `short`: the shortages as text, by flavor; `was_ready`: there was room."""
    gone = "the reserved instances that it was promised are gone: " if was_ready else ""
    return CheckAnswer(state="Retry", message=gone + "; ".join(short))


def backoff(retried: int) -> int:
    """Seconds for which a workload is parked after `retried` retries: doubled each time, within limits."""
    return min(LONGEST, FIRST << min(max(retried - 1, 0), 16))


def pending(why: str) -> CheckAnswer:
    return CheckAnswer(state="Pending", message=f"{WAITS}: {why}")


def shortage(
    flavor: str,
    pods: Sequence[PodGroup],
    own: Sequence[InstanceSlots],
    *,
    borrows: bool = False,
    promised: bool = False,
) -> str:
    """The shortage of a flavor, as text. `promised`: other members of the cohort have the room."""
    requested = ", ".join(
        f"{counted(group.count, 'pod')} of "
        + ", ".join(f"{amount_text(name, amount)} {name}" for name, amount in group.deciding.items())
        for group in pods
        if group.count and not group.optional
    )
    has = sum(instances.count for instances in own)
    where = " there or in idle ones of its cohort" if borrows else ""
    if promised:
        where = " beside the workloads of its cohort"
    active = counted(has, "reserved instance is active", "reserved instances are active")
    return f"flavor {flavor}: {active}, with no room{where} for {requested}"


def body(workload: Workload, check: str, answer: CheckAnswer, now: datetime) -> Json:
    """The answer for server-side apply to the status, valid for this version of the workload."""
    entry: Json = {
        "name": check,
        "state": answer.state,
        "message": answer.message,
        "lastTransitionTime": format_time(now),
    }
    if answer.updates:
        entry["podSetUpdates"] = [{"name": name, **update} for name, update in answer.updates.items()]
    status: Json = {"admissionChecks": [entry]}
    if answer.state == "Retry":
        status["requeueState"] = {"requeueAt": format_time(now - SKEW)}
    return {"metadata": identity(workload), "status": status}


def parked_body(workload: Workload, check: str, why: str, now: datetime, until: datetime) -> Json:
    """The status, for server-side apply, of a workload that the check evicted. It stays out of Kueue's queue
    until the broker removes `requeueAt`. Kueue's own apply cannot remove another manager's field."""
    parked = body(workload, check, pending(why), now)
    parked["status"]["requeueState"] = {"requeueAt": format_time(until)}
    return parked
