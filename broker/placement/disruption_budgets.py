"""Limits on disruption: how many nodes of a pool may be disrupted at once, by reason and time.

Source: Karpenter, pkg/apis/v1/nodepool.go (GetAllowedDisruptionsByReason). A percentage is rounded up. The
strictest budget that is active and has the reason counts; without one, nothing is limited. A budget that
cannot be read allows nothing, also for reasons that it does not name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from broker.apis.karpenter import Budget
from broker.placement import cron
from broker.text import InvalidText, decode_duration, decode_whole

Reason = Literal["Empty", "Drifted", "Underutilized", "Unhealthy"]
UNLIMITED: Final = 2**31 - 1


def allowed(budgets: Iterable[Budget], nodes: int, reason: Reason, now: datetime) -> int:
    """The number of nodes that may be disrupted at once. Raises InvalidText, which names the budget."""
    least = UNLIMITED
    for number, budget in enumerate(budgets):
        try:
            active = is_active(budget, now)
            limit = _limit(budget.nodes, nodes)
        except InvalidText as error:
            raise InvalidText(f"spec.disruption.budgets[{number}]: {error}") from error
        if active and (not budget.reasons or reason in budget.reasons):
            least = min(least, limit)
    return least


def is_active(budget: Budget, now: datetime) -> bool:
    """Whether the schedule began less than the duration ago. A budget without either is always active.

    Raises InvalidText.
    """
    if not budget.schedule and not budget.duration:
        return True
    began = cron.parse(budget.schedule).latest(now)
    return began is not None and now - began < decode_duration(budget.duration)


def _limit(text: str, nodes: int) -> int:
    if text.endswith("%"):
        return -(-nodes * decode_whole(text[:-1], least=0, most=100) // 100)
    return decode_whole(text, least=0, most=UNLIMITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNodes:
    """The nodes of a pool: those that count, and those of them that are disrupted or not Ready.

    `leaving`: only those that are disrupted. A node that is not Ready must not hold up its own repair.
    """

    total: int = 0
    disrupted: int = 0
    leaving: int = 0

    def used(self, reason: Reason) -> int:
        return self.leaving if reason == "Unhealthy" else self.disrupted


@dataclass(slots=True)
class BudgetLedger:
    """The disruptions that each pool allows in one pass. `take` uses them up."""

    budgets: Mapping[str, tuple[Budget, ...]]
    nodes: Mapping[str, PoolNodes]
    now: datetime
    taken: dict[str, int] = field(default_factory=dict)
    # By pool: why its budgets cannot be read.
    errors: dict[str, str] = field(default_factory=dict)

    def limit(self, pool: str, reason: Reason) -> int:
        """The number of nodes that may be disrupted at once, whether they are or not."""
        counts = self.nodes.get(pool, PoolNodes())
        try:
            return allowed(self.budgets.get(pool, (Budget(),)), counts.total, reason, self.now)
        except InvalidText as error:
            self.errors[pool] = str(error)
            return 0

    def remaining(self, pool: str, reason: Reason) -> int:
        """The number of further nodes that may be disrupted now."""
        used = self.nodes.get(pool, PoolNodes()).used(reason) + self.taken.get(pool, 0)
        return max(0, self.limit(pool, reason) - used)

    def take(self, pool: str, reason: Reason, count: int = 1) -> bool:
        """Uses up `count` disruptions if all of them are allowed."""
        if self.remaining(pool, reason) < count:
            return False
        self.taken[pool] = self.taken.get(pool, 0) + count
        return True
