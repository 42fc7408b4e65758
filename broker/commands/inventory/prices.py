"""On-demand prices for commands that do not call AWS: the table that is part of the broker."""

from __future__ import annotations

from typing import Final

DEFAULT_REGION: Final = "us-east-1"


def usd_hour(instance_type: str, zone: str) -> float | None:
    """US dollars an hour of an On-Demand Instance; None for an unknown type.

    A Region without a table of its own has the prices of us-east-1.
    """
    from providers.aws.prices import PRICES

    region = zone.rstrip("abcdef")
    return PRICES.get(region, PRICES[DEFAULT_REGION]).get(instance_type)
