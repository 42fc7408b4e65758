"""Reports the progress of static pools: a condition on the pool, and an event on each claim that ends.

Invariant: a pool whose counts stay is not written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import structlog

from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import ConditionUpdate
from broker.apis.static_pools import number_of_nodes
from broker.controllers.pool_conditions import write_conditions
from broker.kube.cache import Cache
from broker.kube.context import ControllerContext
from broker.kube.errors import ApiError
from broker.text import counted

REPLICAS_MET: Final = "ReplicasMet"
NODES_MISSING: Final = "NodesMissing"
SCALED_IN: Final = "ScaledIn"
_log = structlog.get_logger("staticpools")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`have` of the `wanted` nodes are made. `problem`: why no more."""

    have: int = 0
    wanted: int = 0
    problem: str = ""

    def update(self, number: str) -> ConditionUpdate:
        """The condition of a pool with this number of nodes."""
        nodes = f"{number}: {self.have} of {counted(self.wanted, 'node')}"
        if self.have >= self.wanted and not self.problem:
            return ConditionUpdate(type=REPLICAS_MET, status="True", reason=REPLICAS_MET, message=nodes)
        message = f"{nodes}: {self.problem or 'the others are being made'}"
        return ConditionUpdate(type=REPLICAS_MET, status="False", reason=NODES_MISSING, message=message)


class StaticPoolReporter:
    """Writes conditions and events."""

    def __init__(self, context: ControllerContext, pools: Cache[NodePool]) -> None:
        self._client, self._recorder, self._clock = context.client, context.recorder, context.clock
        self._pools = pools

    def report(self, pool: NodePool, progress: Progress | None) -> None:
        """None removes the condition: the pool has no number of nodes, or one that cannot be read."""
        update = progress.update(number_of_nodes(pool)) if progress is not None else None
        newest, now = self._pools.get(pool.name) or pool, self._clock.now()
        try:
            write_conditions(self._client, self._pools, newest, update, now=now, without=REPLICAS_MET)
        except ApiError as error:
            _log.warning("pool not written", nodepool=pool.name, error=str(error))

    def ended(self, claim: NodeClaim, why: str) -> None:
        _log.info("claim ended", claim=claim.name, why=why)
        self._recorder.event(claim, "Normal", SCALED_IN, why)
