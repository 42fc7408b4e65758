"""The quota that Kueue's workloads hold.

Invariant: a workload holds the quota that Kueue reserved for it, admitted or not (`status.admission`, Kueue's
apis/kueue/v1beta2/workload_types.go), less the part that its finished pods returned.
"""

from __future__ import annotations

from broker.apis.kueue import (
    EVICTED,
    FINISHED,
    PODS_READY,
    QUOTA_RESERVED,
    PodSetAssignment,
    Workload,
)
from broker.apis.meta import condition, is_true, true_condition
from broker.apis.units import units
from broker.quota.model import FlavorResource
from broker.quota.usage import ReservationHolder, ReservationKey


class WorkloadHolders:
    """Reads the holder of each version of a workload once."""

    def __init__(self) -> None:
        # By `id`, which stays unique while the workload is kept here.
        self._known: dict[int, tuple[Workload, ReservationHolder | None]] = {}

    def of(self, workload: Workload, reserved: ReservationKey) -> ReservationHolder | None:
        """The workload as a holder of the reservation; None without reserved quota."""
        known = self._known.get(id(workload))
        if known is None or (known[1] is not None and known[1].reserved != reserved):
            known = workload, _holder(workload, reserved) if reserves(workload) else None
            self._known[id(workload)] = known
        return known[1]

    def forget(self, present: int) -> None:
        """Starts anew if most of the known workloads are gone. `present`: the number of workloads now."""
        if len(self._known) > 2 * present + 100:
            self._known = {}


def reserves(workload: Workload) -> bool:
    """Whether quota is reserved for the workload, which lasts until it has finished."""
    admitted = workload.status.admission is not None
    return admitted and is_true(workload, QUOTA_RESERVED) and not is_true(workload, FINISHED)


def counts_as(workload: Workload | None) -> object:
    """The state by which a workload counts for its reservation. Versions with equal states count alike."""
    if workload is None or not reserves(workload):
        return None
    status = workload.status
    return status.admission, status.reclaimable_pods, workload.spec.priority, _trouble(workload)


def assigned(workload: Workload, assignment: PodSetAssignment) -> int:
    """The number of pods for which a set's usage was counted."""
    if assignment.count is not None:
        return assignment.count
    return next((pod_set.count for pod_set in workload.spec.pod_sets if pod_set.name == assignment.name), 0)


def reserved_since(workload: Workload) -> float:
    """When it got its quota, as a timestamp; infinite while that is not known."""
    reserved = condition(workload.status.conditions, QUOTA_RESERVED)
    at = reserved.last_transition_time if reserved is not None else None
    return at.timestamp() if at is not None else float("inf")


def _holder(workload: Workload, reserved: ReservationKey) -> ReservationHolder:
    usage: dict[FlavorResource, int] = {}
    admission = workload.status.admission
    returned = {pods.name: pods.count for pods in workload.status.reclaimable_pods}
    for assignment in admission.pod_set_assignments if admission else ():
        count, pods_returned = assigned(workload, assignment), returned.get(assignment.name, 0)
        for resource, amount in assignment.resource_usage.items():
            if (flavor := assignment.flavors.get(resource)) and (not pods_returned or pods_returned < count):
                key = FlavorResource(flavor, resource)
                total = units(resource, amount)
                usage[key] = (
                    usage.get(key, 0) + total - (total * pods_returned // count if pods_returned else 0)
                )
    why = _trouble(workload)
    return ReservationHolder(
        kind="Workload",
        name=workload.key,
        reserved=reserved,
        usage=usage,
        priority=workload.spec.priority,
        since=reserved_since(workload),
        healthy=not why,
        why=why,
    )


def _trouble(workload: Workload) -> str:
    """The problem of a workload that holds quota; empty if there is none."""
    if evicted := true_condition(workload, EVICTED):
        return f"evicted ({evicted.reason}): {evicted.message}"
    pods = condition(workload.status.conditions, PODS_READY)
    if pods is not None and pods.status == "False" and pods.reason == "WaitForRecovery":
        return f"its pods were ready and are no longer: {pods.message}"
    return ""
