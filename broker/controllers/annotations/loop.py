"""The loop that reports annotations without effect, and its triggers.

Invariant: only objects that have or had an annotation of ours are read, once after each change of these
annotations. Objects that draw from a reservation are also read when a reservation comes or goes. Nothing is
reported before the reservations are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.controllers.annotations.teller import EVERYBODY, AnnotationReporter, Key, ours
from broker.controllers.ome.reads import OmeReads
from broker.kube.batch import Batcher
from broker.kube.cache import Cache
from broker.kube.clock import Clock
from broker.kube.events import Recorder
from broker.kube.singleton import Singleton
from broker.quota.usage import Reserved

NAME = "annotations"


def annotation_loop(
    *,
    claims: Cache[NodeClaim],
    pools: Cache[NodePool],
    classes: Cache[EC2NodeClass],
    reads: OmeReads,
    reserved: Callable[[], Sequence[Reserved]],
    clock: Clock,
    recorder: Recorder,
    synced: Callable[[], bool],
) -> Singleton[Key]:
    caches: dict[str, Cache[Any]] = {
        NodeClaim.KIND.kind: claims,
        NodePool.KIND.kind: pools,
        EC2NodeClass.KIND.kind: classes,
        CapacityReservation.KIND.kind: reads.reservations.cache,
        ClusterCapacityReservation.KIND.kind: reads.cluster_reservations.cache,
        DedicatedAICluster.KIND.kind: reads.clusters.cache,
        DedicatedAIClusterProfile.KIND.kind: reads.profiles.cache,
        Namespace.KIND.kind: reads.namespaces.cache,
    }
    teller = AnnotationReporter(caches, reserved, recorder=recorder)

    def run(keys: Sequence[Key]) -> None:
        teller.run(keys)

    loop = Singleton(
        NAME,
        run,
        batcher=Batcher[Key](NAME, clock=clock),
        clock=clock,
        synced=lambda: synced() and reads.synced(),
    )

    def changed(old: Object | None, new: Object | None) -> None:
        one = new or old
        if one is not None and _annotations(old) != _annotations(new) and ours(old) != ours(new):
            loop.batcher.add((one.KIND.kind, one.key))

    def came_or_went(old: Object | None, new: Object | None) -> None:
        if old is None or new is None:
            loop.batcher.add(EVERYBODY)

    for cache in caches.values():
        cache.on_change(changed)
    for informer in (reads.reservations, reads.cluster_reservations):
        informer.on_change(came_or_went)
    return loop


def _annotations(one: Object | None) -> object:
    """The parts that may differ: the annotations, and a pool's spec, which has its template."""
    return None if one is None else (one.annotations, one.spec if isinstance(one, NodePool) else None)
