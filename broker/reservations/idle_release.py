"""Releases slots that were unused for long, if the settings enable it.

Invariant: a slot is idle from the time when this process first saw it unused, if it never saw it used since.
A new process begins to count anew, so no slot is released too early. Releases are recorded in the ledger. The
next plan then wants fewer instances, and gives the surplus back, never below the running ones. A release ends
when the spec changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from broker.capacity.model import Inventory
from broker.reservations.fulfilment import unused
from broker.reservations.ownership import made_here
from providers.model import Odcr


class IdleTracker:
    """Tracks unused slots in one process. A `ttl` of zero disables releases."""

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
            free = unused(odcr, inventory) if made_here(odcr, self._cluster) and odcr.active else 0
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
