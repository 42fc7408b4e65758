"""Whether a node may still be disrupted, as the API server has it.

The caches may lack what happened last, and each kind has a watch of its own: a person annotates a pod, then
changes the NodePool, and the second is seen first. So the objects of a node are read once more before a step
that cannot be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import structlog
from pydantic import ValidationError

from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.policy import PodDisruptionBudget
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.disruption.candidates import obstacle
from broker.controllers.disruption.report import Cause
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.newest import newest, pods_on
from broker.kube.context import ControllerContext

_log = structlog.get_logger("disruption")
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
        return cause in _UNCONDITIONAL or self._readable(node, lambda: self._may_begin(node, cause))

    def _may_begin(self, node: ManagedNode, cause: Cause) -> bool:
        current = self._newest(node)
        return (
            current is not None
            and not current.claim.deleting
            and current.pool.spec.disruption == node.pool.spec.disruption
            and _uids(current) == _uids(node)
            and (cause == "Drifted" or self._quiet(current))
            and not self._kept(current, cause)
        )

    def may_end(self, node: ManagedNode, cause: Cause, *, budgets: bool = True) -> bool:
        """Whether nothing keeps a node whose pods have another one now. `budgets`: those of pods count."""

        def may_end() -> bool:
            current = self._newest(node)
            return current is None or not self._kept(current, cause, budgets=budgets)

        return cause in _UNCONDITIONAL or self._readable(node, may_end)

    def _readable(self, node: ManagedNode, judge: Callable[[], bool]) -> bool:
        """The judgement; False where an object is malformed, such as a budget that may protect a pod."""
        try:
            return judge()
        except ValidationError as error:
            _log.warning(
                "node not disrupted: an object cannot be read", claim=node.claim.name, error=str(error)
            )
            return False

    def _newest(self, node: ManagedNode) -> ManagedNode | None:
        """The node as it is now; None if its claim or its NodePool is gone."""
        claim = newest(self._client, NodeClaim, node.claim.name)
        pool = newest(self._client, NodePool, node.pool.name)
        if claim is None or claim.uid != node.claim.uid or pool is None:
            return None
        if node.node is None:
            return replace(node, claim=claim, pool=pool)
        name = node.node.name
        core, pods = newest(self._client, Node, name), pods_on(self._client, name)
        return replace(node, claim=claim, pool=pool, node=core, pods=pods)

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
