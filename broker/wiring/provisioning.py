"""Triggers of the loop that serves pending pods, and of the status of NodePools.

Invariant: pods are collected as Karpenter's provisioner does it: until none comes for a second, ten seconds
at most (karpenter pkg/operator/options, BatchIdleDuration and BatchMaxDuration).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.koordinator import KoordinatorReservation
from broker.apis.meta import condition
from broker.controllers.inventory import InventoryCache
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodereservation.occupancy import needs_a_node
from broker.controllers.provisioning.pending import provisionable
from broker.controllers.provisioning.pool_status import PoolStatusController
from broker.controllers.provisioning.provisioner import Provisioner
from broker.controllers.provisioning.reads import ProvisioningReads
from broker.controllers.reservation_reads import ReservationReads
from broker.informers import Informers
from broker.kube.batch import Batcher
from broker.kube.clock import Clock
from broker.kube.manager import ControllerManager
from broker.reservations.drawing import namespaces_of
from broker.wiring.predicates import differ, serves

NAME: Final = "provisioning"
EVERY: Final = 60.0  # seconds: a Lease that expires makes no event


def watch_pods(
    manager: ControllerManager,
    read: Informers,
    reads: ProvisioningReads,
    provisioner: Provisioner,
    *,
    inventory: InventoryCache,
    nodeclasses: NodeClassController,
    clock: Clock,
    idle: float,
    longest: float,
    synced: Callable[[], bool],
) -> None:
    """Serves pods when one becomes unschedulable, and when a pool, class or reservation may help it."""

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
            batcher=Batcher[str](NAME, clock=clock, idle=idle, longest=longest),
            synced=lambda: read.synced() and reads.synced() and synced(),
        )
        .watches(read.pods, None, differ(waits))
        .watches(read.pools, None, differ(_generation))
        .watches(read.claims, None, ends)
        .watches(read.nodes, None, ends)
        .on(nodeclasses.on_change)
        .on(inventory.on_change)
    )
    if reads.occupancy.reservations is not None:
        loop.watches(reads.occupancy.reservations, None, differ(unplaced))


def watch_pool_status(
    manager: ControllerManager, read: Informers, reads: ReservationReads, status: PoolStatusController
) -> None:
    """Writes the status of pools when their nodes, template or class change."""
    (
        manager.singleton("nodepool", status.run, every=EVERY)
        .watches(reads.reservations, predicate=differ(serves))
        .watches(reads.cluster_reservations, predicate=differ(serves))
        .watches(read.claims, predicate=differ(_counted))
        .watches(read.nodes, predicate=differ(_capacity))
        .watches(read.pools, predicate=differ(_generation))
        .watches(read.classes, predicate=differ(_generation))
    )


def _counted(claim: NodeClaim | None) -> object:
    """The parts of a claim that its pool's status shows; without an instance, the namespaces of its pods."""
    if claim is None or not claim.status.provider_id:
        return claim and namespaces_of(claim)
    types = (names.REGISTERED_CONDITION, names.INITIALIZED_CONDITION, names.INSTANCE_TERMINATING)
    conditions = [condition(claim.status.conditions, type_) for type_ in types]
    states = [(item.status, item.reason) if item is not None else None for item in conditions]
    return claim.uid, claim.deleting, claim.labels.get(names.NODEPOOL), claim.status.capacity, states


def _capacity(node: Node | None) -> object:
    return None if node is None else (node.spec.provider_id, node.status.capacity)


def _generation(changed: NodePool | EC2NodeClass | None) -> object:
    return None if changed is None else (changed.uid, changed.metadata.generation)
