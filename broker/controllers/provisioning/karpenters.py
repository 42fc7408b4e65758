"""Pods that Karpenter serves: those that one of its ready NodePools accepts.

Why: Karpenter makes a claim for every pod that its pools accept, and does not see the broker's claims. If
both made one, the pod would get two nodes. So such a pod is Karpenter's, whatever the broker's pools accept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.meta import is_true
from broker.capacity.requirements import InvalidRequirement
from broker.placement.future_nodes import FutureNode, future_node


def karpenter_pools(pools: Iterable[NodePool]) -> Sequence[FutureNode]:
    """The nodes of Karpenter's pools that serve pods now. A pool that is not Ready serves none."""
    accepting: list[FutureNode] = []
    for pool in pools:
        template = pool.spec.template
        if (
            template.spec.node_class_ref.group != names.KARPENTER_AWS
            or pool.deleting
            or pool.spec.replicas is not None
            or not is_true(pool, names.READY)
        ):
            continue
        try:
            accepting.append(
                future_node(template.spec, {**template.metadata.labels, names.NODEPOOL: pool.name})
            )
        except InvalidRequirement:
            continue  # Karpenter rejects such a pool
    return accepting
