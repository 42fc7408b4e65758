"""Builds the controllers about OME's kinds: reservations, their EC2 reservations, Kueue's objects, slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.controllers.annotations.reporter import AnnotationReporter
from broker.controllers.capacityreservation.controller import ReservationController
from broker.controllers.capacityreservation.facts import JointFactsBuilder
from broker.controllers.capacityreservation.throttle import UsageThrottle
from broker.controllers.capacityreservation.unattributed import UnattributedUsageReader
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.kueue.admission import AdmissionCheckController
from broker.controllers.kueue.check import AdmissionCheckReconciler
from broker.controllers.kueue.queues import QueueController
from broker.controllers.odcr.provisioner import OdcrProvisioner
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.slots.controller import PreemptionController
from broker.kube.cache import Cache


@dataclass(frozen=True, kw_only=True)
class ReservationControllers:
    """The controllers, and the reads that they share. `status` runs the controller of statuses."""

    reads: ReservationReads
    unattributed: UnattributedUsageReader
    status: UsageThrottle
    provisioner: OdcrProvisioner
    check: AdmissionCheckReconciler
    queues: QueueController
    admissions: AdmissionCheckController
    slots: PreemptionController
    annotations: AnnotationReporter


def reservation_controllers(
    shared: ReservationDependencies, *, classes: Cache[EC2NodeClass]
) -> ReservationControllers:
    reads = shared.reads
    unattributed = UnattributedUsageReader(
        shared.caches.nodes,
        shared.caches.pods,
        steady_seconds=shared.settings.reservation_steady_seconds,
    )
    status = ReservationController(shared, JointFactsBuilder(shared, unattributed))
    check = AdmissionCheckReconciler(shared)
    return ReservationControllers(
        reads=reads,
        unattributed=unattributed,
        status=UsageThrottle(status.run),
        provisioner=OdcrProvisioner(shared),
        check=check,
        queues=QueueController(shared, check),
        admissions=AdmissionCheckController(shared),
        slots=PreemptionController(shared),
        annotations=AnnotationReporter(
            _annotated(shared, classes),
            lambda: reads.snapshot().rights,
            kueue=lambda: reads.kueue,
            recorder=shared.recorder,
        ),
    )


def _annotated(shared: ReservationDependencies, classes: Cache[EC2NodeClass]) -> Mapping[str, Cache[Any]]:
    """The caches of kinds with annotations of the broker, by kind."""
    reads = shared.reads
    return {
        NodeClaim.KIND.kind: shared.caches.claims,
        NodePool.KIND.kind: shared.caches.pools,
        EC2NodeClass.KIND.kind: classes,
        CapacityReservation.KIND.kind: reads.reservations.cache,
        ClusterCapacityReservation.KIND.kind: reads.cluster_reservations.cache,
        DedicatedAICluster.KIND.kind: reads.clusters.cache,
        DedicatedAIClusterProfile.KIND.kind: reads.profiles.cache,
        Namespace.KIND.kind: reads.namespaces.cache,
    }
