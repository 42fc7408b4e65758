"""Records nodes that end without ever having a pod on their NodePool, which then backs off."""

from __future__ import annotations

from datetime import datetime

import structlog

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_caches import BY_NODE, ClaimCaches
from broker.controllers.pool_conditions import try_conditions
from broker.controllers.provisioning.unused import ENDED_UNUSED, ended_unused, recorded
from broker.kube.context import ControllerContext
from broker.placement.disruption_pods import reschedulable

_log = structlog.get_logger("unused_nodes")


class UnusedNodes:
    """`record` is called for each claim that ends without pods, or after its instance."""

    def __init__(self, context: ControllerContext, caches: ClaimCaches) -> None:
        self._client, self._recorder, self._caches = context.client, context.recorder, caches

    def record(self, claim: NodeClaim, now: datetime, *, loss: str = "") -> None:
        """Writes the pool's condition and its event, if the node served no pod.

        `loss`: why the instance is gone; empty if the broker ends it.
        """
        pool = self._caches.pools.get(claim.labels.get(names.NODEPOOL, ""))
        if pool is None or not ended_unused(claim, now) or self._used(claim):
            return
        update = recorded(pool, claim, self._caches.pods.find, now, loss=loss)
        if update is None or not try_conditions(self._client, self._caches.pools, pool, update, now=now):
            return  # the next round is recorded instead
        self._recorder.event(pool, "Warning", ENDED_UNUSED, update.message)
        _log.warning("node ended unused", nodepool=pool.name, why=update.message)

    def _used(self, claim: NodeClaim) -> bool:
        """Whether a pod is there that the claim's status does not show yet."""
        node = claim.status.node_name
        return bool(node) and any(map(reschedulable, self._caches.pods.by(BY_NODE, node)))
