"""The caches of claims for tests without informers."""

from __future__ import annotations

from collections.abc import Callable

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.claim_caches import ClaimCaches
from broker.kube.cache import Cache


def claim_caches(
    claims: Cache[NodeClaim] | None = None,
    nodes: Cache[Node] | None = None,
    pods: Cache[Pod] | None = None,
    *,
    pools: Cache[NodePool] | None = None,
    owns: Callable[[NodeClaim], bool] = lambda _: True,
) -> ClaimCaches:
    """These caches, and empty ones for the rest."""
    return ClaimCaches(
        claims=Cache(NodeClaim) if claims is None else claims,
        nodes=Cache(Node) if nodes is None else nodes,
        pods=Cache(Pod) if pods is None else pods,
        pools=Cache(NodePool) if pools is None else pools,
        owns=owns,
    )
