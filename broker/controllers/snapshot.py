"""One immutable snapshot of reservations, EC2 and the users of both, for each loop that decides about them.

Invariant: loops that read snapshots of one version decide by the same reservations, judged specs, quota
refusals, flavors, owners of ODCRs, workloads, dedicated clusters, descriptions of EC2 and assumptions about
slots. A snapshot never changes. The next one has a higher version, and is built only after one of these has
changed. A pass takes one, and reads none of this beside it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Final, Protocol

from broker.apis import names
from broker.apis.core import ResourceQuota
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ClusterQueue, Cohort, Namespace, ResourceFlavor, Workload
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation, ReservationSpec
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apis.ome_quotas import over_quota
from broker.apis.ome_rules import JudgedSpec
from broker.capacity.inventory import Inventory
from broker.controllers.assumed import AssumedSlots
from broker.kube.cache import Guard
from broker.kube.informer import Informer
from broker.quota.hardware import usage
from broker.quota.model import QuotaCohort
from broker.quota.usage import ReservationHolder, ReservationKey
from broker.reservations import queues
from broker.reservations.claim_holders import claim_holders
from broker.reservations.cluster_admission import held
from broker.reservations.cluster_holders import Holders, cluster_holders, unqueued
from broker.reservations.drawing import DrawRights
from broker.reservations.flavors import NO_FLAVORS, FlavorCatalog
from broker.reservations.kueue_objects import owner_of, owning_cluster, queue_name
from broker.reservations.odcr_status import NO_ODCRS, OdcrSnapshot
from broker.reservations.ownership import ReservationProblem
from broker.reservations.slots import why_barred
from broker.reservations.spec import JudgedSpecs, Reservation, reserved_of
from broker.reservations.workloads import WorkloadHolders
from providers.model import InstanceType


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Reads:
    """The reads of EC2's last description, of its instance types, and of the assumptions about slots."""

    inventory: Callable[[], Inventory] = Inventory
    types: Callable[[], Mapping[str, InstanceType]] = dict
    assumed: Callable[[], AssumedSlots] = AssumedSlots


NO_EC2: Final = Ec2Reads()


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """`quotas`: the ResourceQuotas of all namespaces. `odcrs`: as the provisioner published them last.

    `queues`: Kueue's ClusterQueues by name, those of others too. `queue_problems`: of the reservations'
    queues, as their controller reported them.
    """

    version: int
    reservations: Mapping[ReservationKey, Reservation]
    flavors: FlavorCatalog = NO_FLAVORS
    quotas: Sequence[ResourceQuota] = ()
    odcrs: OdcrSnapshot = NO_ODCRS
    clusters: Sequence[DedicatedAICluster] = ()
    queues: Mapping[str, ClusterQueue] = field(default_factory=dict)
    workloads: Sequence[Workload] = ()
    queue_problems: Mapping[ReservationKey, tuple[ReservationProblem, ...]] = field(default_factory=dict)
    namespaces: Sequence[Namespace] = ()
    cohorts: Sequence[QuotaCohort] = ()
    inventory: Inventory = field(default_factory=Inventory)
    assumed: AssumedSlots = field(default_factory=AssumedSlots)
    _types: Callable[[], Mapping[str, InstanceType]] = field(default=dict, repr=False)
    _judged: JudgedSpecs = field(default_factory=JudgedSpecs, repr=False)
    _holders: WorkloadHolders = field(default_factory=WorkloadHolders, repr=False)
    _guard: Guard[Workload] = nullcontext

    @cached_property
    def types(self) -> Mapping[str, InstanceType]:
        """EC2's instance types, read when a pass first needs them. Raises ProviderError."""
        return self._types()

    @cached_property
    def rights(self) -> DrawRights:
        """Which pods, claims and namespaces may draw from which reservation."""
        return DrawRights(self.reservations, self.namespaces)

    def judged(self, reservation: Reservation) -> JudgedSpec:
        """The judged spec of a reservation."""
        return self._judged.of(reservation)

    @cached_property
    def refusals(self) -> Mapping[ReservationKey, tuple[str, ...]]:
        """Reservations that the ResourceQuotas of their namespace do not allow, with the reasons.

        The webhook checks quotas too. Two creates at the same time may pass it, and so may objects older than
        the quota or the webhook. The younger object is refused here. It keeps the slots that it holds.
        """
        namespaces = {quota.namespace for quota in self.quotas}
        reservations: dict[str, list[CapacityReservation]] = defaultdict(list)
        for reservation in self.reservations.values() if namespaces else ():
            if isinstance(reservation, CapacityReservation) and reservation.namespace in namespaces:
                reservations[reservation.namespace].append(reservation)
        return {
            ReservationKey(namespace, name): reasons
            for namespace, listed in reservations.items()
            for name, reasons in over_quota(namespace, listed, self.quotas).items()
        }

    @cached_property
    def barred(self) -> Mapping[ReservationKey, str]:
        """Reservations that grant nothing new, with the reason."""
        return {
            reserved: why
            for reserved, reservation in self.reservations.items()
            if (
                why := why_barred(
                    reservation, self.judged(reservation).problems, self.refusals.get(reserved, ())
                )
            )
        }

    @cached_property
    def specs(self) -> Mapping[ReservationKey, ReservationSpec]:
        """Judged specs of reservations without problems. A deleted one counts until it is gone."""
        return {
            reserved: self.judged(reservation).spec
            for reserved, reservation in self.reservations.items()
            if not self.judged(reservation).problems and not self.refusals.get(reserved)
        }

    @cached_property
    def full(self) -> Mapping[ReservationKey, str]:
        """Reservations with users of a flavor that they no longer have, since it was renamed; the amounts.

        They grant nothing more until these users have left.
        """
        full = {}
        for reserved, spec in self.specs.items():
            holders = (*self.cluster_holders.get(reserved, ()), *self.workload_holders.get(reserved, ()))
            limits = queues.limits(queues.queue(reserved, spec), spec) if holders else {}
            if holders and (why := queues.replaced(usage(holders), limits)):
                full[reserved] = why
        return full

    @cached_property
    def resource_flavors(self) -> Mapping[str, ResourceFlavor]:
        """The ResourceFlavors by name; without Kueue, one for each flavor that `specs` name."""
        return self.flavors.usable(
            {
                flavor.name
                for spec in self.specs.values()
                for group in spec.resource_groups
                for flavor in group.flavors
            }
        )

    def queue(self, reserved: ReservationKey) -> ClusterQueue | None:
        """The broker's ClusterQueue of the reservation."""
        name = queue_name(reserved)
        return self.queues.get(name) if self._owner(name) == reserved else None

    @cached_property
    def cluster_holders(self) -> Holders:
        """The dedicated clusters of each reservation, with the quota that they hold."""
        return cluster_holders(self.clusters, self.reservations)

    def claim_holders(self, claims: Iterable[NodeClaim]) -> Holders:
        """Those of these claims that draw from reservations, with the quota that they hold."""
        return claim_holders(claims, self.specs, self.resource_flavors, self.rights)

    @cached_property
    def unqueued_clusters(self) -> Holders:
        """The `cluster_holders` for which Kueue counts no Workload."""
        queued = {(queue, cluster.name) for _, queue, cluster in self._admitted if cluster is not None}
        return unqueued(self.cluster_holders, queued)

    @cached_property
    def workload_holders(self) -> Holders:
        """The workloads with reserved quota, by name; without those of dedicated clusters."""
        self._holders.forget(len(self.workloads))
        owners = {name: owner for name in self.queues if (owner := self._owner(name)) is not None}
        holders: dict[ReservationKey, list[ReservationHolder]] = defaultdict(list)
        for workload, queue, cluster in self._admitted:
            if cluster is not None or (reserved := owners.get(queue)) is None:
                continue
            with self._guard(workload):
                if (holder := self._holders.of(workload, reserved)) is not None:
                    holders[reserved].append(holder)
        for of_reservation in holders.values():
            of_reservation.sort(key=lambda holder: holder.name)
        return holders

    def _owner(self, name: str) -> ReservationKey | None:
        """The reservation that the broker made a ClusterQueue for. Under another name it is none of its."""
        queue = self.queues.get(name)
        reserved = owner_of(queue) if queue is not None else None
        return reserved if reserved is not None and queue_name(reserved) == name else None

    @cached_property
    def _admitted(self) -> Sequence[tuple[Workload, str, DedicatedAICluster | None]]:
        """The workloads with quota, their ClusterQueue, and the cluster that the broker made each for."""
        clusters = {cluster.name: cluster for cluster in self.clusters}
        return [
            (workload, admission.cluster_queue, owning_cluster(workload, clusters.get))
            for workload in self.workloads
            if (admission := workload.status.admission) is not None
        ]


class SnapshotSources(Protocol):
    """The informers of the kinds that a snapshot contains."""

    @property
    def reservations(self) -> Informer[CapacityReservation]: ...

    @property
    def cluster_reservations(self) -> Informer[ClusterCapacityReservation]: ...

    @property
    def flavors(self) -> Informer[ResourceFlavor]: ...

    @property
    def quotas(self) -> Informer[ResourceQuota]: ...

    @property
    def clusters(self) -> Informer[DedicatedAICluster]: ...

    @property
    def cluster_queues(self) -> Informer[ClusterQueue]: ...

    @property
    def workloads(self) -> Informer[Workload]: ...

    @property
    def namespaces(self) -> Informer[Namespace]: ...

    @property
    def cohorts(self) -> Informer[Cohort]: ...


class SnapshotBuilder:
    """Builds snapshots from the informers' caches. Safe to call from any loop."""

    def __init__(self, sources: SnapshotSources, specs: JudgedSpecs, ec2: Ec2Reads) -> None:
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
        self._readers: list[Callable[[], None]] = []
        self._problem_readers: list[Callable[[ReservationKey], None]] = []
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
        for reader in self._readers:
            reader()

    def on_odcrs(self, reader: Callable[[], None]) -> None:
        """Calls `reader` after each change by `publish`."""
        self._readers.append(reader)

    def report(self, reserved: ReservationKey, problems: Iterable[ReservationProblem]) -> bool:
        """Replaces the problems of a reservation's queues; returns whether they have changed."""
        reported = tuple(problems)
        with self._lock:
            if self._problems.get(reserved, ()) == reported:
                return False
            others = {key: known for key, known in self._problems.items() if key != reserved}
            self._problems = {**others, reserved: reported} if reported else others
            self._changed()
        for reader in self._problem_readers:
            reader(reserved)
        return True

    def on_queue_problems(self, reader: Callable[[ReservationKey], None]) -> None:
        """Calls `reader` when the problems of a reservation's queues have changed."""
        self._problem_readers.append(reader)

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
