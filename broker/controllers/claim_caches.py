"""The inputs of decisions about NodeClaims: Kubernetes' objects, and EC2 as last described."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

from pydantic import ValidationError

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.instances import InstanceView
from broker.controllers.inventory import InventoryCache
from broker.controllers.newest import newest, pods_on
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.derived import Derived
from broker.kube.partial import PartialObject
from broker.placement.disruption_pods import annotated, protected

# The names of indexes.
BY_INSTANCE: Final = "instanceID"
BY_NODE: Final = "nodeName"
REPLACEMENTS: Final = "replacements"  # one value for all
BY_SLOT: Final = "slot"  # `held_slot` of the claims that the broker launched
BY_SIGN: Final = "sign"  # conditions that few claims have
_SIGNS: Final = (names.INSTANCE_LISTED, names.RECLAIMING, *names.INSTANCE_SIGNS)


@dataclass(frozen=True, kw_only=True)
class ClaimCaches:
    """NodeClaims with the nodes, pods and pools around them.

    `owns`: the broker launches the claim. `taken`: whether Karpenter's are among those now.
    """

    claims: Cache[NodeClaim]
    nodes: Cache[Node]
    pods: Cache[Pod]
    pools: Cache[NodePool]
    owns: Callable[[NodeClaim], bool]
    taken: Callable[[], bool] = lambda: False

    @cached_property
    def owned(self) -> Derived[Sequence[NodeClaim]]:
        """The claims that the broker launches, as of now."""
        return Derived(lambda: tuple(filter(self.owns, self.claims.list())), self.claims, also=self.taken)

    @cached_property
    def waiting(self) -> Derived[Mapping[str, NodeClaim]]:
        """Those that need an instance, by UID."""
        return Derived(lambda: {c.uid: c for c in self.owned() if c.waits}, self.claims, also=self.taken)

    @cached_property
    def launched(self) -> Derived[Mapping[str, NodeClaim]]:
        """Those with an instance, by its id, the oldest of each; without those that are deleted."""
        return Derived(lambda: _launched(self.owned()), self.claims, also=self.taken)

    @cached_property
    def claimed_ids(self) -> Derived[Collection[str]]:
        """The ids of the instances of all claims: each of them may own one, also that of another launcher."""
        return Derived(lambda: self.claims.sizes(BY_INSTANCE), self.claims)

    def first_of(self, claim: NodeClaim) -> NodeClaim:
        """The oldest claim of the instance, if a user gave its providerID to two."""
        having = [c for c in self.claims.by(BY_INSTANCE, claim.instance_id) if not c.deleting]
        return min(having, key=_age, default=claim)

    def nodes_of(self, claim: NodeClaim) -> tuple[list[Node], PartialObject | None]:
        """The claim's Nodes, and the one that is left out of the cache."""
        return self.nodes_at(claim.instance_id, name=claim.status.node_name)

    def nodes_at(self, id_: str, *, name: str) -> tuple[list[Node], PartialObject | None]:
        """The Nodes of this instance, and the one that is left out of the cache.

        Of a Node that is left out, the broker does not know whether it is Ready or deleted, nor whether its
        pods may go. The left-out Nodes are read before and after the Nodes, since a Node may be left out or
        taken back meanwhile.
        """
        before = _left_out(self.nodes, id_, name)
        matching = self.nodes.by(BY_INSTANCE, id_)
        return matching, before or _left_out(self.nodes, id_, name)

    def non_preemptible(self, claim: NodeClaim, now: datetime) -> bool:
        """Whether a claim is never a victim.

        Claims of another launcher are never victims. Neither, by Karpenter's rule, are claims with
        do-not-disrupt, unless a grace period bounds it. A Node that is left out of the cache may have
        do-not-disrupt, and cannot be drained
        (https://karpenter.sh/docs/concepts/disruption/#pod-level-controls).
        """
        return self._non_preemptible(claim, now, lambda node: (node, self.pods.by(BY_NODE, node.name)))

    def non_preemptible_now(self, claim: NodeClaim, client: Client, now: datetime) -> bool:
        """The same by what the API server has: each cache may be behind. Also of a claim that is gone.

        Raises ApiError.
        """
        try:
            current = newest(client, NodeClaim, claim.name)
            return (
                current is None
                or current.uid != claim.uid
                or self._non_preemptible(
                    current, now, lambda node: (newest(client, Node, node.name), pods_on(client, node.name))
                )
            )
        except ValidationError:
            return True

    def _non_preemptible(
        self, claim: NodeClaim, now: datetime, read: Callable[[Node], tuple[Node | None, Iterable[Pod]]]
    ) -> bool:
        """`read`: a Node with its pods."""
        if not self.owns(claim):
            return True
        if claim.spec.termination_grace_period:
            return False
        own_nodes, left_out = self.nodes_of(claim)
        if left_out is not None:
            return True
        guarded: list[NodeClaim | Node] = [claim]
        held = False
        for node, pods in map(read, own_nodes):
            guarded += [node] if node is not None else []
            held = held or any(protected(pod, now) for pod in pods if not pod.ended)
        return held or bool(annotated(guarded))


@dataclass(frozen=True, kw_only=True)
class Ec2State:
    """The last descriptions of EC2's reservations and of the cluster's instances."""

    inventory: InventoryCache
    view: InstanceView


def by_instance(item: NodeClaim | Node) -> Iterable[str]:
    """The index of claims and of Nodes by their instance."""
    return (item.instance_id,) if item.instance_id else ()


def signs(claim: NodeClaim) -> Iterable[str]:
    """The index of claims by the conditions that few have: each pass looks for them."""
    return [item.type for item in claim.status.conditions if item.type in _SIGNS]


def replacing(claim: NodeClaim) -> Iterable[str]:
    """The index of claims that replace others: few of all, and each pass looks for them."""
    return (REPLACEMENTS,) if names.REPLACES in claim.annotations else ()


def replacements(claims: Cache[NodeClaim]) -> Sequence[NodeClaim]:
    """The claims that replace others."""
    return claims.by(REPLACEMENTS, REPLACEMENTS)


def _left_out(nodes: Cache[Node], id_: str, name: str) -> PartialObject | None:
    """Finds a Node that is left out by its instance, or by its name if that cannot be read."""
    return next(
        (
            partial
            for partial in nodes.left_out
            if (partial.instance_id == id_ if partial.instance_id else partial.name == name)
        ),
        None,
    )


def _launched(claims: Iterable[NodeClaim]) -> Mapping[str, NodeClaim]:
    by_id: dict[str, NodeClaim] = {}
    for claim in claims:
        id_, lives = claim.instance_id, not claim.deleting
        if id_ and lives and (id_ not in by_id or _age(claim) < _age(by_id[id_])):
            by_id[id_] = claim
    return by_id


def _age(claim: NodeClaim) -> tuple[datetime, str]:
    return claim.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC), claim.name
