"""The caches that decisions about NodeClaims read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.kube.cache import Cache


@dataclass(frozen=True, kw_only=True)
class ClaimCaches:
    """NodeClaims with the nodes, pods and pools around them. `owns`: the broker launches the claim."""

    claims: Cache[NodeClaim]
    nodes: Cache[Node]
    pods: Cache[Pod]
    pools: Cache[NodePool]
    owns: Callable[[NodeClaim], bool]
