"""Informers of OME's and Kueue's kinds, all of them optional.

Invariant: a kind that is not installed delays no loop: it counts as read and empty until it is served
(`missing`). No decision is made before each kind is complete or known to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from broker.apis.core import ResourceQuota
from broker.apis.kueue import (
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    Namespace,
    PriorityClass,
    ResourceFlavor,
    Workload,
    WorkloadPriorityClass,
)
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.controllers.snapshot import NO_EC2, Ec2Reads, Snapshot, SnapshotBuilder
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.informer import Informer
from broker.kube.served_informer import ServedInformer
from broker.reservations.kueue_checks import PARKED, by_parked
from broker.reservations.kueue_objects import (
    BY_QUEUE,
    BY_RESERVATION,
    WAITING,
    by_admission,
    by_queue,
    by_reservation,
    by_waiting,
)
from broker.reservations.spec import JudgedSpecs, Reservation
from broker.settings import Settings


class ReservationReads:
    """Informers of all these kinds. The reads are complete once each is `synced` or `missing`."""

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock,
        settings: Settings | None = None,
        ec2: Ec2Reads = NO_EC2,
    ) -> None:
        given = settings or Settings()
        queues = {BY_QUEUE: by_queue}
        by_owner = {BY_RESERVATION: by_reservation}
        self.reservations = Informer(client, CapacityReservation, clock=clock, indexes=queues)
        self.cluster_reservations = Informer(client, ClusterCapacityReservation, clock=clock, indexes=queues)
        self.clusters = Informer(client, DedicatedAICluster, clock=clock)
        self.profiles = Informer(client, DedicatedAIClusterProfile, clock=clock)
        self.flavors = ServedInformer(client, ResourceFlavor, clock=clock)
        self.cluster_queues = ServedInformer(client, ClusterQueue, clock=clock, indexes=by_owner)
        self.local_queues = ServedInformer(client, LocalQueue, clock=clock, indexes=by_owner)
        self.cohorts = ServedInformer(client, Cohort, clock=clock)
        self.workloads = ServedInformer(
            client,
            Workload,
            clock=clock,
            indexes={BY_QUEUE: by_admission, WAITING: by_waiting, PARKED: by_parked},
        )
        self.checks = ServedInformer(client, AdmissionCheck, clock=clock)
        self.workload_priorities = ServedInformer(client, WorkloadPriorityClass, clock=clock)
        self.priorities = Informer(client, PriorityClass, clock=clock)
        self.namespaces = Informer(client, Namespace, clock=clock)
        self.quotas = Informer(client, ResourceQuota, clock=clock)
        informers = [informer for informer in vars(self).values() if isinstance(informer, Informer)]
        self.named: Mapping[str, Informer[Any]] = {informer.plural: informer for informer in informers}
        for optional in informers:
            optional.optional = True
        specs = JudgedSpecs(default_cohort=given.default_cohort, strict=given.strict)
        for informer in (self.reservations, self.cluster_reservations):
            informer.on_change(lambda old, new: specs.forget(old.uid) if old and not new else None)
        self.snapshots = SnapshotBuilder(self, specs, ec2)

    def snapshot(self) -> Snapshot:
        """Reservations, EC2's description and the users of both, as they are known now."""
        return self.snapshots.take()

    def guard(self, reservation: Reservation) -> AbstractContextManager[object]:
        """`Cache.guard` of a reservation of either kind."""
        if isinstance(reservation, CapacityReservation):
            return self.reservations.cache.guard(reservation)
        return self.cluster_reservations.cache.guard(reservation)

    def left_out(self) -> frozenset[str]:
        """The uids of the reservations that are left out."""
        caches = (self.reservations.cache, self.cluster_reservations.cache)
        return frozenset(partial.uid for cache in caches for partial in cache.left_out)

    @property
    def kueue(self) -> bool:
        """Whether Kueue's ClusterQueues are served."""
        return self.cluster_queues.served

    def priority(self, name: str) -> int | None:
        """The value of a priority class, Kueue's own first; None if there is none of that name."""
        priority_class = self.workload_priorities.cache.get(name) or self.priorities.cache.get(name)
        return None if priority_class is None else priority_class.value

    def synced(self) -> bool:
        return all(informer.complete for informer in self.named.values())
