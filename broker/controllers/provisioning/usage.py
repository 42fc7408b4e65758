"""The resources that NodePools use: their status, and the start of their limits.

Invariant: status and limits are counted from the same numbers. A node counts with its capacity from launch
until its claim ends, as in karpenter pkg/controllers/state/cluster.go (updateNodePoolResources).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import is_true
from broker.apis.units import written
from broker.placement.quantities import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, amounts
from broker.text import quantities

NODES: Final = "nodes"
# Shown even if they are zero (karpenter pkg/controllers/nodepool/counter, BaseResources).
_SHOWN: Final = (CPU, MEMORY, PODS, EPHEMERAL_STORAGE, NODES)


def pool_usage(claims: Iterable[NodeClaim], nodes: Iterable[Node]) -> dict[str, Counter[str]]:
    """By pool, the total capacity of its nodes, and their number."""
    by_id = {node.spec.provider_id: node for node in nodes if node.spec.provider_id}
    by_pool: dict[str, Counter[str]] = {}
    for claim in claims:
        pool = claim.labels.get(names.NODEPOOL, "")
        if pool and claim.status.provider_id and not _ends(claim):
            used = by_pool.setdefault(pool, Counter())
            used.update(claim_usage(claim, by_id.get(claim.status.provider_id)))
    return by_pool


def claim_usage(claim: NodeClaim, node: Node | None) -> Counter[str]:
    """The capacity of a claim with an instance, as its pool's limits count it, and its node as one."""
    if node is not None and is_true(claim, names.INITIALIZED_CONDITION):
        return Counter({**amounts(node.status.capacity), NODES: 1})
    # Before that, also that of EC2's type.
    reported = amounts(node.status.capacity) if node is not None else {}
    known = {name: amount for name, amount in reported.items() if amount}
    return Counter({**amounts(claim.status.capacity), **known, NODES: 1})


def pool_limits(
    pools: Iterable[NodePool], claims: Iterable[NodeClaim], nodes: Iterable[Node]
) -> dict[str, dict[str, int]]:
    """The resources that each pool with limits may still add. A claim without an instance counts with its
    requests.
    """
    limited = {pool.name: limit_amounts(pool.spec.limits) for pool in pools if pool.spec.limits}
    if not limited:
        return {}
    known = [claim for claim in claims if claim.labels.get(names.NODEPOOL) in limited]
    used = pool_usage(known, nodes)
    for claim in known:
        if claim.waits:
            requested = used.setdefault(claim.labels[names.NODEPOOL], Counter())
            requested.update({**amounts(claim.spec.resources.requests), NODES: 1})
    return {
        pool: {name: amount - used[pool][name] if pool in used else amount for name, amount in limits.items()}
        for pool, limits in limited.items()
    }


def limit_amounts(limits: Mapping[str, str]) -> dict[str, int]:
    """Limits in placement's units; the number of nodes is one of them."""
    limited = amounts(limits)
    if NODES in limits:
        limited[NODES] = int(quantities({NODES: limits[NODES]})[NODES])
    return limited


def shown(used: Mapping[str, int]) -> dict[str, str]:
    """The resources as the pool's status has them."""
    return {
        name: written(name, amount) for name, amount in sorted({**dict.fromkeys(_SHOWN, 0), **used}.items())
    }


def _ends(claim: NodeClaim) -> bool:
    return claim.deleting or is_true(claim, names.INSTANCE_TERMINATING)
