"""Cost and age of idle slots, and those that are idle for so long that they are released.

Invariant: an idle time is never longer than observed. EC2 keeps no history of free slots, so "since" begins
when that many slots are first seen free. If more become free it begins anew for all; if some are taken it
stays.

A free slot costs as much as an On-Demand Instance of its type, platform and tenancy (EC2 User Guide,
"Capacity Reservation pricing and billing"). It costs this account nothing if

- the reservation is not active,
- it is a capacity block, which is paid in advance ("Capacity Blocks pricing and billing"), or
- another account is billed for unused slots ("Billing assignment for shared Capacity Reservations").
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from broker.capacity.inventory import Inventory
from broker.reservations.ownership import made_here
from providers.model import InstanceType, Odcr
from providers.prices import slot_price


def pays_idle(odcr: Odcr, *, account: str) -> bool:
    """Whether a free slot costs `account` by the hour.

    An empty `account` is the owner's: the caller could not read its own.
    """
    owner = odcr.owner_id or account
    return not odcr.prepaid and (odcr.billing_owner_id or owner) == (account or owner)


def idle_cost(odcr: Odcr, type_: InstanceType | None, *, account: str) -> float | None:
    """US dollars an hour that free slots cost `account`; None while the price is not known."""
    if not pays_idle(odcr, account=account):
        return 0.0
    price = slot_price({odcr.instance_type: type_} if type_ else {}, odcr)
    return None if price is None else odcr.idle * price


def idle_since(odcr: Odcr, *, before: int, since: datetime | None, now: datetime) -> datetime | None:
    """The time since which as many slots as now are idle, or None. At the last pass `before` slots were
    idle, since `since`.
    """
    if not odcr.idle:
        return None
    return since if since is not None and before >= odcr.idle else now.replace(microsecond=0)


class IdleTracker:
    """Counts slots that were unused for long, which the ledger then releases. A `ttl` of zero disables it.

    Invariant: a slot is idle from the time when this process first saw it unused, if it never saw it used
    since. A new process begins to count anew, so no slot is released too early.
    """

    def __init__(self, *, ttl: timedelta, cluster: str) -> None:
        self._ttl = ttl
        self._cluster = cluster
        self._since: dict[str, tuple[int, datetime]] = {}  # ODCR -> unused slots all the time, since when

    def observe(self, inventory: Inventory, now: datetime) -> None:
        """Records one description of all EC2 reservations."""
        if not self._ttl:
            return
        since_by_odcr: dict[str, tuple[int, datetime]] = {}
        for odcr in inventory.odcrs.values():
            free = inventory.free(odcr.id) if made_here(odcr, self._cluster) and odcr.active else 0
            if free:
                count, since = self._since.get(odcr.id, (free, now))
                since_by_odcr[odcr.id] = (min(count, free), since)
        self._since = since_by_odcr

    def expired(self, odcrs: Iterable[Odcr], now: datetime) -> int:
        """The number of slots of these that have been idle long enough to be released."""
        idle = [self._since[odcr.id] for odcr in odcrs if odcr.id in self._since]
        return sum(count for count, since in idle if since + self._ttl <= now) if self._ttl else 0

    def released(self, odcrs: Iterable[Odcr]) -> None:
        """Starts counting again after a release was recorded."""
        for odcr in odcrs:
            self._since.pop(odcr.id, None)
