"""What the dedicated clusters hold of each reservation, for whoever tells or counts it.

Invariant: a cluster holds what was admitted to it until its instances are gone, and nothing before; one
that waits or whose reservation is not found is in nobody's usage. Both come from the clusters' own status:
nothing is remembered beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.dedicatedaicluster.admission import ClusterAdmission, held
from broker.controllers.kueue.ownership import queue_name, short
from broker.kube.cache import Cache
from broker.quota.resolve import Names
from broker.quota.usage import ReservationHolder, Reserved


class ClusterUsage:
    """`known`: the reservations there are. `queued`: the ClusterQueues in which clusters (by label)
    hold quota."""

    def __init__(
        self,
        clusters: Cache[DedicatedAICluster],
        *,
        known: Callable[[], Iterable[Reserved]],
        queued: Callable[[], Collection[tuple[str, str]]] = tuple,
    ) -> None:
        self._queued = queued
        self._clusters = clusters
        self._known = known

    def holders(self, reserved: Reserved) -> tuple[ReservationHolder, ...]:
        """The clusters of this reservation, by name. One that waits holds nothing: its usage is empty."""
        return self._of(each for each in self._clusters.list() if _could(each, reserved)).get(reserved, ())

    def unqueued(self, reserved: Reserved) -> tuple[ReservationHolder, ...]:
        """Those of them whose Workloads Kueue does not count."""
        queued, queue = self._queued(), queue_name(reserved)
        return tuple(each for each in self.holders(reserved) if (queue, short(each.name)) not in queued)

    def all(self) -> Mapping[Reserved, tuple[ReservationHolder, ...]]:
        """As `holders`, of every reservation at once: what a pass over many asks for."""
        return self._of(self._clusters.list())

    def _of(self, clusters: Iterable[DedicatedAICluster]) -> Mapping[Reserved, tuple[ReservationHolder, ...]]:
        names = Names(self._known())
        found: dict[Reserved, list[ReservationHolder]] = {}
        for cluster in sorted(clusters, key=lambda each: each.name):
            mine = held(cluster)
            reserved = mine.reserved if mine else names.resolve(cluster.spec.capacity_reservation_id)
            if isinstance(reserved, Reserved):
                found.setdefault(reserved, []).append(_holder(cluster, reserved, mine))
        return {reserved: tuple(holders) for reserved, holders in found.items()}


def _could(cluster: DedicatedAICluster, reserved: Reserved) -> bool:
    """Whether it names or holds it, as far as that is told without the others."""
    admission = cluster.status.admission
    given = admission.reservation if admission else cluster.spec.capacity_reservation_id
    return given.rpartition("/")[2] == reserved.name


def _holder(
    cluster: DedicatedAICluster, reserved: Reserved, mine: ClusterAdmission | None
) -> ReservationHolder:
    failed = cluster.status.dac_lifecycle_state == "FAILED"
    return ReservationHolder(
        kind="DedicatedAICluster",
        name=cluster.name,
        reserved=reserved,
        usage=mine.usage if mine else {},
        since=mine.since.timestamp() if mine else float("inf"),
        healthy=not failed,
        why=cluster.status.lifecycle_detail if failed else "",
    )
