"""The triggers of the loops about reservations, their ODCRs, slots and annotations.

Invariant: each loop waits for the caches that it reads, and for no kind that is not installed. The broker's
launches wait for none of these loops, so that a cluster without OME's definitions launches all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.kueue import Workload
from broker.apis.meta import Object
from broker.controllers.annotations.reporter import DRAWING, Key, user_annotations
from broker.controllers.capacityreservation.related_objects import status_inputs
from broker.controllers.dedicatedaicluster.controller import is_unready_cluster_node
from broker.controllers.instances import InstanceView
from broker.controllers.inventory import InventoryCache
from broker.controllers.nodeclass.controller import NodeClassController
from broker.informers import Informers
from broker.kube.cache import Cache
from broker.kube.manager import ControllerManager, Synced
from broker.kube.singleton import Singleton
from broker.reservations.machines import visible_state
from broker.reservations.workloads import counts_as
from broker.wiring.odcr_controllers import OdcrControllers
from broker.wiring.predicates import differ, serves, spec, without_status
from broker.wiring.reservation_controllers import ReservationControllers

# Seconds. By time alone EC2 reservations end, and writes of an earlier leader are reconciled.
EVERY = 60.0
MIRROR_EVERY = 300.0  # prices change without an event
# Longest delay in seconds until a change starts a pass, however many changes follow.
LONGEST = 0.3


def watch_status(
    manager: ControllerManager, read: Informers, inventory: InventoryCache, ome: ReservationControllers
) -> Singleton[str]:
    """The status of reservations: every watched kind, and a timer for time-based transitions."""
    reads, status = ome.reads, ome.status

    # This loop writes the status: a change by hand is corrected in the next pass.
    def reservation_changed(old: Object | None, new: Object | None) -> bool:
        return without_status(old) != without_status(new) or status.changed()

    def use_changed(old: Workload | None, new: Workload | None) -> bool:
        return counts_as(old) != counts_as(new) and status.changed()

    loop: Singleton[str] = manager.singleton(
        "reservation",
        lambda _: status.run(),
        every=EVERY,
        longest=LONGEST,
        synced=lambda: (
            read.synced() and reads.synced() and inventory.described and reads.snapshot().odcrs.known
        ),
    )
    for kind in (reads.clusters, reads.flavors, reads.workload_priorities, reads.priorities, reads.quotas):
        loop.watches(kind)
    for reservations in (reads.reservations, reads.cluster_reservations):
        loop.watches(reservations, predicate=reservation_changed)
    return (
        loop.watches(reads.cluster_queues, predicate=differ(status_inputs))
        .watches(reads.local_queues, predicate=differ(status_inputs))
        .watches(reads.workloads, predicate=use_changed)
        .watches(read.nodes, predicate=differ(visible_state))
        .watches(read.claims, predicate=differ(_launched))
        .on(inventory.on_change)
        .on(ome.unattributed.on_change)
        .on(reads.snapshots.on_odcrs)
        .on(reads.snapshots.on_queue_problems, loop.default_keys)
    )


def watch_odcrs(
    manager: ControllerManager,
    read: Informers,
    inventory: InventoryCache,
    ome: ReservationControllers,
    *,
    every: float,
) -> None:
    """Purchases: at rest a pass makes no call to EC2."""
    reads = ome.reads
    loop: Singleton[str] = manager.singleton(
        "odcrs",
        lambda _: ome.provisioner.run(),
        every=every,
        synced=lambda: read.synced() and reads.synced(),
    ).on(inventory.on_change)
    for kind in (reads.reservations, reads.cluster_reservations, reads.flavors, reads.quotas):
        loop.watches(kind, predicate=differ(without_status))


def watch_slots(manager: ControllerManager, read: Informers, ome: ReservationControllers) -> None:
    """The decisions about quota of dedicated clusters and about owned slots."""
    reads = ome.reads
    loop: Singleton[str] = manager.singleton(
        "quota",
        ome.slots.run,
        every=EVERY,
        longest=LONGEST,
        synced=lambda: read.synced() and reads.synced(),
    )
    for kind in (
        reads.clusters,
        reads.profiles,
        reads.reservations,
        reads.cluster_reservations,
        reads.flavors,
        reads.local_queues,
        reads.workload_priorities,
        reads.priorities,
    ):
        loop.watches(kind)
    (
        loop.watches(reads.quotas, predicate=differ(spec))  # its status changes with every pod
        .watches(reads.workloads, predicate=_any_version(lambda workload: names.DEDICATED in workload.labels))
        .watches(read.claims, predicate=_any_version(_draws))
        .watches(read.nodes, predicate=differ(_ready_in_cluster))
        .on(ome.slots.nominated.subscribe)
    )


def watch_annotations(manager: ControllerManager, read: Informers, ome: ReservationControllers) -> None:
    """Objects with changed annotations; all objects that draw, when a reservation comes or goes."""
    reads = ome.reads
    loop: Singleton[Key] = manager.singleton(
        "annotations", ome.annotations.run, synced=lambda: read.synced() and reads.synced()
    )
    caches: Mapping[str, Cache[Any]] = ome.annotations.caches
    for cache in caches.values():
        loop.watches(cache, lambda changed: ((changed.KIND.kind, changed.key),), _annotations_changed)
    for reservations in (reads.reservations, reads.cluster_reservations):
        loop.watches(reservations, lambda _: (DRAWING,), differ(serves))


def watch_odcr_objects(
    manager: ControllerManager,
    read: Informers,
    inventory: InventoryCache,
    nodeclasses: NodeClassController,
    view: InstanceView,
    odcrs: OdcrControllers,
    *,
    every: float,
) -> None:
    """Labels, endings and mirrors. None of them describes reservations or lists instances: they share the
    launch loop's description and listing."""

    def mirrored() -> bool:
        return read.synced() and odcrs.mirrors.synced

    def loop(
        name: str, run: Callable[[], Any], period: float, synced: Synced | None = None
    ) -> Singleton[str]:
        singleton: Singleton[str] = manager.singleton(name, lambda _: run(), every=period, synced=synced)
        return singleton.on(inventory.on_change)

    def sizes_known() -> bool:
        """Whether the sizes that an earlier process recorded are read, or cannot be."""
        return read.synced() and (odcrs.mirrors.complete or bool(odcrs.mirrors.error))

    def first_seen(old: OnDemandCapacityReservation | None, new: OnDemandCapacityReservation | None) -> None:
        if old is None and new is not None:
            inventory.recorded(new.name, new.status.total + new.status.lent)

    odcrs.mirrors.on_change(first_seen)
    manager.follow(odcrs.mirrors)
    loop("instance-labels", odcrs.instance_labels.run, every, sizes_known).on(view.on_listing)
    loop("endings", odcrs.endings.run, every)
    loop("mirror", odcrs.mirror.run, MIRROR_EVERY, mirrored).on(nodeclasses.on_change).watches(odcrs.mirrors)


def _any_version(holds: Callable[[Any], bool]) -> Callable[[Any, Any], bool]:
    """Accepts a change if the new version, or the last one of an object that is gone, meets `holds`."""
    return lambda old, new: holds(new or old)


def _draws(claim: NodeClaim) -> bool:
    return names.DEDICATED in claim.labels or names.DRAWS_FROM in claim.annotations


def _ready_in_cluster(node: Node | None) -> bool | None:
    """Whether a dedicated cluster's node is ready; None for other nodes."""
    return None if node is None or names.DEDICATED not in node.labels else not is_unready_cluster_node(node)


def _launched(claim: NodeClaim | None) -> tuple[object, ...]:
    """The parts of a claim that decide which slot its node takes."""
    if claim is None or not claim.status.provider_id:
        return ()
    return claim.labels, claim.status.node_name, claim.deleting


def _annotations_changed(old: Object | None, new: Object | None) -> bool:
    return _annotations(old) != _annotations(new) and user_annotations(old) != user_annotations(new)


def _annotations(changed: Object | None) -> object:
    """The annotations, and a pool's spec, which has its template. Cheap to compare."""
    if changed is None:
        return None
    return changed.annotations, changed.spec if isinstance(changed, NodePool) else None
