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
from broker.controllers.preemption.controller import PreemptionController
from broker.controllers.reservation_reads import ReservationReads
from broker.kube.cache import Cache
from broker.kube.context import ControllerContext
from broker.quota.lifecycle import Limits
from broker.reservations.machines import MachineReader


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
    reads, settings = shared.reads, shared.settings
    status, unattributed = _status(shared)
    check = AdmissionCheckReconciler(shared.client, reads, clock=shared.clock)
    return ReservationControllers(
        reads=reads,
        unattributed=unattributed,
        status=UsageThrottle(status.run),
        provisioner=OdcrProvisioner(
            ControllerContext(client=shared.client, recorder=shared.recorder, clock=shared.clock),
            shared.provider,
            reads,
            shared.inventory,
            settings=settings,
            publish=reads.snapshots.publish,
            describe=shared.describe,
        ),
        check=check,
        queues=QueueController(shared.client, reads, check, settings=settings, recorder=shared.recorder),
        admissions=AdmissionCheckController(
            shared.client,
            reads,
            shared.provider,
            other_holders=lambda: reads.snapshot().unqueued_clusters,
            settings=settings,
            clock=shared.clock,
            nodes=shared.caches.nodes,
            claims=shared.caches.claims,
        ),
        slots=PreemptionController(shared),
        annotations=AnnotationReporter(
            _annotated(shared, classes),
            lambda: list(reads.snapshot().reservations),
            kueue=lambda: reads.kueue,
            recorder=shared.recorder,
        ),
    )


def _status(
    shared: ReservationDependencies,
) -> tuple[ReservationController, UnattributedUsageReader]:
    settings = shared.settings
    unattributed = UnattributedUsageReader(
        shared.caches.nodes, shared.caches.pods, steady_seconds=settings.reservation_steady_seconds
    )
    joint_facts = JointFactsBuilder(
        shared.provider,
        shared.reads,
        shared.caches.nodes,
        shared.caches.claims,
        shared.inventory,
        unattributed,
        MachineReader(starting_seconds=settings.reservation_creating_seconds),
    )
    limits = Limits(
        creating=settings.reservation_creating_seconds, updating=settings.reservation_updating_seconds
    )
    controller = ReservationController(
        shared.client, shared.reads, joint_facts, clock=shared.clock, recorder=shared.recorder, limits=limits
    )
    return controller, unattributed


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
