"""What idle slots and instances outside reservations cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.oncall.situation import Situation
from broker.placement.node_prices import Price, total


def costs(situation: Situation) -> Iterator[dict[str, Any]]:
    """Unused slots by reservation, then instances outside reservations by type; the dearest first.

    A slot that a claim has since EC2's last description is used, as in every other part of the page.
    """
    idle: list[dict[str, Any]] = []
    uses = situation.slot_uses
    for mirror in situation.mirrors:
        status, use = mirror.status, uses.get(mirror.name)
        if count := use.unused if use is not None else 0:
            known = status.idle_cost_per_hour
            cost = round(float(known) * count / status.idle, 2) if known else None
            description = f"idle slots of {mirror.name} ({status.type}, {status.zone})"
            unpriced = count if cost is None else 0
            idle.append({"what": description, "count": count, "usd_hour": cost, "unpriced": unpriced})
    outside: dict[str, list[NodeClaim]] = {}
    for claim in situation.claims:
        kind = claim.labels.get(names.CAPACITY_TYPE, "")
        if claim.status.provider_id and kind == "on-demand":
            outside.setdefault(claim.labels.get(names.INSTANCE_TYPE, ""), []).append(claim)
    rows = [_outside(type_, claims, situation.price) for type_, claims in outside.items()]
    yield from sorted((*idle, *rows), key=lambda row: (-(row["usd_hour"] or 0), row["what"]))


def _outside(type_: str, claims: Sequence[NodeClaim], price: Price) -> dict[str, Any]:
    dollars, unpriced = total(price(claim) for claim in claims)
    part = f", {unpriced} without a price" if 0 < unpriced < len(claims) else ""
    return {
        "what": f"on-demand instances of {type_}, outside reservations{part}",
        "count": len(claims),
        "usd_hour": None if unpriced == len(claims) else round(dollars, 2),
        "unpriced": unpriced,
    }
