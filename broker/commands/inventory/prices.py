"""Prices in commands: those of the table that is part of the broker, for a command that does not call AWS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.placement.node_prices import Described, Price, node_price


def shipped_price(reservations: Mapping[str, Described]) -> Price:
    """Prices of nodes and claims by that table: of Linux on shared tenancy in us-east-1, and no others."""

    def price(node: NodeClaim | Node) -> float | None:
        from providers.aws.prices import shipped_types

        return node_price(shipped_types(), reservations, {}, node)

    return price


def shown_price(capacity_type: str, usd_hours: Iterable[float | None]) -> str:
    """The lowest and the highest price of like options in dollars an hour; `paid` for reserved slots."""
    if capacity_type == "reserved":
        return "paid"
    prices = [*usd_hours]
    known = sorted({f"{usd:.2f}" for usd in prices if usd is not None}, key=float)
    shown = ["-".join(dict.fromkeys((known[0], known[-1])))] if known else []
    if unknown := prices.count(None):
        shown.append(f"{unknown} unknown" if known else "unknown")
    return ", ".join(shown)
