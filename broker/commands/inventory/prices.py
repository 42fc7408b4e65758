"""On-demand prices for commands that do not call AWS: the table that is part of the broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

DEFAULT_REGION: Final = "us-east-1"


def usd_hour(instance_type: str, zone: str) -> float | None:
    """US dollars an hour of an On-Demand Instance; None for an unknown type.

    A Region without a table of its own has the prices of us-east-1.
    """
    from providers.aws.prices import PRICES

    region = zone.rstrip("abcdef")
    return PRICES.get(region, PRICES[DEFAULT_REGION]).get(instance_type)


def shown_price(capacity_type: str, usd_hours: Iterable[float | None]) -> str:
    """The lowest and the highest price of like options in dollars an hour; `paid` for reserved slots."""
    if capacity_type == "reserved":
        return "paid"
    known = sorted({f"{usd:.2f}" for usd in usd_hours if usd is not None}, key=float)
    return "-".join(dict.fromkeys((known[0], known[-1]))) if known else "unknown"
