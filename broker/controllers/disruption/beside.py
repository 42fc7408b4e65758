"""Successors that run beside the full reservation of their node, until EC2 counts them there.

Invariant: a refusal costs one call to EC2. The successor that EC2 has no capacity for takes over the slot
instead, after the end of its node, if the NodePool allows that; else it waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition
from broker.capacity.shortages import BACKING_OFF
from broker.controllers.claim_status import patch
from broker.controllers.disruption.snapshot import ManagedNode
from broker.kube.cache import Cache
from broker.kube.client import Client
from providers.errors import ErrorClass

Pairs = tuple[tuple[NodeClaim, ManagedNode | None], ...]
_SHORT: Final = frozenset({BACKING_OFF, ErrorClass.CAPACITY.policy.reason, ErrorClass.QUOTA.policy.reason})


def joins(claim: NodeClaim) -> str:
    """The ODCR in which EC2 counts the claim's instance once the claim that it replaces has ended."""
    return claim.annotations.get(names.JOINS_SLOT, "") if names.REPLACES in claim.annotations else ""


def in_slots(client: Client, claims: Cache[NodeClaim], pairs: Pairs) -> Pairs:
    """The successors of one move with their nodes; once EC2 refused one, all of them in the slots.

    Raises ApiError.
    """
    short = any(refused(successor) for successor, node in pairs if node is not None and _may_end_first(node))
    if not short or not all(joins(successor) and successor.waits for successor, _ in pairs):
        return pairs
    return tuple((patch(client, claims, successor, _in_slot), node) for successor, node in pairs)


def refused(successor: NodeClaim) -> bool:
    """Whether EC2 has no capacity for a successor beside its slot now."""
    launched = condition(successor.status.conditions, names.LAUNCHED)
    return bool(joins(successor)) and launched is not None and launched.reason in _SHORT


def _may_end_first(node: ManagedNode) -> bool:
    return node.pool.annotations.get(names.REPLACE, "auto") == "auto"


def _in_slot(successor: NodeClaim) -> Mapping[str, Any]:
    slot = joins(successor)
    return {"annotations": {names.TAKES_SLOT: slot, names.JOINS_SLOT: None}} if slot else {}
