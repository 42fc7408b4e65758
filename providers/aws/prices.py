"""On-Demand prices that are shipped with the broker, to know what is cheaper before any price was asked for.

Linux, shared tenancy, US dollars an hour, us-east-1, from the public EC2 On-Demand price list. A type or a
Region that is not here has no price, which is told as unknown and never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping

PRICES: Mapping[str, Mapping[str, float]] = {"us-east-1": {}}


def on_demand_price(instance_type: str, *, region: str) -> float | None:
    """The price of an hour; None where unknown."""
    return PRICES.get(region, {}).get(instance_type)
