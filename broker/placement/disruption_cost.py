"""The cost of moving the pods of a node, by which nodes are chosen to end.

Source: Karpenter, pkg/utils/disruption/disruption.go (EvictionCost, ReschedulingCost, LifetimeRemaining).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Final

from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.text import InvalidText, decode_duration, decode_whole

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_MOST: Final = 10.0
_NEVER: Final = "Never"


def rescheduling_cost(pods: Iterable[Pod]) -> float:
    return sum(map(_eviction_cost, pods))


def lifetime_remaining(claim: NodeClaim, now: datetime) -> float:
    """The share of the claim's life that is left, from 1 at its creation to 0 at its expiry."""
    created, text = claim.metadata.creation_timestamp, claim.spec.expire_after
    if created is None or text == _NEVER:
        return 1.0
    try:
        whole = decode_duration(text).total_seconds()
    except InvalidText:
        return 1.0
    return min(1.0, max(0.0, 1 - (now - created).total_seconds() / whole)) if whole else 0.0


def _eviction_cost(pod: Pod) -> float:
    cost = 1.0 + pod.spec.priority / 2**25
    with suppress(InvalidText):  # as in Karpenter
        cost += decode_whole(pod.annotations.get(DELETION_COST, "0")) / 2**27
    return min(_MOST, max(-_MOST, cost))
