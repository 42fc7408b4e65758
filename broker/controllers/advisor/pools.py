"""Finds the NodePools of Karpenter's that use a class, and those that leave its reservations idle.

Karpenter launches into a reservation only for a NodePool that allows the capacity type `reserved`. A pool
without a requirement on the capacity type allows all of them (https://karpenter.sh/docs/concepts/nodepools/,
"Capacity Type").
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.capacity.requirements import InvalidRequirement, Requirements
from broker.placement.reading import requirements_of

RESERVED = "reserved"
OTHERS = ("on-demand", "spot")


def karpenter_pools(pools: Iterable[NodePool], node_class: str) -> list[NodePool]:
    """Karpenter's pools of this class, by name."""
    matching = [pool for pool in pools if class_of(pool) == node_class and not pool.deleting]
    return sorted(matching, key=lambda pool: pool.name)


def class_of(pool: NodePool) -> str:
    """The class that Karpenter launches the pool's nodes from; empty for a pool that is not Karpenter's."""
    ref = pool.spec.template.spec.node_class_ref
    return ref.name if ref.group == names.KARPENTER_AWS else ""


def without_reserved(pools: Iterable[NodePool]) -> list[str]:
    """Names of the pools that do not allow `reserved`."""
    return [pool.name for pool in pools if not _allows(pool, RESERVED)]


def beyond_reserved(pools: Iterable[NodePool]) -> list[str]:
    """Names of the pools that allow another capacity type than `reserved`."""
    return [pool.name for pool in pools if any(_allows(pool, other) for other in OTHERS)]


def _allows(pool: NodePool, capacity_type: str) -> bool:
    template = pool.spec.template
    try:
        requirements = requirements_of(template.spec) & Requirements.of_labels(template.metadata.labels)
    except InvalidRequirement:
        return True  # Karpenter rejects such a pool, and reports it there
    return requirements.allows(names.CAPACITY_TYPE, capacity_type)
