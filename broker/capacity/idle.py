"""Free slots that cost money: what, and since when.

Invariant: slots are never said to idle longer than they were seen to. EC2 keeps no history of free slots, so
"since" begins when at least so many are first seen free; when more become free it begins anew for all, when
some are taken it stays. A free slot costs what an On-Demand Instance of its type costs (EC2 User Guide,
"Capacity Reservation pricing and billing"); one of a reservation that is not active costs nothing.
"""

from __future__ import annotations

from datetime import datetime

from providers.model import InstanceType, Odcr


def idle_cost(odcr: Odcr, type_: InstanceType | None) -> float | None:
    """US dollars an hour; None while the price is not known."""
    price = type_.on_demand_price if type_ else None
    return None if price is None else odcr.idle * price


def idle_since(odcr: Odcr, *, before: int, since: datetime | None, now: datetime) -> datetime | None:
    """Since when as many slots as now idle (None: none does); when last seen, `before` did, since `since`."""
    if not odcr.idle:
        return None
    return since if since is not None and before >= odcr.idle else now.replace(microsecond=0)
