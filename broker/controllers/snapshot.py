"""One immutable snapshot of reservations, EC2 and the users of both, for each loop that decides about them.

Invariant: loops that read snapshots of one version decide by the same reservations, judged specs, quota
refusals, flavors, owners of ODCRs, workloads, dedicated clusters, descriptions of EC2 and assumptions about
slots. A snapshot never changes. The next one has a higher version, and is built only after one of these has
changed. A pass takes one, and reads none of this beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from broker.apis.core import ResourceQuota
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ClusterQueue, Namespace, ResourceFlavor, Workload
from broker.apis.ome import CapacityReservation, ReservationSpec
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apis.ome_quotas import over_quota
from broker.apis.ome_rules import JudgedSpec
from broker.capacity.inventory import Inventory
from broker.controllers.assumed import AssumedSlots
from broker.kube.cache import Guard
from broker.quota.hardware import usage
from broker.quota.model import QuotaCohort
from broker.quota.usage import ReservationHolder, ReservationKey
from broker.reservations import queues
from broker.reservations.claim_holders import claim_holders
from broker.reservations.cluster_holders import Holders, cluster_holders, unqueued
from broker.reservations.drawing import DrawRights
from broker.reservations.flavors import NO_FLAVORS, FlavorCatalog
from broker.reservations.kueue_objects import owner_of, owning_cluster, queue_name
from broker.reservations.odcr_status import NO_ODCRS, OdcrSnapshot
from broker.reservations.ownership import ReservationProblem
from broker.reservations.slots import why_barred
from broker.reservations.spec import JudgedSpecs, Reservation
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
