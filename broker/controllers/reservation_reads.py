"""Informers of OME's and Kueue's kinds, all of them optional.

Invariant: a kind that is not installed delays no loop: it counts as read and empty until it is served
(`missing`). No decision is made before each kind is complete or known to be missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from typing import Any

from broker.apis import names
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
from broker.controllers.snapshot import NO_EC2, Ec2Reads, Snapshot
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.informer import Informer
from broker.kube.served_informer import ServedInformer
from broker.kube.watches import Signal
from broker.quota.model import QuotaCohort
from broker.quota.usage import ReservationKey
from broker.reservations.cluster_admission import held
from broker.reservations.flavors import FlavorCatalog
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
from broker.reservations.odcr_status import NO_ODCRS, OdcrSnapshot
from broker.reservations.ownership import ReservationProblem
from broker.reservations.spec import JudgedSpecs, Reservation, reserved_of
from broker.reservations.workloads import WorkloadHolders
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
        return self.cache_of(reserved_of(reservation)).guard(reservation)

    def cache_of(self, reserved: ReservationKey) -> Cache[Any]:
        """The cache of the reservation's kind."""
        return self.reservations.cache if reserved.namespace else self.cluster_reservations.cache

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


class SnapshotBuilder:
    """Builds snapshots from the informers' caches. Safe to call from any loop."""

    def __init__(self, sources: ReservationReads, specs: JudgedSpecs, ec2: Ec2Reads) -> None:
        self._sources = sources
        self._specs = specs
        self._ec2 = ec2
        self._holders = WorkloadHolders()
        self._lock = threading.Lock()
        # Each informer's thread draws its own number, so that no two states have the same one.
        self._numbers = count(1)
        self._changes = 0
        self._flavor_changes = 0
        self._built: tuple[int, bool, Snapshot] | None = None
        self._catalog: tuple[int, bool, FlavorCatalog] | None = None
        self._odcrs = NO_ODCRS
        self._problems: Mapping[ReservationKey, tuple[ReservationProblem, ...]] = {}
        self._readers = Signal()
        self._problem_readers = Signal()
        for informer in (
            sources.reservations,
            sources.cluster_reservations,
            sources.quotas,
            sources.clusters,
            sources.cluster_queues,
            sources.workloads,
            sources.cohorts,
        ):
            informer.on_change(self._changed)
        sources.flavors.on_change(self._flavor_changed)
        sources.namespaces.on_change(self._namespace_changed)

    def take(self) -> Snapshot:
        """The snapshot of the present content of the caches, with the assumptions that they may not show."""
        with self._lock:
            # First, since an assumption is dropped once the caches show its result.
            assumed, inventory = self._ec2.assumed(), self._ec2.inventory()
            changes, missing = self._changes, self._sources.flavors.missing
            if self._built is not None and self._built[:2] == (changes, missing):
                built = self._built[2]
                if (built.assumed, built.inventory) != (assumed, inventory):
                    built = replace(built, version=built.version + 1, assumed=assumed, inventory=inventory)
                    self._built = changes, missing, built
                return built
            listed: tuple[Reservation, ...] = (
                *self._sources.reservations.cache.readable(self._specs.of),
                *self._sources.cluster_reservations.cache.readable(self._specs.of),
            )
            snapshot = Snapshot(
                version=self._built[2].version + 1 if self._built is not None else 1,
                reservations={reserved_of(reservation): reservation for reservation in listed},
                flavors=self._flavor_catalog(missing=missing),
                quotas=self._sources.quotas.cache.list(),
                odcrs=self._odcrs,
                clusters=self._sources.clusters.cache.readable(held),
                queues={queue.name: queue for queue in self._sources.cluster_queues.cache.list()},
                workloads=self._sources.workloads.cache.list(),
                queue_problems=self._problems,
                namespaces=self._sources.namespaces.cache.list(),
                cohorts=[
                    QuotaCohort(name=cohort.name, parent=cohort.spec.parent_name)
                    for cohort in self._sources.cohorts.cache.list()
                ],
                inventory=inventory,
                assumed=assumed,
                _types=self._ec2.types,
                _judged=self._specs,
                _holders=self._holders,
                _guard=self._sources.workloads.cache.guard,
            )
            self._built = changes, missing, snapshot
            return snapshot

    def publish(self, odcrs: OdcrSnapshot) -> None:
        """Replaces the ownership and fulfilment of ODCRs."""
        with self._lock:
            if odcrs == self._odcrs:
                return
            self._odcrs = odcrs
            self._changed()
        self._readers()

    def on_odcrs(self, reader: Callable[[], None]) -> None:
        """Calls `reader` after each change by `publish`."""
        self._readers.subscribe(reader)

    def report(self, reserved: ReservationKey, problems: Iterable[ReservationProblem]) -> bool:
        """Replaces the problems of a reservation's queues; returns whether they have changed."""
        reported = tuple(problems)
        with self._lock:
            if self._problems.get(reserved, ()) == reported:
                return False
            others = {key: known for key, known in self._problems.items() if key != reserved}
            self._problems = {**others, reserved: reported} if reported else others
            self._changed()
        self._problem_readers(reserved)
        return True

    def on_queue_problems(self, reader: Callable[[ReservationKey], None]) -> None:
        """Calls `reader` when the problems of a reservation's queues have changed."""
        self._problem_readers.subscribe(reader)

    def _flavor_catalog(self, *, missing: bool) -> FlavorCatalog:
        """The same object until a flavor changes."""
        changes = self._flavor_changes
        if self._catalog is None or self._catalog[:2] != (changes, missing):
            listed = (
                None if missing else {flavor.name: flavor for flavor in self._sources.flavors.cache.list()}
            )
            self._catalog = changes, missing, FlavorCatalog(listed)
        return self._catalog[2]

    def _changed(self, *_: object) -> None:
        self._changes = next(self._numbers)

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        """Pods, quotas and controllers change Namespaces often, and draws-from seldom."""
        if old is None or new is None or drawn_by_default(old) != drawn_by_default(new):
            self._changed()

    def _flavor_changed(self, *_: object) -> None:
        self._flavor_changes = self._changes = next(self._numbers)


def drawn_by_default(namespace: Namespace | None) -> str | None:
    """The reservation that the namespace's pods draw from, unless they name another."""
    return None if namespace is None else namespace.annotations.get(names.DRAWS_FROM)
