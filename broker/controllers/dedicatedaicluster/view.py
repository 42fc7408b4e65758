"""The quota that dedicated clusters hold in each reservation.

Invariant: a cluster holds its admitted quota until its instances are gone, and none before admission. A
cluster that waits adds no usage, and neither does a cluster without a known reservation. Everything is read
from the cluster objects: no other state exists.
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
    """`known`: the existing reservations. `queued`: pairs of a ClusterQueue and a cluster (by label) that
    holds quota there."""

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
        """The clusters of this reservation, by name. The usage of a waiting cluster is empty."""
        return self._of(each for each in self._clusters.list() if _could(each, reserved)).get(reserved, ())

    def unqueued(self, reserved: Reserved) -> tuple[ReservationHolder, ...]:
        """The `holders` for which Kueue counts no Workload."""
        queued, queue = self._queued(), queue_name(reserved)
        return tuple(each for each in self.holders(reserved) if (queue, short(each.name)) not in queued)

    def all(self) -> Mapping[Reserved, tuple[ReservationHolder, ...]]:
        """The `holders` of all reservations at once, for passes over many."""
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
    """Whether the cluster may belong to the reservation, by the name alone."""
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
