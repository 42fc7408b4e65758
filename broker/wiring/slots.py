"""The loop that decides about quota of dedicated clusters and about owned slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.apis import names
from broker.apis.core import Node
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.dedicatedaicluster.controller import is_unready_cluster_node
from broker.controllers.reservation_reads import ReservationReads, drawn_by_default
from broker.controllers.slots.controller import PreemptionController
from broker.kube.singleton import Singleton
from broker.kube.watches import Watches
from broker.reservations.claims import names_reservation
from broker.wiring.predicates import differ, spec, without_status
from broker.wiring.reservations import EVERY, LONGEST_BATCH
from broker.wiring.term import Term


def add_slots(term: Term) -> PreemptionController:
    """Decides who may take a slot, for this loop's own passes and for every plan."""
    manager, read, reads = term.manager, term.read, term.reads
    slots = PreemptionController(term)
    loop: Singleton[str] = manager.singleton(
        "quota",
        slots.run,
        every=EVERY,
        longest=LONGEST_BATCH,
        synced=term.synced,
    )
    for kind in (
        reads.clusters,
        reads.profiles,
        reads.reservations,
        reads.cluster_reservations,
        reads.flavors,
        reads.cohorts,
        reads.local_queues,
        reads.workload_priorities,
        reads.priorities,
    ):
        loop.watches(kind)
    (
        loop.watches(reads.quotas, predicate=differ(spec))  # its status changes with every pod
        .watches(reads.workloads, predicate=_any_version(lambda workload: names.DEDICATED in workload.labels))
        .watches(read.claims, predicate=_any_version(names_reservation))
        .watches(read.nodes, predicate=differ(_ready_in_cluster))
        .on(slots.nominated.subscribe)
    )
    return slots


def watch_slot_rules(
    loop: Watches[str], reads: ReservationReads, when: Callable[[], bool] = lambda: True
) -> None:
    """Wakes the loop when other claims may take a slot than before, not each time that one is taken.

    `when`: whether a change of a rule may matter to the loop now.
    """

    def changed(part: Callable[[Any], object]) -> Callable[[Any, Any], bool]:
        differs = differ(part)
        return lambda old, new: differs(old, new) and when()

    for kind in (reads.reservations, reads.cluster_reservations, reads.flavors, reads.cohorts):
        loop.watches(kind, predicate=changed(without_status))
    loop.watches(reads.quotas, predicate=changed(spec))
    loop.watches(reads.namespaces, predicate=changed(drawn_by_default))
    loop.watches(reads.clusters, predicate=lambda old, new: _frees_quota(old, new) and when())
    loop.on(reads.snapshots.on_odcrs)


def _any_version(holds: Callable[[Any], bool]) -> Callable[[Any, Any], bool]:
    """Accepts a change if the new version, or the last one of an object that is gone, meets `holds`."""
    return lambda old, new: holds(new or old)


def _frees_quota(old: DedicatedAICluster | None, new: DedicatedAICluster | None) -> bool:
    """Whether a cluster may hold less quota than before. Its claims may have had no slot yet."""
    held = old.status.admission if old is not None else None
    return held is not None and (new is None or new.status.admission != held)


def _ready_in_cluster(node: Node | None) -> bool | None:
    """Whether a dedicated cluster's node is ready; None for other nodes."""
    return None if node is None or names.DEDICATED not in node.labels else not is_unready_cluster_node(node)
