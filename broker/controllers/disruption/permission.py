"""Whether nodes may be disrupted now: by what is on them, and by the budgets of their pools.

Each refusal is an event, so that a person sees why a node stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from broker.apis.core import POD_SCHEDULED, Pod
from broker.apis.meta import since
from broker.controllers.disruption.candidates import obstacle, waits
from broker.controllers.disruption.report import DisruptionReporter
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.kube.cache import Cache
from broker.placement.disruption_budgets import BudgetLedger, Reason
from broker.text import counted

# Pods that became pending a short time ago may still become claims, which come before moves.
PENDING: Final = timedelta(minutes=1)


class Permission:
    """Reads pods, and reports what it refuses."""

    def __init__(self, pods: Cache[Pod], reporter: DisruptionReporter) -> None:
        self._pods, self._reporter = pods, reporter

    def may(self, node: ManagedNode, snapshot: DisruptionSnapshot, *, eventual: bool = False) -> bool:
        """Whether nothing on the node keeps it. `eventual`: as in `obstacle`."""
        reason = obstacle(node, snapshot.budgets, self._pods.find, snapshot.now, eventual=eventual)
        if reason:
            self._reporter.blocked(node, reason)
        return not reason

    def allowed(self, node: ManagedNode, ledger: BudgetLedger, reason: Reason) -> bool:
        """Whether the node's pool allows one more disruption. One that starts then uses it up."""
        if ledger.remaining(node.pool.name, reason):
            return True
        if ledger.limit(node.pool.name, reason) == 0 and node.pool.name not in ledger.errors:
            self._reporter.pool_blocked(node.pool, reason, "")
        return False

    def all_allowed(self, nodes: Sequence[ManagedNode], ledger: BudgetLedger, reason: Reason) -> bool:
        """Whether the pools allow all of these disruptions at once."""
        counts = Counter(node.pool.name for node in nodes)
        for node in nodes:
            if not self.allowed(node, ledger, reason):
                return False
            count = counts[node.pool.name]
            if ledger.remaining(node.pool.name, reason) < count:
                self._reporter.blocked(
                    node,
                    f"Its gang is disrupted whole, which needs {counted(count, 'disruption')} of NodePool "
                    f"{node.pool.name} at once: its budgets allow {ledger.limit(node.pool.name, reason)}",
                )
                return False
        return True

    def pods_wait(self, now: datetime) -> bool:
        """Whether a pod got no node a short time ago: it may still become a claim."""
        failed = (since(pod, POD_SCHEDULED, "False") for pod in self._pods.list() if waits(pod))
        return any(at is not None and now - at < PENDING for at in failed)
