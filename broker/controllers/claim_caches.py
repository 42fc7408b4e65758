"""The inputs of decisions about NodeClaims: Kubernetes' objects, and EC2 as last described."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.instances import InstanceView
from broker.controllers.inventory import InventoryCache
from broker.kube.cache import Cache
from providers.base import CapacityProvider


@dataclass(frozen=True, kw_only=True)
class ClaimCaches:
    """NodeClaims with the nodes, pods and pools around them. `owns`: the broker launches the claim."""

    claims: Cache[NodeClaim]
    nodes: Cache[Node]
    pods: Cache[Pod]
    pools: Cache[NodePool]
    owns: Callable[[NodeClaim], bool]


@dataclass(frozen=True, kw_only=True)
class Ec2State:
    """EC2, with the last descriptions of its reservations and of the cluster's instances."""

    provider: CapacityProvider
    inventory: InventoryCache
    view: InstanceView
