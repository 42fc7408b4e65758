"""The loops about reservations: their status, and the annotations of objects that draw from them.

Invariant: each loop waits for the caches that it reads, and for no kind that is not installed. The broker's
launches wait for none of these loops, so that a cluster without OME's definitions launches all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace, Workload
from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.controllers.annotations.reporter import DRAWING, AnnotationReporter, Key, user_annotations
from broker.controllers.capacityreservation.controller import ReservationController, UsageThrottle
from broker.controllers.capacityreservation.facts import JointFactsBuilder
from broker.controllers.capacityreservation.related_objects import status_inputs
from broker.controllers.capacityreservation.unattributed import UnattributedUsageReader
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.reservation_reads import drawn_by_default
from broker.kube.cache import Cache
from broker.kube.singleton import Singleton
from broker.reservations.machines import visible_state
from broker.reservations.workloads import counts_as
from broker.wiring.predicates import differ, serves, without_status
from broker.wiring.term import Term

# Seconds. By time alone EC2 reservations end, and writes of an earlier leader are reconciled.
EVERY = 60.0
# Longest delay in seconds until a change starts a pass, however many changes follow.
LONGEST_BATCH = 0.3


def reservation_status(shared: ReservationDependencies) -> tuple[UsageThrottle, UnattributedUsageReader]:
    """The writer of statuses, and the reader of the instances that are no claims."""
    unattributed = UnattributedUsageReader(
        shared.caches.nodes,
        shared.caches.pods,
        steady_seconds=shared.settings.reservation_steady_seconds,
    )
    controller = ReservationController(shared, JointFactsBuilder(shared, unattributed))
    return UsageThrottle(controller.run), unattributed


def add_reservations(term: Term) -> Singleton[str]:
    """The status of reservations: every watched kind, and a timer for time-based transitions."""
    manager, read, reads, inventory = term.manager, term.read, term.reads, term.inventory
    status, unattributed = reservation_status(term)

    # This loop writes the status: a change by hand is corrected in the next pass.
    def reservation_changed(old: Object | None, new: Object | None) -> bool:
        return without_status(old) != without_status(new) or status.changed()

    def use_changed(old: Workload | None, new: Workload | None) -> bool:
        return counts_as(old) != counts_as(new) and status.changed()

    loop: Singleton[str] = manager.singleton(
        "reservation",
        lambda _: status.run(),
        every=EVERY,
        longest=LONGEST_BATCH,
        synced=lambda: term.synced() and inventory.described and reads.snapshot().odcrs.known,
    )
    for kind in (reads.clusters, reads.flavors, reads.workload_priorities, reads.priorities, reads.quotas):
        loop.watches(kind)
    for reservations in (reads.reservations, reads.cluster_reservations):
        loop.watches(reservations, predicate=reservation_changed)
    return (
        loop.watches(reads.cluster_queues, predicate=differ(status_inputs))
        .watches(reads.local_queues, predicate=differ(status_inputs))
        .watches(reads.workloads, predicate=use_changed)
        .watches(read.nodes, predicate=differ(visible_state))
        .watches(read.claims, predicate=differ(_launched))
        .watches(reads.namespaces, predicate=differ(drawn_by_default))
        .on(inventory.on_change)
        .on(unattributed.on_change)
        .on(reads.snapshots.on_odcrs)
        .on(reads.snapshots.on_queue_problems, loop.default_keys)
    )


def add_annotations(term: Term) -> None:
    """Objects with changed annotations; all objects that draw, when a reservation comes or goes."""
    manager, reads = term.manager, term.reads
    annotations = AnnotationReporter(
        _annotated(term),
        lambda: reads.snapshot().rights,
        kueue=lambda: reads.kueue,
        recorder=term.recorder,
    )
    loop: Singleton[Key] = manager.singleton("annotations", annotations.run, synced=term.synced)
    caches: Mapping[str, Cache[Any]] = annotations.caches
    for cache in caches.values():
        loop.watches(cache, lambda changed: ((changed.KIND.kind, changed.key),), _annotations_changed)
    for reservations in (reads.reservations, reads.cluster_reservations):
        loop.watches(reservations, lambda _: (DRAWING,), differ(serves))


def _annotated(term: Term) -> Mapping[str, Cache[Any]]:
    """The caches of kinds with annotations of the broker, by kind."""
    reads = term.reads
    return {
        NodeClaim.KIND.kind: term.caches.claims,
        NodePool.KIND.kind: term.caches.pools,
        EC2NodeClass.KIND.kind: term.read.classes.cache,
        CapacityReservation.KIND.kind: reads.reservations.cache,
        ClusterCapacityReservation.KIND.kind: reads.cluster_reservations.cache,
        DedicatedAICluster.KIND.kind: reads.clusters.cache,
        DedicatedAIClusterProfile.KIND.kind: reads.profiles.cache,
        Namespace.KIND.kind: reads.namespaces.cache,
    }


def _launched(claim: NodeClaim | None) -> tuple[object, ...]:
    """The parts of a claim that decide which slot its node takes."""
    if claim is None or not claim.status.provider_id:
        return ()
    return claim.labels, claim.status.node_name, claim.deleting


def _annotations_changed(old: Object | None, new: Object | None) -> bool:
    return _annotations(old) != _annotations(new) and user_annotations(old) != user_annotations(new)


def _annotations(changed: Object | None) -> object:
    """The annotations, and a pool's spec, which has its template. Cheap to compare."""
    if changed is None:
        return None
    return changed.annotations, changed.spec if isinstance(changed, NodePool) else None
