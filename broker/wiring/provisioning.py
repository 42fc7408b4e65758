"""Triggers of the loop that serves pending pods, and of the status of NodePools.

Invariant: pods are collected as Karpenter's provisioner does it: until none comes for a second, ten seconds
at most (karpenter pkg/operator/options, BatchIdleDuration and BatchMaxDuration).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.koordinator import KoordinatorReservation
from broker.apis.meta import condition
from broker.controllers.launch.launcher import Launcher
from broker.controllers.nodereservation.occupancy import OccupancyReader, needs_a_node
from broker.controllers.nodereservation.reads import SchedulerReads
from broker.controllers.provisioning.pending import provisionable
from broker.controllers.provisioning.pool_status import PoolStatusController
from broker.controllers.provisioning.provisioner import Provisioner
from broker.controllers.provisioning.reads import ProvisioningReads
from broker.controllers.slots.controller import PreemptionController
from broker.kube.batch import SETTLED
from broker.oncall.metrics import forget_object
from broker.oncall.pod_reports import PodReport
from broker.reservations.drawing import namespaces_of
from broker.wiring.predicates import differ, serves
from broker.wiring.slots import watch_slot_rules
from broker.wiring.term import Term

PodReports = Callable[[], Mapping[str, PodReport]]
NAME: Final = "provisioning"
EVERY: Final = 60.0  # seconds: a Lease that expires makes no event


def add_occupancy(term: Term) -> OccupancyReader:
    """The reader of the room on nodes; without a scheduler's name, no reservation keeps any."""
    pods, reads = term.read.pods.cache, None
    if served := term.settings.schedulers:
        reads = SchedulerReads(term.client, pods, clock=term.clock, names=served, places=False)
        term.manager.follow(*reads.rooms.values(), reads.resource_quotas)
    return OccupancyReader(
        reads, term.read.nodes.cache, pods, term.reads.namespaces, bounds=term.settings.room_bounds
    )


def add_provisioning(
    term: Term, slots: PreemptionController, launcher: Launcher, occupancy: OccupancyReader
) -> tuple[ProvisioningReads, PodReports]:
    """Serves pods when one becomes unschedulable, and when a pool, class or reservation may help it.

    Returns its reads, and why pods get no machine, by their uid.
    """
    reads = ProvisioningReads(
        term.client,
        occupancy,
        clock=term.clock,
        leases=term.read.leases.cache,
        nodes=term.read.nodes.cache,
        settings=term.settings,
    )
    provisioner = Provisioner(
        term,
        term.caches,
        term.ec2,
        term.nodeclasses,
        reads,
        slots,
        launches=launcher,
    )
    _watch_pods(term, reads, provisioner)
    _add_pool_status(term, slots)
    return reads, lambda: provisioner.reports


def _watch_pods(term: Term, reads: ProvisioningReads, provisioner: Provisioner) -> None:
    manager, read, settings = term.manager, term.read, term.settings

    def waits(pod: Pod | None) -> bool:
        return pod is not None and provisionable(pod)

    def ends(_: NodeClaim | Node | None, new: NodeClaim | Node | None) -> bool:
        return new is None or new.deleting

    def unplaced(reservation: KoordinatorReservation | None) -> bool:
        return reservation is not None and needs_a_node(reservation)

    manager.follow(*reads.informers)
    manager.on_stop(provisioner.close)
    loop = (
        manager.singleton(
            NAME,
            provisioner.run,
            every=EVERY,
            idle=settings.pod_batch_idle_seconds,
            longest=settings.pod_batch_max_seconds,
            synced=lambda: reads.synced() and term.synced(),
        )
        .watches(read.pods, None, differ(waits))
        .watches(read.pools, None, differ(_offer))
        .watches(read.claims, None, ends)
        .watches(read.nodes, None, ends)
        .on(term.nodeclasses.on_change)
        .on(term.inventory.on_change)
    )
    watch_slot_rules(loop, term.reads)
    if reads.occupancy.reservations is not None:
        loop.watches(reads.occupancy.reservations, None, differ(unplaced))


def _add_pool_status(term: Term, slots: PreemptionController) -> None:
    """Writes the status of pools when their nodes, template or class change."""
    manager, read, reads = term.manager, term.read, term.reads
    status = PoolStatusController(
        term,
        term.caches,
        read.classes.cache,
        term.nodeclasses.plan,
        rights=lambda: slots.snapshot().rights if reads.synced() else None,
        counts=term.launches_for,
    )
    read.pools.on_change(lambda old, new: forget_object("nodepool", old.name) if old and not new else None)
    (
        manager.singleton("nodepool", status.run, every=EVERY, idle=SETTLED)
        .watches(reads.reservations, predicate=differ(serves))
        .watches(reads.cluster_reservations, predicate=differ(serves))
        .watches(read.claims, predicate=differ(_counted))
        .watches(read.nodes, predicate=differ(_capacity))
        .watches(read.pools, predicate=differ(_generation))
        .watches(read.classes, predicate=differ(_class_state))
    )


def _class_state(node_class: EC2NodeClass | None) -> object:
    """The parts of a class that the status of its pools shows."""
    if node_class is None:
        return None
    of_launches = condition(node_class.status.conditions, names.CAPACITY_RESERVATION)
    return _generation(node_class), of_launches and (of_launches.status, of_launches.reason)


def _counted(claim: NodeClaim | None) -> object:
    """The parts of a claim that its pool's status shows; without an instance, the namespaces of its pods."""
    if claim is None or not claim.status.provider_id:
        return claim and namespaces_of(claim)
    types = (names.REGISTERED_CONDITION, names.INITIALIZED_CONDITION, names.INSTANCE_TERMINATING)
    conditions = [condition(claim.status.conditions, type_) for type_ in types]
    states = [(item.status, item.reason) if item is not None else None for item in conditions]
    return claim.uid, claim.deleting, claim.node_pool, claim.status.capacity, states


def _capacity(node: Node | None) -> object:
    return None if node is None else (node.spec.provider_id, node.status.capacity)


def _offer(pool: NodePool | None) -> object:
    """The parts of a pool that decide whether it is served, and what it offers."""
    return pool and (_generation(pool), pool.annotations.get(names.REPLICAS))


def _generation(changed: NodePool | EC2NodeClass | None) -> object:
    return None if changed is None else (changed.uid, changed.metadata.generation)
