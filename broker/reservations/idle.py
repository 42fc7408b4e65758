"""Cost and age of idle slots.

Invariant: an idle time is never longer than observed. EC2 keeps no history of free slots, so "since" begins
when at least so many are first seen free. If more become free it begins anew for all; if some are taken it
stays.

A free slot costs as much as an On-Demand Instance of its type, platform and tenancy (EC2 User Guide,
"Capacity Reservation pricing and billing"). It costs this account nothing if

- the reservation is not active,
- it is a capacity block, which is paid in advance ("Capacity Blocks pricing and billing"), or
- another account is billed for unused slots ("Billing assignment for shared Capacity Reservations").
"""

from __future__ import annotations

from datetime import datetime

from providers.model import InstanceType, Odcr


def idle_cost(odcr: Odcr, type_: InstanceType | None, *, account: str) -> float | None:
    """US dollars an hour that free slots cost `account`; None while the price is not known.

    An empty `account` is the owner's: the caller could not read its own.
    """
    owner = odcr.owner_id or account
    if odcr.prepaid or (odcr.billing_owner_id or owner) != (account or owner):
        return 0.0
    price = type_.price(odcr.platform, odcr.tenancy) if type_ else None
    return None if price is None else odcr.idle * price


def cost_of_all(odcr: Odcr, type_: InstanceType | None) -> float | None:
    """On-Demand price of all slots in US dollars an hour, used ones included; None while it is not known.

    A capacity block is paid in advance and costs nothing by the hour.
    """
    if odcr.prepaid:
        return 0.0
    price = type_.price(odcr.platform, odcr.tenancy) if type_ else None
    return None if price is None else odcr.total * price


def idle_since(odcr: Odcr, *, before: int, since: datetime | None, now: datetime) -> datetime | None:
    """The time since which as many slots as now are idle, or None. At the last pass `before` slots were
    idle, since `since`.
    """
    if not odcr.idle:
        return None
    return since if since is not None and before >= odcr.idle else now.replace(microsecond=0)
