"""Dominant resource shares, for fair sharing: the borrowing of a queue or cohort relative to its parent.

Invariant: the share of a node is the largest, over resources, of its borrowed amount in thousandths of
its parent's lendable amount, divided by the node's weight; 0 without borrowing. A borrowing node of
weight 0 is above every other share, unless its share is 0: then its parent could lend nothing of the
borrowed resources. The rule is Kueue's (pkg/cache/scheduler/fair_sharing.go: `zeroWeightBorrows`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from broker.quota.model import Amounts
from broker.quota.tree import QuotaNode


class DominantShare(NamedTuple):
    """Shares compare as in Kueue; `borrows` may be true of a share of 0."""

    weightless: bool
    value: float
    borrows: bool = False
    resource: str = ""

    @property
    def order(self) -> tuple[bool, float]:
        return self.weightless, self.value

    @property
    def published(self) -> int | None:
        """The whole number for status; None if it is infinite."""
        return None if self.weightless else math.ceil(self.value)


_IDLE = DominantShare(False, 0.0)


def share(node: QuotaNode) -> DominantShare:
    """The share of the node's present usage; a node without a parent has none."""
    if node.parent is None:
        return _IDLE
    borrowed: dict[str, int] = {}
    usage = node.usage
    for key, quota in node.subtree.items():
        beyond = usage.get(key, 0) - quota
        if beyond > 0:
            borrowed[key.resource] = borrowed.get(key.resource, 0) + beyond
    if not borrowed:
        return _IDLE
    lendable = node.parent.lendable
    ratio, dominant = 0.0, ""
    for resource in sorted(borrowed):
        if (most := lendable.get(resource, 0)) > 0:
            resource_ratio = borrowed[resource] * 1000.0 / most
            if resource_ratio > ratio:
                ratio, dominant = resource_ratio, resource
    if ratio == 0 or node.weight == 0:
        return DominantShare(ratio > 0, ratio, True, dominant)
    return DominantShare(False, ratio / node.weight, True, dominant)


def borrows_of(node: QuotaNode, amounts: Amounts) -> bool:
    """Whether the node borrows any of the requested resources."""
    return any(value > 0 and node.uses(key) > node.quota(key) for key, value in amounts.items())
