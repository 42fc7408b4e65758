"""Whether a decision about evictions still stands by what EC2 and the API server have now.

EC2's last description may be half a minute old, in which another's instance may have left a slot. Each cache
may be behind as well, and each by another time. An eviction cannot be taken back, so both are read again
before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import structlog

from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, pods_of
from broker.apis.meta import Object
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.newest import unchanged
from broker.controllers.snapshot import Snapshot
from broker.kube.errors import ApiError
from broker.quota.entitled import Eviction
from broker.quota.joint import JointDecision
from broker.quota.slot_model import CLAIM, Victim
from broker.quota.usage import ReservationKey
from providers.errors import ProviderError

_log = structlog.get_logger("preemption")


def overtaken(shared: ReservationDependencies, snapshot: Snapshot, decided: JointDecision) -> bool:
    """Whether a slot has become free for whom anybody is evicted, or an object by which this was decided has
    changed, or neither can be read. Asked of evictions that have not begun.
    """
    parties = _parties(snapshot, [*decided.evictions.values(), *decided.victims])
    wanted = {id_ for victim in decided.victims for id_ in victim.request.odcr_ids}
    wanted |= {id_ for id_, owner in snapshot.odcrs.owned.owner.items() if owner in parties}
    preemptors = {f"{CLAIM}{victim.request.name}" for victim in decided.victims}
    preemptors |= {eviction.preemptor for eviction in decided.evictions.values()}
    # A cluster that shrank meanwhile leaves quota to the others of its reservation.
    beside = {holder.name for key in parties for holder in snapshot.cluster_holders.get(key, ())}
    rules = [snapshot.reservations[key] for key in parties]
    try:
        shared.inventory.refresh()
        inventory = shared.inventory.snapshot()
        return any(inventory.unused(id_) > snapshot.inventory.unused(id_) for id_ in wanted) or not unchanged(
            shared.client, [*rules, *_holders(shared, snapshot, preemptors | beside)]
        )
    except (ProviderError, ApiError) as error:
        _log.warning("nobody evicted: the decision cannot be confirmed", error=str(error))
        return True


def parted(snapshot: Snapshot, decided: JointDecision) -> tuple[JointDecision, JointDecision]:
    """The decision with the evictions that have begun only, and with the others only."""
    known = snapshot.assumed.evicted_for

    def part(begun: bool) -> JointDecision:
        return replace(
            decided,
            evictions={name: item for name, item in decided.evictions.items() if (name in known) is begun},
            victims=[v for v in decided.victims if (f"{CLAIM}{v.holder.name}" in known) is begun],
        )

    return part(True), part(False)


def _parties(snapshot: Snapshot, causes: Iterable[Eviction | Victim]) -> list[ReservationKey]:
    """The reservations that reclaim, and those that lose."""
    paths = tuple(path for cause in causes for path in (cause.preemptor_path, cause.preemptee_path))
    queues = {path.rpartition("/")[2] for path in paths}
    return [key for key in snapshot.reservations if key.queue in queues]


def _holders(shared: ReservationDependencies, snapshot: Snapshot, names: Iterable[str]) -> Iterator[Object]:
    """Clusters, and claims with the pods that they were made for."""
    clusters = {cluster.name: cluster for cluster in snapshot.clusters}
    for name in names:
        if name in clusters:
            yield clusters[name]
        elif claim := shared.caches.claims.get(name.removeprefix(CLAIM)):
            yield from _claim(shared, claim)


def _claim(shared: ReservationDependencies, claim: NodeClaim) -> Iterator[Object]:
    yield claim
    pods: Iterable[Pod | None] = map(shared.caches.pods.find, pods_of(claim))
    yield from (pod for pod in pods if pod is not None)
