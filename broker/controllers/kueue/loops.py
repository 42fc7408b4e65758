"""The loops for Kueue: its check, the queues of each reservation, and the workloads that wait for the check.

Invariant: each loop begins once every kind is read or known to be missing, and does nothing without Kueue.
If Kueue is installed while the broker runs, the first list of its kinds triggers all loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.apis import names
from broker.apis.core import ResourceQuota
from broker.apis.kueue import ClusterQueue, LocalQueue, Namespace, Workload
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.kueue.admission import AdmissionCheckController
from broker.controllers.kueue.answers import PARKED, by_parked, demands
from broker.controllers.kueue.check import AdmissionCheckKeeper
from broker.controllers.kueue.keeper import QueueController
from broker.controllers.kueue.ownership import (
    BY_QUEUE,
    WAITING,
    Reservation,
    by_waiting,
    owner_of,
)
from broker.controllers.kueue.render import CHECK
from broker.controllers.kueue.strangers import UnattributedInstances
from broker.controllers.kueue.view import KueueView, reserves
from broker.controllers.odcr.view import OwnershipView
from broker.controllers.ome.shared import ReservationDependencies
from broker.kube.batch import Batcher
from broker.kube.controller import Controller, Result
from broker.kube.errors import ApiError
from broker.kube.queue import WorkQueue
from broker.kube.singleton import Singleton
from broker.quota.usage import ReservationHolder, Reserved
from providers.model import ProviderError

LONGEST = 60.0  # the longest backoff in seconds between two tries at one reservation's queues
EVERY = 300.0


class KueueLoops:
    """The caller starts and stops `loops`. `others`: holders of a reservation's instances besides Kueue's
    workloads."""

    def __init__(
        self,
        shared: ReservationDependencies,
        view: KueueView,
        holdings: OwnershipView,
        *,
        others: Callable[[Reserved], Iterable[ReservationHolder]],
    ) -> None:
        self._reads = reads = shared.reads
        clock = shared.clock
        self._check = AdmissionCheckKeeper(shared.client, reads, clock=clock)
        keeper = QueueController(
            shared.client,
            reads,
            view,
            self._check,
            settings=shared.settings,
            recorder=shared.recorder,
        )
        answerer = AdmissionCheckController(
            shared.client,
            reads,
            shared.provider,
            holdings=holdings.holdings,
            others=others,
            settings=shared.settings,
            clock=clock,
            strange=UnattributedInstances(shared.nodes, shared.claims, clock=clock).look,
        )
        self._queues = WorkQueue[str]("queues", clock=clock, longest=LONGEST)
        self._checks = Batcher[str]("checks", clock=clock)
        self._asked = Batcher[str]("admissions", clock=clock)
        self.loops = (
            Singleton(
                "checks",
                self._run_check,
                batcher=self._checks,
                clock=clock,
                synced=reads.synced,
                every=EVERY,
            ),
            Controller("queues", keeper.reconcile, queue=self._queues, clock=clock, synced=reads.synced),
            Singleton(
                "admissions",
                answerer.run,
                batcher=self._asked,
                clock=clock,
                synced=lambda: reads.synced() and holdings.known,
                expected=(ProviderError,),
            ),
        )
        self._wire(holdings)

    def _wire(self, holdings: OwnershipView) -> None:
        reads = self._reads
        reads.reservations.on_change(self._reservation_changed)
        reads.cluster_reservations.on_change(self._reservation_changed)
        reads.cluster_queues.on_change(self._queue_changed)
        reads.local_queues.on_change(self._local_changed)
        reads.namespaces.on_change(self._namespace_changed)
        reads.workloads.on_change(self._workload_changed)
        reads.clusters.on_change(self._cluster_changed)
        reads.quotas.on_change(self._quota_changed)
        reads.cohorts.on_change(lambda *_: self._cohorts_changed())
        reads.checks.on_change(lambda *_: self._check_changed())
        reads.cluster_queues.on_listed(self._all)
        reads.cluster_queues.on_missing(self._all)
        reads.checks.on_listed(self._check_changed)
        holdings.on_change(lambda: self._asked.add("holdings"))

    def _run_check(self, _items: object) -> Result | None:
        try:
            self._check.run(wanted=any(_asks(each) for each in self._reservations()))
        except ApiError:
            self._all()  # the reservations report the error
            raise
        return None

    def _reservations(self) -> list[Reservation]:
        return [*self._reads.reservations.cache.list(), *self._reads.cluster_reservations.cache.list()]

    def _all(self) -> None:
        for each in self._reservations():
            self._queues.add(each.key)

    def _quota_changed(self, old: ResourceQuota | None, new: ResourceQuota | None) -> None:
        for each in (old, new):
            if each is not None and (old is None or new is None or old.spec != new.spec):
                self._space_changed(each.namespace)

    def _space_changed(self, namespace: str) -> None:
        """The namespace's ResourceQuotas may now have room for other reservations in it."""
        for each in self._reads.reservations.cache.list():
            if each.namespace == namespace:
                self._queues.add(each.key)

    def _cohorts_changed(self) -> None:
        self._all()
        self._room()

    def _check_changed(self) -> None:
        self._checks.add(CHECK)
        self._all()

    def _reservation_changed(self, old: Reservation | None, new: Reservation | None) -> None:
        one = new or old
        if one is None or (old and new and _same(old, new)):
            return
        self._queues.add(one.key)
        self._checks.add(one.key)
        if one.namespace in {each.namespace for each in self._reads.quotas.cache.list()}:
            self._space_changed(one.namespace)

    def _queue_changed(self, old: ClusterQueue | None, new: ClusterQueue | None) -> None:
        if old and new and _same(old, new):
            return  # only the status changed, in which Kueue counts
        for queue in (old, new):
            if queue is None:
                continue
            if (reserved := owner_of(queue)) is not None:
                self._queues.add(str(reserved))
                self._checks.add(queue.name)
            for informer in (self._reads.reservations, self._reads.cluster_reservations):
                for each in informer.cache.by(BY_QUEUE, queue.name):
                    self._queues.add(each.key)

    def _local_changed(self, old: LocalQueue | None, new: LocalQueue | None) -> None:
        if old and new and _same(old, new):
            return
        for local in (old, new):
            if local is None:
                continue
            wanting = (owner_of(local), Reserved(local.namespace, local.name), Reserved("", local.name))
            for reserved in sorted({str(each) for each in wanting if each is not None}):
                self._queues.add(reserved)

    def _cluster_changed(self, old: DedicatedAICluster | None, new: DedicatedAICluster | None) -> None:
        before, after = _holds(old), _holds(new)
        for reserved in sorted({before, after} - {""}) if before != after else ():
            self._queues.add(reserved)
        if old is not None and (new is None or old.status.admission != new.status.admission):
            self._room()

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        for each in (old, new):
            if each is not None and (name := each.annotations.get(names.DRAWS_FROM)):
                self._queues.add(name)

    def _workload_changed(self, old: Workload | None, new: Workload | None) -> None:
        """Triggers on a request, an eviction, and on room that a workload no longer uses."""
        if new is not None and CHECK in (*by_waiting(new), *by_parked(new)):
            self._asked.add(new.key)
        elif old is not None and (
            new is None or demands(old) != demands(new) or reserves(old) > reserves(new)
        ):
            self._room()

    def _room(self) -> None:
        """Triggers the waiting workloads: there may be more room than before."""
        workloads = self._reads.workloads.cache
        if any(workloads.by(index, CHECK) for index in (WAITING, PARKED)):
            self._asked.add("room")


def _same(old: Reservation | ClusterQueue | LocalQueue, new: Reservation | ClusterQueue | LocalQueue) -> bool:
    """Whether only the status differs, or metadata that the loops do not read."""
    one, two = old.metadata, new.metadata
    return (
        old.spec == new.spec
        and one.uid == two.uid
        and one.labels == two.labels
        and one.annotations == two.annotations
        and one.owner_references == two.owner_references
        and old.deleting == new.deleting
    )


def _holds(cluster: DedicatedAICluster | None) -> str:
    """The reservation of the cluster's held quota; empty without quota."""
    admission = cluster.status.admission if cluster is not None else None
    return admission.reservation if admission is not None else ""


def _asks(reservation: Reservation) -> bool:
    return not reservation.deleting and reservation.annotations.get(names.ADMISSION) != "Off"
