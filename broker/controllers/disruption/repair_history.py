"""The recent repairs of a NodePool, in its condition RecentRepairs: nodes that ended since they were broken.
Also bounds the drain of such a node.

Why: a fault that spreads slowly never breaks many nodes at once, and could end a whole pool one by one. So a
node that ends by repair counts as broken while it is there, and for RECENT from its end. Why a condition: the
broker's role may write no other part of a NodePool.

Invariant: a repair is in the condition before its claim is deleted, so that a new process counts it, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import ConditionUpdate, condition
from broker.controllers.claim_status import patch, replaces
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.pool_conditions import write_conditions
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.placement.claims import deadline_of
from broker.placement.repair import Diagnosis, diagnose, obstacle_of_repair
from broker.placement.repair_policies import rules_of
from broker.text import InvalidText, counted, decode_time, format_time

RECENT: Final = timedelta(hours=1)
# The drain of a node that recovered after its replacement was started.
RECOVERED: Final = timedelta(minutes=10)
_ENTRY: Final = re.compile(r"NodeClaim (\S+) at ([^\s,]+)")


def recent_repairs(pool: NodePool, claims: Iterable[NodeClaim], now: datetime) -> Mapping[str, datetime]:
    """The claims that ended by repair lately, or still end, with the times. `claims`: all of the pool."""
    ending = {claim.name for claim in claims if claim.deleting}
    return {name: at for name, at in _known(pool).items() if name in ending or now - at < RECENT}


def stopped_repair(node: ManagedNode) -> str:
    """Why a repair that is under way is given up; empty if it goes on."""
    return obstacle_of_repair(node.node, node.claim, rules_of(node.pool)) if node.node is not None else ""


def record_repair(client: Client, pools: Cache[NodePool], node: ManagedNode, now: datetime) -> None:
    """Notes that the node ends by repair, unless that is for an event to come alone. Raises ApiError."""
    diagnosis = diagnose(node.node, node.claim, rules_of(node.pool), now) if node.node is not None else None
    if diagnosis is not None and not diagnosis.counts:
        return
    pool = pools.get(node.pool.name) or node.pool
    write_conditions(client, pools, pool, repairs_update({**_known(pool), node.claim.name: now}), now=now)


def repairs_update(repairs: Mapping[str, datetime]) -> ConditionUpdate | None:
    """The condition with the recent repairs; None without any."""
    if not repairs:
        return None
    listed = ", ".join(f"NodeClaim {name} at {format_time(at)}" for name, at in sorted(repairs.items()))
    message = f"{counted(len(repairs), 'node')} ended by repair, and counts as broken for an hour: {listed}"
    return ConditionUpdate(
        type=names.RECENT_REPAIRS, status="True", reason=names.RECENT_REPAIRS, message=message
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenCount:
    """The nodes of a pool that are broken now, those that ended by repair, and all."""

    broken: int
    repaired: int
    nodes: int

    @property
    def counted(self) -> int:
        return self.broken + self.repaired


def broken_count(
    nodes: Sequence[ManagedNode], diagnoses: Mapping[str, Diagnosis], repaired: Iterable[str]
) -> BrokenCount:
    """Counts the nodes of a pool. A node that ended by repair is one of them until its successor is.

    `nodes`: those that are there and do not end. `repaired`: the names of claims.
    """
    there = {node.claim.name for node in nodes}
    broken = {node.claim.name for node in nodes if (known := diagnoses.get(node.claim.uid)) and known.counts}
    followed = {replaces(node.claim)[0] for node in nodes}
    return BrokenCount(
        broken=len(broken),
        repaired=len({*repaired} - broken),
        nodes=len(there | ({*repaired} - followed)),
    )


def _known(pool: NodePool) -> dict[str, datetime]:
    """The repairs in the condition. An entry that cannot be read is left out."""
    current = condition(pool.status.conditions, names.RECENT_REPAIRS)
    known: dict[str, datetime] = {}
    for name, at in _ENTRY.findall(current.message if current is not None else ""):
        try:
            known[name] = decode_time(at)
        except InvalidText:
            continue
    return known


def bound_drain(client: Client, claims: Cache[NodeClaim], node: ManagedNode, now: datetime) -> None:
    """Writes until when the drain of a broken node may take: pods that may not be evicted must not keep it in
    its slot. Raises ApiError.
    """
    bound: timedelta | None = RECOVERED
    if node.node is not None and (known := diagnose(node.node, node.claim, rules_of(node.pool), now)):
        bound = known.drain
    if bound is None:
        return
    until = now + bound

    def metadata(claim: NodeClaim) -> Mapping[str, Any]:
        before = deadline_of(claim)
        if before is not None and before <= until:
            return {}
        return {"annotations": {names.TERMINATION_DEADLINE: format_time(until)}}

    patch(client, claims, node.claim, metadata)
