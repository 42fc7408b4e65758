"""The objects that the status of a reservation shows: its holders, its queue, and those that delay its end.

Nothing is decided here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ACTIVE, ClusterQueue, LocalQueue
from broker.apis.meta import condition
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.snapshot import Snapshot
from broker.quota.usage import ReservationHolder, ReservationKey
from broker.reservations.cluster_holders import Holders
from broker.reservations.conditions import QueueState
from broker.reservations.kueue_objects import BY_RESERVATION, queue_name
from broker.reservations.odcr_status import unreleased
from broker.reservations.queue_problems import BLOCKERS, STOPPED
from broker.reservations.spec import Reservation, reserved_of
from broker.text import counted

BY_POLICY: Final = "Stopped"  # Kueue's reason if a queue's stopPolicy stops it


def holders_of(
    reads: ReservationReads, snapshot: Snapshot, claims: Iterable[NodeClaim]
) -> Mapping[ReservationKey, Sequence[ReservationHolder]]:
    """The users of each reservation. Claims count by themselves only if Kueue counts no quota."""
    usages: list[Holders] = [snapshot.cluster_holders, snapshot.workload_holders]
    if not reads.kueue:
        usages.append(snapshot.claim_holders(claims))
    joined: dict[ReservationKey, list[ReservationHolder]] = defaultdict(list)
    for usage in usages:
        for reserved, holders in usage.items():
            joined[reserved] += holders
    return joined


def queue_state(reads: ReservationReads, reserved: ReservationKey, snapshot: Snapshot) -> QueueState | None:
    """The state of its ClusterQueue; None without Kueue."""
    if not reads.kueue:
        return None
    active, reason, message = _active(reserved, snapshot)
    if not active and reason not in {item.reason for item in snapshot.queue_problems.get(reserved, ())}:
        message += f" (kubectl describe clusterqueue {queue_name(reserved)})"
    return QueueState(active=active, reason=reason, message=message)


def remaining(reads: ReservationReads, reservation: Reservation, snapshot: Snapshot) -> Sequence[str]:
    """The remaining objects of a deleted reservation, as messages. Without any it may be released."""
    reserved, odcrs = reserved_of(reservation), snapshot.odcrs
    left = [
        f"DedicatedAICluster {holder.name} holds quota: delete it (kubectl delete dedicatedaicluster "
        f"{holder.name}) or let it name another reservation"
        for holder in snapshot.cluster_holders.get(reserved, ())
        if holder.usage
    ]
    left += remaining_queues(reads, reserved)
    if not odcrs.is_deletable(reserved, uid=reservation.uid):
        left.append(unreleased(odcrs.status(reserved)))
    return left


def remaining_queues(reads: ReservationReads, reserved: ReservationKey) -> Sequence[str]:
    """The broker's remaining objects in Kueue for the reservation, as text."""
    if not reads.kueue:
        return ()
    left = []
    for queue in reads.cluster_queues.cache.by(BY_RESERVATION, str(reserved)):
        holds = queue.status.reserving_workloads
        users = counted(holds, "workload that holds", "workloads that hold")
        left.append(f"ClusterQueue {queue.name}" + (f", for {users} its quota" if holds else ""))
    for local in reads.local_queues.cache.by(BY_RESERVATION, str(reserved)):
        left.append(f"LocalQueue {local.key}")
    return left


def _active(reserved: ReservationKey, snapshot: Snapshot) -> tuple[bool, str, str]:
    """Whether the ClusterQueue is active or stopped on purpose, with reason and message."""
    name, queue = queue_name(reserved), snapshot.queue(reserved)
    problems = snapshot.queue_problems.get(reserved, ())
    if queue is None:
        if problems:
            return False, problems[0].reason, problems[0].message
        return False, "ClusterQueueNotCreated", f"ClusterQueue {name} does not exist yet"
    shown = condition(queue.status.conditions, ACTIVE)
    if shown is None or shown.status == "Unknown":
        return (
            False,
            "ClusterQueuePending",
            f"Kueue has not reported yet whether ClusterQueue {name} is active: does its controller run?",
        )
    if shown.reason == BY_POLICY and any(problem.reason == STOPPED for problem in problems):
        return True, shown.reason, shown.message  # the stop is intended
    why = next((problem for problem in problems if problem.reason in BLOCKERS), None)
    if shown.status != "True" and why is not None:
        return False, why.reason, f"{why.message}; Kueue reports {shown.reason}: {shown.message}"
    return shown.status == "True", shown.reason, shown.message


def status_inputs(queue: ClusterQueue | LocalQueue | None) -> object:
    """The part of a queue that its reservation's status uses. Kueue updates the rest with every workload."""
    if queue is None:
        return None
    holds = queue.status.reserving_workloads if isinstance(queue, ClusterQueue) and queue.deleting else 0
    active = condition(queue.status.conditions, ACTIVE) if isinstance(queue, ClusterQueue) else None
    meta = queue.metadata
    return meta.uid, meta.labels, meta.annotations, queue.deleting, queue.spec, active, holds
