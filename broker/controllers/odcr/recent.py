"""Changes of this process to ODCRs that EC2 may not show yet.

Invariant: a description taken soon after a change is read with the change in it. So nothing is bought again
or changed back because EC2 shows it late. After LATEST_VISIBLE EC2's description holds alone, except for a
new ODCR that EC2 never showed: it is paid for, so it counts for UNSHOWN. A new process reads the ledger
instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from broker.capacity.model import Inventory
from broker.reservations.desired import LATEST_VISIBLE
from broker.reservations.purchases import UNSHOWN
from providers.model import UNCHANGED, Odcr, Unchanged

CANCELLED = "cancelled"


class RecentChanges:
    """Recent changes of one process, in one thread."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Odcr, datetime]] = {}
        self._shown: set[str] = set()  # of those
        self._changed: dict[str, tuple[int, datetime | Unchanged | None, datetime]] = {}

    def made(self, odcr: Odcr, at: datetime) -> None:
        self._made[odcr.id] = (odcr, at)

    def changed(
        self, id_: str, count: int, at: datetime, *, end: datetime | Unchanged | None = UNCHANGED
    ) -> None:
        """Records the new count of an ODCR, 0 if it was cancelled."""
        self._changed[id_] = (count, end, at)

    def seen(self, inventory: Inventory) -> Inventory:
        """The inventory with recent changes that it may not show; forgets those that it must show."""
        if inventory.described is None:
            return inventory
        latest = inventory.described - LATEST_VISIBLE
        self._shown |= self._made.keys() & inventory.odcrs.keys()
        unshown = inventory.described - UNSHOWN
        self._made = {
            id_: made
            for id_, made in self._made.items()
            if made[1] > (latest if id_ in self._shown else unshown)
        }
        self._shown &= self._made.keys()
        self._changed = {id_: change for id_, change in self._changed.items() if change[2] > latest}
        odcrs: dict[str, Odcr] = {id_: made for id_, (made, _) in self._made.items()}
        odcrs |= inventory.odcrs
        for id_, (count, end, _) in self._changed.items():
            if id_ in odcrs:
                odcrs[id_] = _as_changed(odcrs[id_], count, end)
        return replace(inventory, odcrs=odcrs)


def _as_changed(odcr: Odcr, count: int, end: datetime | Unchanged | None) -> Odcr:
    if count == 0:
        return replace(odcr, state=CANCELLED)
    if not isinstance(end, Unchanged):
        odcr = replace(odcr, end=end)
    return replace(odcr, total=count, available=max(0, odcr.available + count - odcr.total))


def dated(inventory: Inventory, odcrs: Mapping[str, Odcr], described: datetime) -> Inventory:
    """The inventory with a newer description."""
    return replace(inventory, odcrs=odcrs, described=described)
