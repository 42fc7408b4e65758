"""Whether a node may still be disrupted, as the API server has it.

The caches may lack what happened last, and each kind has a watch of its own: a person annotates a pod, then
changes the NodePool, and the second is seen first. So the objects of a node are read once more before a step
that cannot be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

import structlog
from pydantic import ValidationError

from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.policy import PodDisruptionBudget
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.disruption.candidates import obstacle
from broker.controllers.disruption.repair_history import stopped_repair
from broker.controllers.disruption.report import Cause
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.newest import newest, pods_on
from broker.kube.context import ControllerContext
from broker.placement.repair import diagnose
from broker.placement.repair_policies import RepairAction, rules_of

T = TypeVar("T")
_log = structlog.get_logger("disruption")
# Those that nothing on a node holds up: its drain has begun, or its time is over.
_UNCONDITIONAL: Final[frozenset[Cause]] = frozenset({"Expired", "Ended"})


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
        if cause == "Unhealthy":
            return self.broken(node, "replace") is not None
        return cause in _UNCONDITIONAL or bool(self._readable(node, lambda: self._may_begin(node, cause)))

    def broken(self, node: ManagedNode, action: RepairAction) -> Node | None:
        """The Node as it is now, if this repair of it is due and nothing keeps it from repair."""
        return self._readable(node, lambda: self._broken(node, action))

    def _broken(self, node: ManagedNode, action: RepairAction) -> Node | None:
        current, now = self._newest(node, pods=False), self._clock.now()
        if current is None or current.node is None or current.claim.deleting or stopped_repair(current):
            return None
        known = diagnose(current.node, current.claim, rules_of(current.pool), now)
        due = known is not None and known.sign.due <= now and known.sign.action == action
        return current.node if due else None

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
        """Whether nothing keeps a node whose pods have another one now. `budgets`: those of pods count.

        A broken node that has recovered since ends all the same, unless repair was stopped.
        """

        def may_end() -> bool:
            repaired = cause == "Unhealthy"
            current = self._newest(node, pods=not repaired)
            if current is None:
                return True
            if repaired:
                return not stopped_repair(current)
            return not self._kept(current, cause, budgets=budgets)

        return cause in _UNCONDITIONAL or bool(self._readable(node, may_end))

    def _readable(self, node: ManagedNode, judge: Callable[[], T]) -> T | None:
        """The judgement; None where an object is malformed, such as a budget that may protect a pod."""
        try:
            return judge()
        except ValidationError as error:
            _log.warning(
                "node not disrupted: an object cannot be read", claim=node.claim.name, error=str(error)
            )
            return None

    def _newest(self, node: ManagedNode, *, pods: bool = True) -> ManagedNode | None:
        """The node as it is now, with its `pods` or without; None if its claim or its NodePool is gone."""
        claim = newest(self._client, NodeClaim, node.claim.name)
        pool = newest(self._client, NodePool, node.pool.name)
        if claim is None or claim.uid != node.claim.uid or pool is None:
            return None
        if node.node is None:
            return replace(node, claim=claim, pool=pool)
        name = node.node.name
        core = newest(self._client, Node, name)
        own_pods = pods_on(self._client, name) if pods else ()
        return replace(node, claim=claim, pool=pool, node=core, pods=own_pods)

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
