"""Why a pod gets no machine, pool by pool: first the pools that its selector and its tolerations admit.

Of these, pools that draw from a reservation which serves the pod come first.

A pool that cannot have the pod, whatever it offers, is only counted beside those that can: its reasons lead
nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.label_names import stable
from broker.controllers.provisioning.offers import Offers
from broker.placement.machines import NO_OPTION
from broker.placement.packing_model import Packing, PendingPod
from broker.placement.pool_choice import (
    PoolVerdict,
    absent_pools,
    asked,
    by_reason,
    none_accepts,
    pool_verdict,
)
from broker.placement.pool_room import TypeRoom
from broker.placement.storage import Storage, StoredVolume
from broker.placement.type_reasons import PoolReason
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
    room: TypeRoom,
) -> dict[str, str]:
    """The reason of each pod that gets no machine, by its key. `existing`: the names of all NodePools, those
    of others included. `room`: by EC2's types.
    """
    reasons = dict(packing.reasons)
    every = [*pools, *(fault.pool for fault in faults)]
    judged: dict[Hashable, tuple[str, list[PoolVerdict]]] = {}
    for pod in pods:
        if pod.key not in reasons:
            continue
        by_pool = packing.by_pool.get(pod.key, {})
        known = {
            **{pool: why.text + _volumes(pool, pod, why, offered, storage) for pool, why in by_pool.items()},
            **{
                pool: text
                for (pool, drawing), text in offered.empty.items()
                if drawing == pod.drawing and not (pool in by_pool and by_pool[pool].limited)
            },
            **{fault.pool.name: fault.message for fault in faults},
        }
        if known:
            # A reason of the pod's own, or of its gang, precedes those of pools.
            own = "" if by_pool or reasons[pod.key] == NO_OPTION else reasons[pod.key]
            if (key := asked(pod.info)) not in judged:
                absent = absent_pools(pod.info, existing) or room.unknown(pod.info)
                judged[key] = absent, [pool_verdict(pod.info, pool, room.lack) for pool in every]
            absent, verdicts = judged[key]
            texts = [absent] if absent else _texts(pod, known, verdicts, count=not own)
            reasons[pod.key] = "; ".join(filter(None, [own, *texts]))
    return reasons


def empty_pools(
    pods: Sequence[PendingPod], offered: Offers, pools: Sequence[NodePool], room: TypeRoom
) -> dict[str, str]:
    """Why a pool offers no machine to any of the pods, one of which could use a machine of it.

    A reservation that a pod itself names is not the pool's reason.
    """
    offering = {option.pool for option in offered.options}
    kinds = {(pod.drawing, asked(pod.info)): pod.info for pod in pods}
    reasons: dict[str, str] = {}
    for pool in pools:
        for (drawing, _), info in kinds.items() if pool.name not in offering else ():
            text = "" if drawing.named else offered.empty.get((pool.name, drawing), "")
            if text and _could_serve(pool_verdict(info, pool, room.lack)):
                reasons[pool.name] = text
                break
    return reasons


def _could_serve(verdict: PoolVerdict) -> bool:
    """Whether the pod could use a machine of the pool, if the pool had one."""
    return verdict.accepts or verdict.lack == "pool"


def _admits(verdict: PoolVerdict) -> bool:
    """Whether labels and taints of the pool admit the pod, with some instance."""
    return verdict.accepts or bool(verdict.lack)


def _texts(
    pod: PendingPod, known: Mapping[str, str], verdicts: Sequence[PoolVerdict], *, count: bool
) -> list[str]:
    """The reason of each pool that admits the pod; `count`: also the number of the others."""
    concerned = [verdict for verdict in verdicts if verdict.pool.name in known]
    admitting = [verdict for verdict in concerned if _admits(verdict)]
    admitting.sort(key=lambda verdict: not _owned(verdict.pool, pod))
    texts = by_reason((verdict.pool.name, _reason(verdict, known)) for verdict in admitting)
    others = [verdict for verdict in concerned if not _admits(verdict)]
    if count and others:
        pools = counted(len(others), "other NodePool")
        of_others = f"{pools} of no use to it by its node selector, affinity or tolerations"
        if not texts:
            of_others = none_accepts(others)
        texts.append(of_others)
    return texts


def _reason(verdict: PoolVerdict, known: Mapping[str, str]) -> str:
    """The part of the pod to correct comes first; without any type, the pool's own reason has more detail."""
    return verdict.rejection if verdict.lack in ("requests", "selector") else known[verdict.pool.name]


def _owned(pool: NodePool, pod: PendingPod) -> bool:
    """Whether the pool draws from a reservation that serves the pod."""
    return pool.spec.template.metadata.annotations.get(names.DRAWS_FROM) in pod.drawing.admitted


def _volumes(pool: str, pod: PendingPod, reason: PoolReason, offered: Offers, storage: Storage) -> str:
    """The pod's volumes and their zones beside the machines of the pool, if zones are the reason."""
    if not reason.by_volume:
        return ""
    places = {
        f"{option.instance_type} in {option.zone}"
        + (f" (reservation {option.source})" if option.source else "")
        for option in offered.options
        if option.pool == pool
    }
    volumes = storage.bound(pod.info.namespace, pod.info.volumes)
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
