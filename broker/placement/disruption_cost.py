"""The cost of moving the pods of a node, by which nodes are chosen to end.

Source: Karpenter, pkg/utils/disruption/disruption.go (EvictionCost, ReschedulingCost, LifetimeRemaining,
ComputeRescheduleDisruptionCost).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Final

from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.text import InvalidText, decode_duration, decode_whole

DISRUPTION_COST: Final = "karpenter.sh/disruption-cost"  # comes before the other one
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_MOST: Final = 10.0
_NEVER: Final = "Never"


def rescheduling_cost(pods: Iterable[Pod]) -> float:
    return sum(map(_eviction_cost, pods))


def disruption_of(pods: Iterable[Pod]) -> float:
    """The cost of ending a node with these pods: 1 for the node, and no pod makes it less."""
    return 1.0 + sum(max(0.0, _eviction_cost(pod)) for pod in pods)


def expires(claim: NodeClaim) -> datetime | None:
    """When the claim expires; None if it never does."""
    created, text = claim.metadata.creation_timestamp, claim.spec.expire_after
    if created is None or text == _NEVER:
        return None
    try:
        return created + decode_duration(text)
    except InvalidText:
        return None


def lifetime_remaining(claim: NodeClaim, now: datetime) -> float:
    """The share of the claim's life that is left, from 1 at its creation to 0 at its expiry."""
    created, end = claim.metadata.creation_timestamp, expires(claim)
    if created is None or end is None:
        return 1.0
    whole = end - created
    return min(1.0, max(0.0, (end - now) / whole)) if whole else 0.0


def _eviction_cost(pod: Pod) -> float:
    cost = 1.0 + pod.spec.priority / 2**25
    with suppress(InvalidText):  # as in Karpenter
        text = pod.annotations.get(DISRUPTION_COST, pod.annotations.get(DELETION_COST, "0"))
        cost += decode_whole(text) / 2**27
    return min(_MOST, max(-_MOST, cost))
