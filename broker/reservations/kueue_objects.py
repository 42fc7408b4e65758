"""Ownership and names of the broker's objects in Kueue.

Invariant: an object without the broker's mark is never written, even if it has the right name. The mark names
the reservation that the object was made for. An ownerReference cannot do so: a ClusterQueue has no namespace,
and a CapacityReservation has one. Queues of a ClusterCapacityReservation have an ownerReference as well
(https://kubernetes.io/docs/concepts/architecture/garbage-collection/#owners-dependents).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from broker.apis import names
from broker.apis.kueue import Workload
from broker.apis.meta import Json, Object
from broker.apis.ome_clusters import DedicatedAICluster
from broker.quota.usage import ReservationKey
from broker.reservations.spec import Reservation, reserved_of
from providers.names import MANAGED_BY, MANAGER

BY_QUEUE: Final = "queue"
WAITING: Final = "waiting"
BY_RESERVATION: Final = "reservation"
LABEL_LENGTH: Final = 63  # of a label's value: jobs name their queue in a label
_HASH: Final = 8


def short(name: str) -> str:
    """The name; if it is too long for a label, its head with a hash of the whole."""
    if len(name) <= LABEL_LENGTH:
        return name
    head = name[: LABEL_LENGTH - _HASH - 1].rstrip("-._")
    return f"{head}-{sha256(name.encode()).hexdigest()[:_HASH]}"


def queue_name(reserved: ReservationKey) -> str:
    """The ClusterQueue's name, shortened if needed: `namespace--name`, or the name without a namespace."""
    return short(reserved.queue)


def local_queue_name(reserved: ReservationKey) -> str:
    return short(reserved.name)


def by_queue(reservation: Reservation) -> Iterable[str]:
    """For the index BY_QUEUE of reservations: the name of the ClusterQueue."""
    return [queue_name(reserved_of(reservation))]


def mark(reserved: ReservationKey) -> Json:
    """The metadata that marks an object as the broker's; it never changes in the object's life."""
    return {
        "labels": {MANAGED_BY: MANAGER},
        "annotations": {names.TAG_RESERVATION: str(reserved)},
    }


def owner_of(obj: Object) -> ReservationKey | None:
    """The reservation that the broker made the object for; None without the broker's label."""
    if obj.labels.get(MANAGED_BY) != MANAGER:
        return None
    return ReservationKey.parse(obj.annotations.get(names.TAG_RESERVATION, ""))


def lost_mark(obj: Object, reserved: ReservationKey) -> str:
    """The `kubectl` command that restores the lost part of the broker's mark. Empty if the object has the
    whole mark, or none of it: then the broker did not make the object for this reservation."""
    kind, name = obj.KIND.plural, f"{obj.name}{f' -n {obj.namespace}' if obj.namespace else ''}"
    labelled = obj.labels.get(MANAGED_BY) == MANAGER
    annotated = obj.annotations.get(names.TAG_RESERVATION) == str(reserved)
    if annotated and not labelled:
        return f"kubectl label {kind} {name} {MANAGED_BY}={MANAGER} --overwrite"
    if labelled and names.TAG_RESERVATION not in obj.annotations:
        return f"kubectl annotate {kind} {name} {names.TAG_RESERVATION}={reserved}"
    return ""


def by_reservation(obj: Object) -> Iterable[str]:
    """For the index BY_RESERVATION: the reservation that the object was made for."""
    reserved = owner_of(obj)
    return () if reserved is None else (str(reserved),)


def owning_cluster(
    workload: Workload, find: Callable[[str], DedicatedAICluster | None]
) -> DedicatedAICluster | None:
    """The existing dedicated cluster that the broker made the Workload for.

    Labels alone prove nothing, since any creator of a Workload can write them.
    """
    if workload.labels.get(MANAGED_BY) != MANAGER or names.DEDICATED not in workload.labels:
        return None
    for owner in workload.metadata.owner_references:
        if owner.kind == DedicatedAICluster.KIND.kind:
            cluster = find(owner.name)
            if cluster is not None and cluster.uid == owner.uid:
                return cluster
    return None


def by_admission(workload: Workload) -> Iterable[str]:
    """For the index BY_QUEUE of workloads: the ClusterQueue that reserved its quota."""
    admission = workload.status.admission
    return () if admission is None else (admission.cluster_queue,)


def by_waiting(workload: Workload) -> Iterable[str]:
    """For the index WAITING: the checks that a workload with quota waits for."""
    if workload.status.admission is None:
        return ()
    return [check.name for check in workload.status.admission_checks if check.state == "Pending"]
