"""The triggers of the loops for Kueue: its check, the queues of each reservation, and waiting workloads.

Invariant: each loop begins once every kind is read or known to be missing, and does nothing without Kueue.
If Kueue is installed while the broker runs, the first list of its kinds triggers all loops.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.apis import names
from broker.apis.core import ResourceQuota
from broker.apis.kueue import ClusterQueue, LocalQueue, Namespace, Workload
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.kueue.admission import AdmissionCheckController
from broker.controllers.kueue.answers import demands
from broker.controllers.kueue.check import AdmissionCheckReconciler
from broker.controllers.kueue.queues import QueueController
from broker.kube.controller import Controller
from broker.kube.singleton import Singleton
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_checks import CHECK, PARKED, by_parked
from broker.reservations.kueue_objects import BY_QUEUE, WAITING, by_waiting, owner_of
from broker.reservations.spec import Reservation
from broker.reservations.workloads import counts_as, reserves
from broker.wiring.predicates import differ, spec, without_status
from broker.wiring.slots import watch_slot_rules
from broker.wiring.term import Term

EVERY = 300.0


def add_kueue(term: Term) -> AdmissionCheckReconciler:
    """Returns the controller of the broker's AdmissionCheck."""
    check = AdmissionCheckReconciler(term)
    _watch_check(term, check)
    _watch_queues(term, check)
    _watch_admissions(term)
    return check


def _watch_check(term: Term, check: AdmissionCheckReconciler) -> None:
    manager, reads = term.manager, term.reads
    loop: Singleton[str] = manager.singleton(
        "checks", lambda _: check.run(), every=EVERY, synced=reads.synced
    )
    for reservations in (reads.reservations, reads.cluster_reservations):
        loop.watches(reservations, predicate=differ(without_status))
    (
        loop.watches(reads.cluster_queues, predicate=differ(_own_queue))
        .watches(reads.checks)
        .on(reads.checks.on_listed)
    )


def _watch_queues(term: Term, check: AdmissionCheckReconciler) -> None:
    """Watches what changes a queue; the keys are those of reservations."""
    manager, reads, queues = term.manager, term.reads, QueueController(term, check)

    def every_key(*_: object) -> Iterable[str]:
        listed = (reads.reservations.cache.list(), reads.cluster_reservations.cache.list())
        return [reservation.key for reservations in listed for reservation in reservations]

    def in_namespace(namespace: str) -> Iterable[str]:
        listed = reads.reservations.cache.list()
        return [reservation.key for reservation in listed if reservation.namespace == namespace]

    def with_neighbours(reservation: Reservation) -> Iterable[str]:
        """The ResourceQuotas of the namespace may now have room for its other reservations."""
        limited = {quota.namespace for quota in reads.quotas.cache.list()}
        others = in_namespace(reservation.namespace) if reservation.namespace in limited else ()
        return (reservation.key, *others)

    def limited_by(quota: ResourceQuota) -> Iterable[str]:
        return in_namespace(quota.namespace)

    def of_replaced_use(workload: Workload) -> Iterable[str]:
        """The reservation, if the workload uses a flavor that is not in its queue any more."""
        admission = workload.status.admission
        queue = reads.cluster_queues.cache.get(admission.cluster_queue) if admission else None
        if admission is None or queue is None or (owner := owner_of(queue)) is None:
            return ()
        named = {flavor.name for group in queue.spec.resource_groups for flavor in group.flavors}
        used = {flavor for pods in admission.pod_set_assignments for flavor in pods.flavors.values()}
        return () if used <= named else (str(owner),)

    def of_queue(queue: ClusterQueue) -> Iterable[str]:
        owner = owner_of(queue)
        named = [
            reservation.key
            for informer in (reads.reservations, reads.cluster_reservations)
            for reservation in informer.cache.by(BY_QUEUE, queue.name)
        ]
        return named if owner is None else (str(owner), *named)

    loop: Controller[str] = manager.controller("queues", queues.reconcile, workers=4, synced=reads.synced)
    (
        loop.watches(reads.reservations, with_neighbours, differ(without_status))
        .watches(reads.cluster_reservations, with_neighbours, differ(without_status))
        # In the status Kueue counts.
        .watches(reads.cluster_queues, of_queue, differ(without_status))
        .watches(reads.local_queues, _of_local_queue, differ(without_status))
        .watches(reads.namespaces, _of_namespace)
        .watches(reads.quotas, limited_by, differ(spec))
        .watches(reads.clusters, _held_by, differ(_admission))
        .watches(reads.workloads, of_replaced_use, differ(counts_as))
        .watches(reads.cohorts, every_key)
        .watches(reads.checks, every_key)
        .on(reads.cluster_queues.on_listed, every_key)
        .on(reads.cluster_queues.on_missing, every_key)
        .on(reads.checks.on_listed, every_key)
        # The reservations report the error.
        .on(check.failed.subscribe, every_key)
    )


def _watch_admissions(term: Term) -> None:
    """Requests, evictions, and room that a workload or a cluster no longer uses."""
    manager, reads, admissions = term.manager, term.reads, AdmissionCheckController(term)

    def waits(*_: object) -> bool:
        """Whether a workload waits, for which there may be more room than before."""
        return any(reads.workloads.cache.by(index, CHECK) for index in (WAITING, PARKED))

    def requests_or_frees(old: Workload | None, new: Workload | None) -> bool:
        if new is not None and CHECK in (*by_waiting(new), *by_parked(new)):
            return True
        return old is not None and _frees(old, new) and waits()

    loop: Singleton[str] = manager.singleton(
        "admissions", admissions.run, synced=lambda: reads.synced() and reads.snapshot().odcrs.known
    )
    loop.watches(reads.workloads, predicate=requests_or_frees)
    watch_slot_rules(loop, reads, when=waits)


def _frees(old: Workload, new: Workload | None) -> bool:
    return new is None or demands(old) != demands(new) or reserves(old) > reserves(new)


def _own_queue(queue: ClusterQueue | None) -> object:
    """The queue without its status; None if the broker did not make it."""
    return None if queue is None or owner_of(queue) is None else without_status(queue)


def _of_local_queue(local: LocalQueue) -> Iterable[str]:
    named = (owner_of(local), ReservationKey(local.namespace, local.name), ReservationKey("", local.name))
    return [str(reserved) for reserved in named if reserved is not None]


def _of_namespace(namespace: Namespace) -> Iterable[str]:
    name = namespace.annotations.get(names.DRAWS_FROM)
    return (name,) if name else ()


def _admission(cluster: DedicatedAICluster | None) -> object:
    """The cluster's held quota."""
    return cluster.status.admission if cluster is not None else None


def _held_by(cluster: DedicatedAICluster) -> Iterable[str]:
    """The reservation of the cluster's held quota."""
    admission = cluster.status.admission
    return (admission.reservation,) if admission is not None and admission.reservation else ()
