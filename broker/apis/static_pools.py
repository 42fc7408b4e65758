"""Static NodePools: they hold a number of nodes by themselves, and pods add none.

A pool is static by `spec.replicas`, as in Karpenter, or by the annotation `capacity-broker.io/replicas:
all-reserved`: then it follows the slots of its reservations. The CRD lets no pool gain or lose
`spec.replicas`, so a pool has one of the two.
"""

from __future__ import annotations

from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.text import shortened

ALL_RESERVED: Final = "all-reserved"
_NODES: Final = "nodes"
_FIELD: Final = f"metadata.annotations[{names.REPLICAS}]"


def static(pool: NodePool) -> bool:
    """Whether the pool has a number of nodes of its own, even if that cannot be read."""
    return pool.spec.replicas is not None or names.REPLICAS in pool.annotations


def follows(pool: NodePool) -> bool:
    """Whether the pool has a node for each usable slot of its reservations."""
    return pool.spec.replicas is None and pool.annotations.get(names.REPLICAS) == ALL_RESERVED


def replicas_problem(pool: NodePool) -> str:
    """Why the number of nodes cannot be read, with the field and the remedy; empty if it can."""
    text = pool.annotations.get(names.REPLICAS)
    if text is None:
        return ""
    if text != ALL_RESERVED:
        return f"{_FIELD} is {shortened(text)}: write {ALL_RESERVED}, or remove it"
    if pool.spec.replicas is not None:
        return (
            f"{_FIELD} is {text}, and spec.replicas is {pool.spec.replicas}: remove the annotation, or make "
            "a NodePool without spec.replicas"
        )
    if others := sorted(pool.spec.limits.keys() - {_NODES}):
        return f"spec.limits has {', '.join(others)}: with {_FIELD} write a limit of {_NODES} only"
    return ""


# The condition of a static pool that has its number of nodes.
REPLICAS_MET: Final = "ReplicasMet"


def number_of_nodes(pool: NodePool) -> str:
    """What decides the number of the pool's nodes; empty if pods do."""
    if pool.spec.replicas is not None:
        return f"spec.replicas is {pool.spec.replicas}"
    return f"{_FIELD} is {pool.annotations[names.REPLICAS]}" if static(pool) else ""
