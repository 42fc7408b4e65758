"""The loop of the dedicated clusters, and what makes it look.

Invariant: it waits for the caches that it reads; a kind that is not installed is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import Workload
from broker.controllers.ome.clusters.keeper import ClusterKeeper, down
from broker.controllers.ome.shared import Shared
from broker.kube.batch import Batcher
from broker.kube.singleton import Singleton
from broker.quota.usage import Reserved
from providers.model import ProviderError

NAME = "dedicated"
EVERY = 60.0
LONGEST = 0.3  # a change shows within this and the time that a pass takes, however many come after it


def cluster_loop(
    shared: Shared,
    *,
    priority: Callable[[str], int | None],
    kueue: Callable[[], bool],
    owners: Callable[[], Mapping[str, Reserved]],
) -> Singleton[str]:
    """`priority`: what a priority class is worth. `kueue`: whether Kueue counts quota here. `owners`: whose
    each of EC2's reservations is, by id."""
    keeper = ClusterKeeper(shared, priority=priority, kueue=kueue, owners=owners)
    loop = Singleton(
        NAME,
        lambda _items: keeper.run(),
        batcher=Batcher[str](NAME, clock=shared.clock, longest=LONGEST),
        clock=shared.clock,
        synced=lambda: shared.synced() and shared.reads.synced(),
        every=EVERY,
        expected=(ProviderError,),
    )

    def dirty(*_: object) -> None:
        loop.batcher.add(NAME)

    def claim_changed(old: NodeClaim | None, new: NodeClaim | None) -> None:
        one = new or old
        if one is not None and (names.DEDICATED in one.labels or names.DRAWS_FROM in one.annotations):
            dirty()

    def node_changed(old: Node | None, new: Node | None) -> None:
        one = new or old
        if one is not None and names.DEDICATED in one.labels and _up(old) != _up(new):
            dirty()

    def workload_changed(old: Workload | None, new: Workload | None) -> None:
        one = new or old
        if one is not None and names.DEDICATED in one.labels:
            dirty()

    reads = shared.reads
    for informer in (
        reads.clusters,
        reads.profiles,
        reads.reservations,
        reads.cluster_reservations,
        reads.flavors,
        reads.local_queues,
        reads.workload_priorities,
        reads.priorities,
    ):
        informer.on_change(dirty)
    reads.workloads.on_change(workload_changed)
    shared.claims.on_change(claim_changed)
    shared.nodes.on_change(node_changed)
    return loop


def _up(node: Node | None) -> bool:
    return node is not None and not down(node)
