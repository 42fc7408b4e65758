"""What the broker answers a workload that asks for its reserved capacity.

Invariant: an answer is decided from values alone. Ready says which nodes the pods go to, in labels that
Karpenter's NodePools and the broker's own claims both know: `karpenter.sh/capacity-type: reserved`, and the
reservation's id where there is one that all the pods can go to. It only adds: Kueue fails an admission
that changes a key which the flavor or the pod sets already have
(apis/kueue/v1beta2/workload_types.go, PodSetUpdate), and its webhook refuses updates that do not name every
pod set (pkg/webhooks/workload_webhook.go). Retry frees the quota, and comes later each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.apis import names
from broker.apis.kueue import CheckState, PodSetAssignment, Workload
from broker.apis.meta import quantity
from broker.controllers.ome.kueue.room import Pods, Slots

Json = dict[str, Any]

FIRST, LONGEST = 60, 600  # seconds until a workload that found no room is asked about again
WAITS: Final = "waits for reserved instances"
RESERVED: Final = {names.CAPACITY_TYPE: "reserved"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`after`: seconds until Kueue tries again; `updates`: what is added to each pod set's node selector, of
    all pod sets or of none."""

    state: CheckState
    message: str
    after: int | None = None
    updates: Mapping[str, Mapping[str, str]] | None = None


def demands(workload: Workload) -> Mapping[str, tuple[Pods, ...]]:
    """What an admission asks of each flavor, less what was given back of it."""
    found: dict[str, list[Pods]] = {}
    admission = workload.status.admission
    back = {each.name: each.count for each in workload.status.reclaimable_pods}
    for each in admission.pod_set_assignments if admission else ():
        count = assigned(workload, each)
        left = max(0, count - back.get(each.name, 0))
        if not left:
            continue
        by_flavor: dict[str, dict[str, float]] = {}
        for resource, amount in each.resource_usage.items():
            if flavor := each.flavors.get(resource):
                by_flavor.setdefault(flavor, {})[resource] = quantity(amount) / count
        for flavor, amounts in by_flavor.items():
            found.setdefault(flavor, []).append(Pods(count=left, each=amounts))
    return {flavor: tuple(some) for flavor, some in found.items()}


def assigned(workload: Workload, assignment: PodSetAssignment) -> int:
    """For how many pods a set's usage was counted."""
    if assignment.count is not None:
        return assignment.count
    return next((each.count for each in workload.spec.pod_sets if each.name == assignment.name), 0)


def ready(
    workload: Workload,
    slots: Mapping[str, Sequence[Slots]],
    labels: Mapping[str, Mapping[str, str]],
) -> Answer:
    """The capacity is there. `slots`: what the workload may use of each flavor of EC2's; `labels`: the
    flavors' own node labels."""
    updates: dict[str, Mapping[str, str]] = {}
    admission = workload.status.admission
    given = {each.name: each.template.spec.node_selector for each in workload.spec.pod_sets}
    for each in admission.pod_set_assignments if admission else ():
        used = {*each.flavors.values()}
        chosen: dict[str, str] = {}
        for flavor in sorted(used & slots.keys()):
            chosen |= RESERVED
            if len(slots[flavor]) == 1:
                chosen[names.RESERVATION_ID] = slots[flavor][0].odcr
        taken = {*given.get(each.name, {}), *(key for flavor in used for key in labels.get(flavor, {}))}
        updates[each.name] = {key: value for key, value in sorted(chosen.items()) if key not in taken}
    if any(updates.values()):
        updates = {each.name: updates.get(each.name, {}) for each in workload.spec.pod_sets}
    else:
        updates = {}
    ids = sorted({one.odcr for some in slots.values() for one in some})
    what = f"reserved instances are there: {', '.join(ids[:5])}" if ids else "no flavor of it is EC2's"
    return Answer(state="Ready", message=what, updates=updates)


def retry(short: Iterable[str], *, retried: int) -> Answer:
    """Not there. `short`: what is missing, a phrase a flavor."""
    after = min(LONGEST, FIRST * 2 ** min(retried, 16))
    return Answer(state="Retry", message=f"{'; '.join(short)}; asked about again in {after} s", after=after)


def pending(why: str) -> Answer:
    return Answer(state="Pending", message=f"{WAITS}: {why}")


def shortage(flavor: str, pods: Sequence[Pods], own: Sequence[Slots], *, borrows: bool) -> str:
    """What is missing of a flavor, in words."""
    wanted = ", ".join(
        f"{each.count} pods of " + ", ".join(f"{amount:g} {name}" for name, amount in each.counted.items())
        for each in pods
    )
    has = sum(each.count for each in own)
    where = "it and its cohort's idle ones have" if borrows else "they have"
    return f"flavor {flavor}: {has} reserved instances are active, and {where} no room for {wanted}"


def body(workload: Workload, check: str, answer: Answer, now: str) -> Json:
    """For server-side apply to the status, of the workload as it was decided about."""
    said: Json = {
        "name": check,
        "state": answer.state,
        "message": answer.message,
        "lastTransitionTime": now,
    }
    if answer.after is not None:
        said["requeueAfterSeconds"] = answer.after
    if answer.updates:
        said["podSetUpdates"] = [
            {"name": name, **({"nodeSelector": dict(chosen)} if chosen else {})}
            for name, chosen in answer.updates.items()
        ]
    meta = {"name": workload.name, "namespace": workload.namespace}
    meta |= {"uid": workload.uid, "resourceVersion": workload.metadata.resource_version}
    return {"metadata": meta, "status": {"admissionChecks": [said]}}
