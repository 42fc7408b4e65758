"""Records nodes that end without ever having a pod on their NodePool, which then backs off."""

from __future__ import annotations

from datetime import datetime

import structlog

from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.disruption.report import DisruptionReporter
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.pool_conditions import write_conditions
from broker.controllers.provisioning.unused import ended_unused, recorded
from broker.kube.context import ControllerContext
from broker.kube.errors import ApiError

_log = structlog.get_logger("disruption")


class UnusedNodes:
    """`record` is called for each node that ended empty."""

    def __init__(self, context: ControllerContext, caches: ClaimCaches, reporter: DisruptionReporter) -> None:
        self._client, self._clock = context.client, context.clock
        self._caches, self._reporter = caches, reporter

    def record(self, node: ManagedNode, now: datetime) -> None:
        """Writes the pool's condition and its event, if the node served no pod."""
        claim, pool = node.claim, self._caches.pools.get(node.pool.name)
        if pool is None or not ended_unused(claim, now):
            return
        update = recorded(pool, claim, self._caches.pods.find, now)
        if update is None:
            return
        try:
            write_conditions(self._client, self._caches.pools, pool, update, now=now)
        except ApiError as error:  # the next round is recorded instead
            _log.warning("unused node not recorded", nodepool=pool.name, error=str(error))
            return
        self._reporter.unused(pool, update.message)
