"""Replacement where a reservation is full: which way a pool wants, and how many nodes may be away at once.

Invariant: while nodes of a reservation are away whose successors have no ready node, no other node of it is
ended for a replacement. So a launch that fails stops the rollout after one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import ConditionUpdate, condition, is_true
from broker.controllers.claim_status import held_odcr, replaces
from broker.controllers.disruption.candidates import awaits_pods
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.provisioning.observe import WAITS_FOR_SLOT
from broker.kube.cache import Cache
from broker.placement.claims import taken_over
from broker.text import InvalidText, decode_whole, shortened

ReplaceWay = Literal["auto", "launch-first", "terminate-first"]
_WAYS: Final[tuple[ReplaceWay, ...]] = ("auto", "launch-first", "terminate-first")
NODES_REPLACED: Final = "NodesReplaced"
_MOST: Final = 10_000


def replace_way(pool: NodePool) -> ReplaceWay:
    """The pool's way to replace nodes. Raises InvalidText."""
    text = pool.annotations.get(names.REPLACE, "auto")
    for way in _WAYS:
        if text == way:
            return way
    ways = "launch-first, terminate-first or auto"
    raise InvalidText(f"metadata.annotations[{names.REPLACE}] is {shortened(text)}: write {ways}")


def at_once(pool: NodePool) -> int:
    """How many nodes of one reservation may be away at once. Raises InvalidText."""
    text = pool.annotations.get(names.REPLACE_AT_ONCE, "1")
    try:
        return decode_whole(text, least=1, most=_MOST)
    except InvalidText as error:
        field = f"metadata.annotations[{names.REPLACE_AT_ONCE}]"
        raise InvalidText(f"{field} is {shortened(text)}: write a whole number such as 2") from error


def stopped(claims: Iterable[NodeClaim]) -> Mapping[str, str]:
    """By NodePool, the replacement that could not be launched, and why."""
    texts: dict[str, str] = {}
    for claim in sorted(claims, key=lambda claim: claim.name):
        launched = condition(claim.status.conditions, names.LAUNCHED)
        if launched is None or launched.status == "True" or launched.reason in WAITS_FOR_SLOT:
            continue
        if replaces(claim)[1] is None or not claim.waits:
            continue
        text = f"NodeClaim {claim.name} replaces NodeClaim {replaces(claim)[0]}, and is not launched"
        texts.setdefault(claim.labels.get(names.NODEPOOL, ""), f"{text}: {launched.message}")
    return texts


def rollout_condition(pool: NodePool, problem: str) -> ConditionUpdate | None:
    """The pool's condition after a pass; None if it stays as it is. `problem`: of `stopped`, or empty."""
    if problem:
        message = f"{problem}; no other node of its reservation is ended for a replacement meanwhile"
        return ConditionUpdate(type=NODES_REPLACED, status="False", reason="LaunchFailed", message=message)
    known = condition(pool.status.conditions, NODES_REPLACED)
    if known is None or known.status == "True":
        return None
    return ConditionUpdate(type=NODES_REPLACED, status="True", reason=NODES_REPLACED)


def rollout_obstacle(nodes: Sequence[ManagedNode], claims: Cache[NodeClaim], now: datetime) -> str:
    """Why nodes of one unit may not leave their reservations now; empty if they may. Raises InvalidText."""
    pool, known = nodes[0].pool, claims.list()
    odcrs = {held_odcr(node.claim) for node in nodes} - {""}
    held = {claim.uid: held_odcr(claim) for claim in known}
    away = [
        claim
        for claim in known
        if (old := replaces(claim)[1]) is not None
        and (taken_over(claim)[0] or held.get(old, "")) in odcrs
        and not claim.deleting
        and (not is_true(claim, names.INITIALIZED_CONDITION) or awaits_pods(claim, claims, now))
    ]
    if not odcrs or len(away) < at_once(pool):
        return ""
    launched = condition(away[0].status.conditions, names.LAUNCHED)
    detail = f" ({launched.message})" if launched is not None and launched.message else ""
    return (
        f"NodeClaim {away[0].name} replaces a node of {', '.join(sorted(odcrs))}, and its node has no pods "
        f"yet{detail}; {names.REPLACE_AT_ONCE} of NodePool {pool.name} lets {at_once(pool)} go on at once"
    )
