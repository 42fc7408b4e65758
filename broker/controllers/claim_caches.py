"""The inputs of decisions about NodeClaims: Kubernetes' objects, and EC2 as last described."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.instances import InstanceView
from broker.controllers.inventory import InventoryCache
from broker.kube.cache import Cache
from broker.kube.partial import PartialObject
from providers.base import CapacityProvider

# The names of indexes.
BY_PROVIDER_ID: Final = "providerID"
BY_NODE: Final = "nodeName"


@dataclass(frozen=True, kw_only=True)
class ClaimCaches:
    """NodeClaims with the nodes, pods and pools around them. `owns`: the broker launches the claim."""

    claims: Cache[NodeClaim]
    nodes: Cache[Node]
    pods: Cache[Pod]
    pools: Cache[NodePool]
    owns: Callable[[NodeClaim], bool]

    def first_of(self, claim: NodeClaim) -> NodeClaim:
        """The oldest claim with the providerID, if a user gave it to two."""
        having = [c for c in self.claims.by(BY_PROVIDER_ID, claim.status.provider_id) if not c.deleting]
        return min(having, key=_age, default=claim)

    def nodes_of(self, claim: NodeClaim) -> tuple[list[Node], PartialObject | None]:
        """The claim's Nodes, and the one that is left out of the cache."""
        return self.nodes_at(claim.status.provider_id, name=claim.status.node_name)

    def nodes_at(self, id_: str, *, name: str) -> tuple[list[Node], PartialObject | None]:
        """The Nodes with this providerID, and the one that is left out of the cache.

        Of a Node that is left out, the broker does not know whether it is Ready or deleted, nor whether its
        pods may go. The left-out Nodes are read before and after the Nodes, since a Node may be left out or
        taken back meanwhile.
        """
        before = _left_out(self.nodes, id_, name)
        matching = self.nodes.by(BY_PROVIDER_ID, id_ or "-")
        return matching, before or _left_out(self.nodes, id_, name)

    def non_preemptible(self, claim: NodeClaim) -> bool:
        """Whether a claim is never a victim.

        Claims of another launcher are never victims. Neither, by Karpenter's rule, are claims with
        do-not-disrupt, unless a grace period bounds it. A Node that is left out of the cache may have
        do-not-disrupt, and cannot be drained
        (https://karpenter.sh/docs/concepts/disruption/#pod-level-controls).
        """
        if not self.owns(claim):
            return True
        if claim.spec.termination_grace_period:
            return False
        own_nodes, left_out = self.nodes_of(claim)
        if left_out is not None:
            return True
        placed = [pod for node in own_nodes for pod in self.pods.by(BY_NODE, node.name)]
        running = [pod for pod in placed if not pod.ended]
        guarded = (claim, *own_nodes, *running)
        return any(item.annotations.get(names.DO_NOT_DISRUPT) == "true" for item in guarded)


@dataclass(frozen=True, kw_only=True)
class Ec2State:
    """EC2, with the last descriptions of its reservations and of the cluster's instances."""

    provider: CapacityProvider
    inventory: InventoryCache
    view: InstanceView


def _left_out(nodes: Cache[Node], id_: str, name: str) -> PartialObject | None:
    """Finds a Node that is left out by its providerID, or by its name if that cannot be read."""
    return next(
        (
            partial
            for partial in nodes.left_out
            if (partial.provider_id == id_ if partial.provider_id else partial.name == name)
        ),
        None,
    )


def _age(claim: NodeClaim) -> tuple[datetime, str]:
    return claim.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC), claim.name
