"""Why a pod gets no machine, pool by pool: first the pools that its selector and its tolerations admit.

Of these, pools that draw from a reservation which serves the pod come first.

A pool that cannot have the pod, whatever it offers, is only counted: its reasons lead nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.label_names import stable
from broker.capacity.requirements import InvalidRequirement
from broker.controllers.provisioning.offers import Offers
from broker.placement.affinity import NO_MATCH
from broker.placement.binding import OTHER_NODES, OTHER_ZONE
from broker.placement.machines import NO_OPTION
from broker.placement.packing_model import Packing, PendingPod
from broker.placement.pool_choice import absent_pools, pool_node
from broker.placement.storage import Storage, StoredVolume
from broker.text import abridged, counted

MOST_NAMED: Final = 3  # of the machines that are named beside a volume


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFault:
    """A NodePool that is not served, and why."""

    pool: NodePool
    message: str


def pool_reasons(
    packing: Packing,
    pods: Sequence[PendingPod],
    offered: Offers,
    pools: Sequence[NodePool],
    faults: Sequence[PoolFault],
    storage: Storage,
    existing: Collection[str],
) -> dict[str, str]:
    """The reason of each pod that gets no machine, by its key. `existing`: the names of all NodePools, those
    of others included.
    """
    reasons = dict(packing.reasons)
    for pod in pods:
        if pod.key not in reasons:
            continue
        by_pool = packing.by_pool.get(pod.key, {})
        known = {
            **{pool: text + _volumes(pool, pod, text, offered, storage) for pool, text in by_pool.items()},
            **{pool: text for (pool, drawing), text in offered.empty.items() if drawing == pod.drawing},
            **{fault.pool.name: fault.message for fault in faults},
        }
        if known:
            every = [*pools, *(fault.pool for fault in faults)]
            # A reason of the pod's own, or of its gang, precedes those of pools.
            own = "" if by_pool or reasons[pod.key] == NO_OPTION else reasons[pod.key]
            reasons[pod.key] = "; ".join(
                filter(None, [own, *_texts(pod, known, every, existing, count=not own)])
            )
    return reasons


def _texts(
    pod: PendingPod,
    known: Mapping[str, str],
    pools: Sequence[NodePool],
    existing: Collection[str],
    *,
    count: bool,
) -> list[str]:
    """The reason of each pool that admits the pod; `count`: also the number of the others."""
    admitting = [pool for pool in pools if pool.name in known and _admits(pool, pod)]
    related = [pool.name for pool in sorted(admitting, key=lambda pool: not _owned(pool, pod))]
    texts = [f"NodePool {name}: {known[name]}" for name in related]
    if count and (others := len(known) - len(related)):
        pools_text = counted(others, "other NodePool" if related else NodePool.KIND.kind)
        absent = absent_pools(pod.info, existing)
        texts.append(absent or f"{pools_text} of no use to it: {NO_MATCH}, or its tolerations")
    return texts


def _owned(pool: NodePool, pod: PendingPod) -> bool:
    """Whether the pool draws from a reservation that serves the pod."""
    return pool.spec.template.metadata.annotations.get(names.DRAWS_FROM) in pod.drawing.admitted


def _admits(pool: NodePool, pod: PendingPod) -> bool:
    """Whether labels and taints of the pool admit the pod, with some instance."""
    try:
        return pool_node(pool).accepts(pod.info)
    except InvalidRequirement:
        return True  # the pool is to be corrected first


def _volumes(pool: str, pod: PendingPod, reason: str, offered: Offers, storage: Storage) -> str:
    """The pod's volumes and their zones beside the machines of the pool, if zones are the reason."""
    if OTHER_NODES not in reason and OTHER_ZONE not in reason:
        return ""
    places = {
        f"{option.instance_type} in {option.zone}"
        + (f" (reservation {option.source})" if option.source else "")
        for option in offered.options
        if option.pool == pool
    }
    claims = (storage.claims.get((pod.info.namespace, volume.claim)) for volume in pod.info.volumes)
    volumes = (storage.volumes.get(claim.volume) for claim in claims if claim is not None)
    zones = [
        f"volume {volume.name} is in {', '.join(where)}"
        for volume in volumes
        if volume is not None and (where := sorted({*_zones(volume)}))
    ]
    return (
        f" ({'; '.join(zones)}, and the pool offers {abridged(sorted(places), MOST_NAMED)})" if zones else ""
    )


def _zones(volume: StoredVolume) -> Iterator[str]:
    for key, value in volume.labels.items():
        if stable(key) == names.ZONE:
            yield from value.split("__")
    for term in volume.terms or ():
        for item in term.expressions:
            if stable(item.key) in (names.ZONE, names.ZONE_ID):
                yield from item.values
