"""Broken nodes: what is broken since when, what the broker does next and when, and what the slot costs.

`explain cluster` and the web page show the same values. They follow from the Node, its claim and its pool
alone, by the table with which the broker repairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.meta import condition
from broker.oncall.slot_holders import leaving
from broker.oncall.state import is_brokers
from broker.placement.node_prices import Price
from broker.placement.reboots import reboots_of
from broker.placement.repair import Diagnosis, diagnose, obstacle_of_repair
from broker.placement.repair_policies import DEFAULT, rules_of
from broker.reservations.claims import occupied_odcr
from broker.text import format_time

_PAID: Final = frozenset({"reserved", "on-demand"})
_DONE: Final[Mapping[str, str]] = {"reboot": "rebooted", "replace": "replaced"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenNode:
    """One broken node. `next_at`: when the next step is due; None if it waits for none, or for no time.

    `reservation`: the EC2 reservation that pays for its slot. `usd`: the price of the time since `since`.
    """

    claim: str
    node: str
    node_pool: str
    instance_type: str
    zone: str
    reservation: str
    sign: str
    message: str
    since: datetime
    next: str
    next_at: datetime | None = None
    usd_hour: float | None = None
    usd: float | None = None


def broken_nodes(
    claims: Iterable[NodeClaim],
    nodes: Iterable[Node],
    pools: Iterable[NodePool],
    now: datetime,
    *,
    price: Price,
) -> list[BrokenNode]:
    """The broken nodes of all claims: those in reservations first, then those that are broken longest."""
    by_id = {node.spec.provider_id: node for node in nodes if node.spec.provider_id}
    by_name = {pool.name: pool for pool in pools}
    rows = [
        _row(claim, node, by_name.get(claim.node_pool), diagnosis, now, price)
        for claim, node, diagnosis in _diagnosed(claims, by_id, by_name, now)
    ]
    return sorted(rows, key=lambda row: (not row.reservation, row.since, row.claim))


def _diagnosed(
    claims: Iterable[NodeClaim], nodes: Mapping[str, Node], pools: Mapping[str, NodePool], now: datetime
) -> Iterator[tuple[NodeClaim, Node, Diagnosis]]:
    for claim in claims:
        node = nodes.get(claim.status.provider_id)
        if node is None:
            continue
        pool = pools.get(claim.node_pool)
        rules = rules_of(pool) if pool is not None else DEFAULT
        if (diagnosis := diagnose(node, claim, rules, now)) is not None:
            yield claim, node, diagnosis


def _row(
    claim: NodeClaim, node: Node, pool: NodePool | None, diagnosis: Diagnosis, now: datetime, price: Price
) -> BrokenNode:
    paid = claim.labels.get(names.CAPACITY_TYPE) in _PAID
    usd_hour = price(claim) if paid else None
    hours = (now - diagnosis.since).total_seconds() / 3600
    next_, at = next_step(claim, node, pool, diagnosis, now)
    return BrokenNode(
        claim=claim.name,
        node=node.name,
        node_pool=claim.node_pool,
        instance_type=claim.labels.get(names.INSTANCE_TYPE, ""),
        zone=claim.labels.get(names.ZONE, ""),
        reservation=occupied_odcr(claim),
        sign=diagnosis.text,
        message=diagnosis.sign.message,
        since=diagnosis.since,
        next=next_,
        next_at=at,
        usd_hour=usd_hour,
        usd=None if usd_hour is None else round(usd_hour * max(0.0, hours), 2),
    )


def next_step(
    claim: NodeClaim, node: Node, pool: NodePool | None, diagnosis: Diagnosis, now: datetime
) -> tuple[str, datetime | None]:
    """The next step in words, and when it is due; None if it waits for no time."""
    if why := leaving(claim):
        return f"its claim {why}", None
    if (reboot := reboots_of(claim).current) is not None:
        if reboot.phase == "Draining":
            return "rebooted after its drain, at the latest then", reboot.until
        return (
            f"rebooted at {format_time(reboot.began)}; replaced if it is not Ready by then",
            reboot.deadline,
        )
    if why := _not_repaired(claim, node, pool):
        return f"not repaired: {why}", None
    action = _DONE[diagnosis.sign.action]
    if diagnosis.sign.due > now:
        return f"{action}, if it is still broken then", diagnosis.sign.due
    return f"{action} as soon as budgets and limits allow it", None


def _not_repaired(claim: NodeClaim, node: Node, pool: NodePool | None) -> str:
    """Why the broker does not repair the node; empty if it does."""
    if not is_brokers(claim):
        return "another launcher serves its claim"
    if pool is None:
        return "its claim is of no NodePool"
    if why := obstacle_of_repair(node, claim, rules_of(pool)):
        return why
    stopped = condition(pool.status.conditions, names.REPAIR_ALLOWED)
    return stopped.message if stopped is not None and stopped.status == "False" else ""
