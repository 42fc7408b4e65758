"""Whether a node may still be disrupted, as the API server has it.

The caches may lack what happened last, and each kind has a watch of its own: a person annotates a pod, then
changes the NodePool, and the second is seen first. So the objects of a node are read once more before a step
that cannot be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import Object
from broker.apis.policy import PodDisruptionBudget
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.disruption.candidates import obstacle
from broker.controllers.disruption.report import Cause
from broker.controllers.disruption.snapshot import ManagedNode
from broker.kube.context import ControllerContext

_Object = TypeVar("_Object", bound=Object)
# Those that nothing on a node holds up: its drain has a bound, or has begun.
_UNCONDITIONAL: Final[frozenset[Cause]] = frozenset({"Unhealthy", "Expired", "Ended"})


class Confirmation:
    """Reads the API server. Raises ApiError."""

    def __init__(
        self, context: ControllerContext, caches: ClaimCaches, quiet: Callable[[ManagedNode], bool]
    ) -> None:
        """`quiet`: no pod came to the node or left it for the pool's consolidateAfter."""
        self._client, self._clock = context.client, context.clock
        self._pods, self._quiet = caches.pods, quiet

    def may_begin(self, node: ManagedNode, cause: Cause) -> bool:
        """Whether the node has the pods and the rules by which this pass chose it, and nothing keeps it."""
        if cause in _UNCONDITIONAL:
            return True
        newest = self._newest(node)
        return (
            newest is not None
            and not newest.claim.deleting
            and newest.pool.spec.disruption == node.pool.spec.disruption
            and _uids(newest) == _uids(node)
            and (cause == "Drifted" or self._quiet(newest))
            and not self._kept(newest, cause)
        )

    def may_end(self, node: ManagedNode, cause: Cause, *, budgets: bool = True) -> bool:
        """Whether nothing keeps a node whose pods have another one now. `budgets`: those of pods count."""
        if cause in _UNCONDITIONAL:
            return True
        newest = self._newest(node)
        return newest is None or not self._kept(newest, cause, budgets=budgets)

    def pods_on(self, node: str) -> tuple[Pod, ...]:
        listed, _ = self._client.list(Pod.KIND, field_selector=f"spec.nodeName={node}")
        return tuple(map(Pod.decode, listed))

    def _newest(self, node: ManagedNode) -> ManagedNode | None:
        """The node as it is now; None if its claim or its NodePool is gone."""
        claim, pool = self._named(NodeClaim, node.claim.name), self._named(NodePool, node.pool.name)
        if claim is None or claim.uid != node.claim.uid or pool is None:
            return None
        if node.node is None:
            return replace(node, claim=claim, pool=pool)
        name = node.node.name
        return replace(node, claim=claim, pool=pool, node=self._named(Node, name), pods=self.pods_on(name))

    def _named(self, model: type[_Object], name: str) -> _Object | None:
        """The object of that name. It is listed, since that is what the broker may do with each kind."""
        listed, _ = self._client.list(model.KIND, field_selector=f"metadata.name={name}")
        return next(map(model.decode, listed), None)

    def _kept(self, node: ManagedNode, cause: Cause, *, budgets: bool = True) -> bool:
        of_pods = [*self._budgets(node)] if budgets else ()
        now, eventual = self._clock.now(), cause == "Drifted"
        return bool(obstacle(node, of_pods, self._pods.find, now, eventual=eventual))

    def _budgets(self, node: ManagedNode) -> Iterator[PodDisruptionBudget]:
        for namespace in {pod.namespace for pod in node.pods}:
            listed, _ = self._client.list(PodDisruptionBudget.KIND, namespace=namespace)
            yield from map(PodDisruptionBudget.decode, listed)


def _uids(node: ManagedNode) -> set[str]:
    return {pod.uid for pod in node.moving}
