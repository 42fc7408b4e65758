"""What idle slots and instances outside reservations cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.commands.explain.situation import Situation
from broker.commands.inventory.prices import usd_hour


def costs(situation: Situation) -> Iterator[dict[str, Any]]:
    """Free slots by reservation, then instances outside reservations by type; the dearest first."""
    idle: list[dict[str, Any]] = []
    for mirror in situation.mirrors:
        status = mirror.status
        if status.idle:
            cost = float(status.idle_cost_per_hour) if status.idle_cost_per_hour else None
            description = f"idle slots of {mirror.name} ({status.type}, {status.zone})"
            idle.append({"what": description, "count": status.idle, "usd_hour": cost})
    outside: dict[str, list[NodeClaim]] = {}
    for claim in situation.claims:
        kind = claim.labels.get(names.CAPACITY_TYPE, "")
        if claim.status.provider_id and kind == "on-demand":
            outside.setdefault(claim.labels.get(names.INSTANCE_TYPE, ""), []).append(claim)
    rows: list[dict[str, Any]] = [
        {
            "what": f"on-demand instances of {type_}, outside reservations",
            "count": len(claims),
            "usd_hour": _sum(usd_hour(type_, claim.labels.get(names.ZONE, "")) for claim in claims),
        }
        for type_, claims in outside.items()
    ]
    yield from sorted((*idle, *rows), key=lambda row: (-(row["usd_hour"] or 0), row["what"]))


def _sum(prices: Iterable[float | None]) -> float | None:
    known = list(prices)
    return None if None in known else round(sum(price or 0 for price in known), 2)
