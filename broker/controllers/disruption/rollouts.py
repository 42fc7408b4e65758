"""Replacement where a reservation is full: which way a pool wants, and how many nodes may be away at once.

Invariant: while nodes of a reservation are away whose successors have no ready node, no other node of it is
ended for a replacement. So a launch that fails stops the rollout after one node. So does a successor that
ends before its node is ready, until a node of the pool is ready in a reservation, or for STOPPED.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import ConditionUpdate, condition, is_true, since
from broker.capacity.shortages import BACKING_OFF
from broker.controllers.claim_status import patch, replaces
from broker.controllers.disruption.candidates import awaits_pods
from broker.controllers.disruption.move_model import move_label
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.provisioning.observe import WAITS_FOR_SLOT
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.oncall.metrics import GaugeTable
from broker.placement.claims import taken_over
from broker.reservations.claims import occupied_odcr
from broker.text import InvalidText, decode_whole, shortened
from providers.errors import ErrorClass

ReplaceWay = Literal["auto", "launch-first", "terminate-first"]
_WAYS: Final[tuple[ReplaceWay, ...]] = ("auto", "launch-first", "terminate-first")
NODES_REPLACED: Final = "NodesReplaced"
# A rollout that stopped goes on after that, by one node: its cause may be gone.
STOPPED: Final = timedelta(hours=1)
_MOST: Final = 10_000
STOPPED_ROLLOUTS = GaugeTable(
    "capacity_broker_rollout_stopped",
    "1 for each NodePool with a rollout that stopped: a replacement has no node, and gets none by itself.",
    ["nodepool"],
)
Pairs = tuple[tuple[NodeClaim, ManagedNode | None], ...]
_SHORT: Final = frozenset({BACKING_OFF, ErrorClass.CAPACITY.policy.reason, ErrorClass.QUOTA.policy.reason})


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


def unreadable(pool: NodePool) -> Iterator[str]:
    """The errors of the pool's annotations about replacements."""
    for read in (replace_way, at_once):
        try:
            read(pool)
        except InvalidText as error:
            yield f"{error}; none of its nodes is replaced until then"


def stopped(claims: Iterable[NodeClaim]) -> Mapping[str, tuple[str, str]]:
    """The reason and the message of a replacement that has no node, and gets none by itself, by NodePool."""
    texts: dict[str, tuple[str, str]] = {}
    for claim in sorted(claims, key=lambda claim: claim.name):
        old, _ = replaces(claim)
        label = move_label(claim)
        if label is not None and label.cause == "Underutilized":
            continue  # its node stays, and nothing else waits for it
        problem = _launch_problem(claim) if claim.waits else _end_problem(claim)
        if old and problem:
            reason, text = problem
            message = f"NodeClaim {claim.name} replaces NodeClaim {old}, and {text}"
            texts.setdefault(claim.node_pool, (reason, message))
    return texts


def _launch_problem(claim: NodeClaim) -> tuple[str, str] | None:
    launched = condition(claim.status.conditions, names.LAUNCHED)
    if launched is None or launched.status == "True" or launched.reason in WAITS_FOR_SLOT:
        return None
    slot, until = taken_over(claim)
    if refused(claim) or (slot and until is None):
        return None  # its node has not left the slot yet
    return "LaunchFailed", f"is not launched: {launched.message}"


def _end_problem(claim: NodeClaim) -> tuple[str, str] | None:
    ready = is_true(claim, names.INITIALIZED_CONDITION)
    if not claim.deleting or ready or not taken_over(claim)[0] or is_true(claim, names.PREEMPTED):
        return None
    registered = condition(claim.status.conditions, names.REGISTERED_CONDITION)
    detail = f": {registered.message}" if registered is not None and registered.message else ""
    return "NodeNotReady", f"ends before its node was ready{detail}"


def rollout_condition(
    pool: NodePool, problem: tuple[str, str] | None, claims: Iterable[NodeClaim], now: datetime
) -> ConditionUpdate | None:
    """The pool's condition after a pass; None if it stays as it is. `problem`: of `stopped`."""
    if problem:
        reason, text = problem
        message = f"{text}; no other node of its reservation is ended for a replacement meanwhile"
        return ConditionUpdate(type=NODES_REPLACED, status="False", reason=reason, message=message)
    if halted(pool, claims, now) or condition(pool.status.conditions, NODES_REPLACED) is None:
        return None
    return ConditionUpdate(type=NODES_REPLACED, status="True", reason=NODES_REPLACED)


def _ending(pool: NodePool, claims: Iterable[NodeClaim]) -> str:
    """The problem of a successor that ends now; the condition shows it after this pass."""
    own = (claim for claim in claims if claim.node_pool == pool.name and claim.deleting)
    return next((text for _, text in stopped(own).values()), "")


def halted(pool: NodePool, claims: Iterable[NodeClaim], now: datetime) -> str:
    """Why no node leaves a reservation for a replacement since one of them got none; empty if they may."""
    known = condition(pool.status.conditions, NODES_REPLACED)
    began = since(pool, NODES_REPLACED, "False")
    if known is None or began is None:
        return ""
    ready = (
        since(claim, names.INITIALIZED_CONDITION)
        for claim in claims
        if claim.node_pool == pool.name and occupied_odcr(claim)
    )
    over = now - began >= STOPPED or any(at is not None and at > began for at in ready)
    return "" if over else known.message


def rollout_obstacle(nodes: Sequence[ManagedNode], claims: Cache[NodeClaim], now: datetime) -> str:
    """Why nodes of one unit may not leave their reservations now; empty if they may. Raises InvalidText."""
    pool, known = nodes[0].pool, claims.list()
    odcrs = {occupied_odcr(node.claim) for node in nodes} - {""}
    if odcrs and (reason := _ending(pool, known) or halted(pool, known, now)):
        return reason
    held = {claim.uid: occupied_odcr(claim) for claim in known}
    away = [
        claim
        for claim in known
        if (old := replaces(claim)[1]) is not None
        and (taken_over(claim)[0] or joins(claim) or held.get(old, "")) in odcrs
        and not claim.deleting
        and (not is_true(claim, names.INITIALIZED_CONDITION) or awaits_pods(claim, claims, now))
    ]
    if not odcrs or len(away) < at_once(pool):
        return ""
    launched = condition(away[0].status.conditions, names.LAUNCHED)
    detail = f" ({launched.message})" if launched is not None and launched.message else ""
    lacks = "has no pods" if is_true(away[0], names.INITIALIZED_CONDITION) else "is not ready"
    return (
        f"NodeClaim {away[0].name} replaces a node of {', '.join(sorted(odcrs))}, and its node {lacks} "
        f"yet{detail}; {names.REPLACE_AT_ONCE} of NodePool {pool.name} lets {at_once(pool)} go on at once"
    )


def joins(claim: NodeClaim) -> str:
    """The ODCR in which EC2 counts the claim's instance once the claim that it replaces has ended."""
    return claim.annotations.get(names.JOINS_SLOT, "") if names.REPLACES in claim.annotations else ""


def in_slots(client: Client, claims: Cache[NodeClaim], pairs: Pairs) -> Pairs:
    """The successors of one move with their nodes; once EC2 refused one, all of them in the slots.

    So a refusal costs one call.

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
