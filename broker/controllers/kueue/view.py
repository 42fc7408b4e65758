"""Kueue's state of each reservation: its queue, its workloads and their quota.

Invariant: everything but `problems` comes from the API server. Without Kueue it is empty, and no loop waits
for it. A workload holds the quota that Kueue reserved for it, admitted or not (`status.admission`, Kueue's
apis/kueue/v1beta2/workload_types.go).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from broker.apis import names
from broker.apis.kueue import (
    ACTIVE,
    EVICTED,
    FINISHED,
    PODS_READY,
    QUOTA_RESERVED,
    ClusterQueue,
    LocalQueue,
    Workload,
)
from broker.apis.meta import Condition, condition
from broker.apis.units import units
from broker.controllers.kueue.answers import assigned
from broker.controllers.kueue.ownership import BROKER, BY_QUEUE, BY_RESERVATION, owner_of, queue_name
from broker.controllers.ome.reads import OmeReads
from broker.quota.model import FlavorResource
from broker.quota.usage import ReservationHolder, Reserved
from broker.reservations.ownership import ReservationProblem

STOPPED: Final = "QueueStopped"  # by the reservation's own annotation
# Problems that leave a queue active.
HARMLESS: Final = frozenset({"AdmissionCheckTerminating", "AnnotationInvalid"})
BY_POLICY: Final = "Stopped"  # Kueue's reason if a queue's stopPolicy stops it


class KueueView:
    """Any thread may read; only QueueController calls `tell`."""

    def __init__(self, reads: OmeReads) -> None:
        self._reads = reads
        self._lock = threading.Lock()
        self._problems: dict[Reserved, tuple[ReservationProblem, ...]] = {}
        self._readers: list[Callable[[Reserved], None]] = []
        # The holder of each version of a workload, by `id`, which stays unique while the workload is kept
        # here.
        self._held: dict[int, tuple[Workload, ReservationHolder | None]] = {}

    @property
    def present(self) -> bool:
        """Whether Kueue's ClusterQueues are served."""
        queues = self._reads.cluster_queues
        return queues.synced and not queues.missing

    def on_change(self, reader: Callable[[Reserved], None]) -> None:
        """Calls `reader` when the problems of a reservation change."""
        self._readers.append(reader)

    def active(self, reserved: Reserved) -> tuple[bool, str, str]:
        """Whether the ClusterQueue is active or stopped on purpose, with reason and message."""
        name = queue_name(reserved)
        queue = self._reads.cluster_queues.cache.get(name)
        if queue is None or owner_of(queue) != reserved:
            told = next(iter(self.problems(reserved)), None)
            if told is not None:
                return False, told.reason, told.message
            return False, "ClusterQueueNotCreated", f"ClusterQueue {name} is not there yet"
        said = condition(queue.status.conditions, ACTIVE)
        if said is None or said.status == "Unknown":
            return (
                False,
                "ClusterQueuePending",
                f"Kueue has not said yet whether ClusterQueue {name} is active: does its controller run?",
            )
        problems = self.problems(reserved)
        if said.reason == BY_POLICY and any(each.reason == STOPPED for each in problems):
            return True, said.reason, said.message  # the stop is intended
        why = next((each for each in problems if each.reason not in HARMLESS), None)
        if said.status != "True" and why is not None:
            return False, why.reason, f"{why.message}; Kueue says {said.reason}: {said.message}"
        return said.status == "True", said.reason, said.message

    def problems(self, reserved: Reserved) -> tuple[ReservationProblem, ...]:
        """The problems of the reservation's queues, as its controller reported them."""
        with self._lock:
            return self._problems.get(reserved, ())

    def tell(self, reserved: Reserved, problems: Iterable[ReservationProblem]) -> bool:
        """Records the reservation's problems; returns whether they have changed."""
        told = tuple(problems)
        with self._lock:
            if self._problems.get(reserved, ()) == told:
                return False
            if told:
                self._problems[reserved] = told
            else:
                del self._problems[reserved]
        for reader in self._readers:
            reader(reserved)
        return True

    def holders(self, reserved: Reserved) -> tuple[ReservationHolder, ...]:
        """The workloads with reserved quota of the reservation, sorted by name."""
        queue = self._reads.cluster_queues.cache.get(queue_name(reserved))
        if queue is None or owner_of(queue) != reserved:
            return ()
        found = (self._holds(each, reserved) for each in self._reads.workloads.cache.by(BY_QUEUE, queue.name))
        return tuple(sorted((each for each in found if each is not None), key=lambda each: each.name))

    def _holds(self, workload: Workload, reserved: Reserved) -> ReservationHolder | None:
        known = self._held.get(id(workload))
        if known is None or (known[1] is not None and known[1].reserved != reserved):
            known = (workload, _holder(workload, reserved) if _counts(workload) else None)
            self._held[id(workload)] = known
        return known[1]

    def all(self) -> Mapping[Reserved, tuple[ReservationHolder, ...]]:
        """The `holders` of all reservations at once, without empty ones."""
        if len(self._held) > 2 * len(self._reads.workloads.cache) + 100:
            self._held.clear()  # most of these workloads are gone
        owners = {owner_of(queue) for queue in self._reads.cluster_queues.cache.list()}
        found = {reserved: self.holders(reserved) for reserved in owners if reserved is not None}
        return {reserved: some for reserved, some in found.items() if some}

    def left(self, reserved: Reserved) -> tuple[str, ...]:
        """The broker's remaining objects for the reservation, as text. Its deletion waits for them."""
        if not self.present:
            return ()
        found = []
        for queue in self._reads.cluster_queues.cache.by(BY_RESERVATION, str(reserved)):
            holds = queue.status.reserving_workloads
            what = f", for {holds} workloads that hold its quota" if holds else ""
            found.append(f"ClusterQueue {queue.name}{what}")
        for local in self._reads.local_queues.cache.by(BY_RESERVATION, str(reserved)):
            found.append(f"LocalQueue {local.key}")
        return tuple(found)

    def gone(self, reserved: Reserved) -> bool:
        """Whether none of the broker's objects for the reservation is left in Kueue."""
        return not self.left(reserved)

    def priority(self, name: str) -> int | None:
        """The value of a priority class, Kueue's own first; None if there is none of that name."""
        own = self._reads.workload_priorities.cache.get(name)
        found = own or self._reads.priorities.cache.get(name)
        return None if found is None else found.value


def reserves(workload: Workload) -> bool:
    """Whether quota is reserved for the workload, which lasts until it has finished."""
    status = workload.status
    return (
        status.admission is not None
        and _true(condition(status.conditions, QUOTA_RESERVED))
        and not _true(condition(status.conditions, FINISHED))
    )


def counts_as(workload: Workload | None) -> object:
    """The state by which a workload counts for its reservation. Versions with equal states count alike."""
    if workload is None or not _counts(workload):
        return None
    status = workload.status
    return status.admission, status.reclaimable_pods, workload.spec.priority, _trouble(workload)


def shows(queue: ClusterQueue | LocalQueue | None) -> object:
    """The part of a queue that its reservation's status uses. Kueue updates the rest with every workload."""
    if queue is None:
        return None
    holds = queue.status.reserving_workloads if isinstance(queue, ClusterQueue) and queue.deleting else 0
    said = condition(queue.status.conditions, ACTIVE) if isinstance(queue, ClusterQueue) else None
    meta = queue.metadata
    return meta.uid, meta.labels, meta.annotations, queue.deleting, queue.spec, said, holds


def _counts(workload: Workload) -> bool:
    # Workloads of the broker stand for dedicated clusters, which count themselves.
    return reserves(workload) and workload.labels.get(names.MANAGED_BY) != BROKER


def _holder(workload: Workload, reserved: Reserved) -> ReservationHolder:
    usage: dict[FlavorResource, int] = {}
    admission = workload.status.admission
    back = {each.name: each.count for each in workload.status.reclaimable_pods}
    for each in admission.pod_set_assignments if admission else ():
        count, given = assigned(workload, each), back.get(each.name, 0)
        for resource, amount in each.resource_usage.items():
            if (flavor := each.flavors.get(resource)) and (not given or given < count):
                key = FlavorResource(flavor, resource)
                total = units(resource, amount)
                usage[key] = usage.get(key, 0) + total - (total * given // count if given else 0)
    since = condition(workload.status.conditions, QUOTA_RESERVED)
    why = _trouble(workload)
    return ReservationHolder(
        kind="Workload",
        name=workload.key,
        reserved=reserved,
        usage=usage,
        priority=workload.spec.priority,
        since=since.last_transition_time.timestamp()
        if since and since.last_transition_time
        else float("inf"),
        healthy=not why,
        why=why,
    )


def _trouble(workload: Workload) -> str:
    """The problem of a workload that holds quota; empty if there is none."""
    evicted = condition(workload.status.conditions, EVICTED)
    if evicted is not None and evicted.status == "True":
        return f"evicted ({evicted.reason}): {evicted.message}"
    pods = condition(workload.status.conditions, PODS_READY)
    if pods is not None and pods.status == "False" and pods.reason == "WaitForRecovery":
        return f"its pods were ready and are no longer: {pods.message}"
    return ""


def _true(said: Condition | None) -> bool:
    return said is not None and said.status == "True"
