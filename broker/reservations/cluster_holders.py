"""The quota that dedicated clusters hold in each reservation.

Invariant: a cluster holds its admitted quota until its instances are gone, and none before admission. A
cluster that waits adds no usage, and neither does a cluster without a known reservation. Everything is read
from the cluster objects: no other state exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from broker.apis.ome_clusters import DedicatedAICluster
from broker.quota.resolve import ReservationNames
from broker.quota.usage import ReservationHolder, ReservationKey
from broker.reservations.cluster_admission import ClusterAdmission, held
from broker.reservations.kueue_objects import queue_name

Holders = Mapping[ReservationKey, Sequence[ReservationHolder]]


def cluster_holders(clusters: Iterable[DedicatedAICluster], known: Iterable[ReservationKey]) -> Holders:
    """The clusters of each reservation, by name. The usage of a waiting cluster is empty. `known`: the
    existing reservations.
    """
    by_name = ReservationNames(known)
    holders: dict[ReservationKey, list[ReservationHolder]] = {}
    for cluster in sorted(clusters, key=lambda cluster: cluster.name):
        admission = held(cluster)
        reserved = admission.reserved if admission else by_name.resolve(cluster.spec.capacity_reservation_id)
        if isinstance(reserved, ReservationKey):
            holders.setdefault(reserved, []).append(_holder(cluster, reserved, admission))
    return holders


def unqueued(holders: Holders, queued: Collection[tuple[str, str]]) -> Holders:
    """The holders for which Kueue counts no Workload. `queued`: pairs of a ClusterQueue and the name of a
    cluster that holds quota there.
    """
    return {
        reserved: [holder for holder in listed if (queue_name(reserved), holder.name) not in queued]
        for reserved, listed in holders.items()
    }


def _holder(
    cluster: DedicatedAICluster, reserved: ReservationKey, admission: ClusterAdmission | None
) -> ReservationHolder:
    failed = cluster.status.dac_lifecycle_state == "FAILED"
    return ReservationHolder(
        kind="DedicatedAICluster",
        name=cluster.name,
        reserved=reserved,
        usage=admission.usage if admission else {},
        since=admission.since.timestamp() if admission else float("inf"),
        healthy=not failed,
        why=cluster.status.lifecycle_detail if failed else "",
    )
