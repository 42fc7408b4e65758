"""EC2's reservations and groups as every decision counts their slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from providers.model import Odcr, ReservationGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """EC2's reservations and groups as last described, less the launches since.

    `debits` are launches into a reservation that the description does not show yet, by reservation id;
    `credits` are instances that have ended in one since. `occupied`: the instances of the broker's claims
    that stay: EC2's count may lack the newest, and go back. `left`: slots that are left to another launcher,
    which replaces its node. `joining`: slots in which EC2 is to count an instance of the broker that runs
    outside. `kept`: the reservation of the slot that is kept for each successor (by the uid of its claim).
    `odds`: the ranks of pools (see `forecast.odds`).
    """

    odcrs: Mapping[str, Odcr] = field(default_factory=dict)
    groups: Mapping[str, ReservationGroup] = field(default_factory=dict)
    debits: Mapping[str, int] = field(default_factory=dict)
    credits: Mapping[str, int] = field(default_factory=dict)
    occupied: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)
    joining: Mapping[str, int] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    odds: Mapping[str, int] = field(default_factory=dict)
    described: datetime | None = None

    def free(self, odcr_id: str) -> int:
        """The slots that may be planned: the unused ones that are promised to no instance."""
        return max(0, self.unused(odcr_id) - self.promised(odcr_id))

    def promised(self, odcr_id: str) -> int:
        """The slots that are left to a certain instance."""
        kept = sum(slot == odcr_id for slot in self.kept.values())
        return self.left.get(odcr_id, 0) + self.joining.get(odcr_id, 0) + kept

    @property
    def left_ids(self) -> frozenset[str]:
        """The reservations with slots that are left to launches to come."""
        return frozenset((*(odcr_id for odcr_id, count in self.left.items() if count), *self.kept.values()))

    def unused(self, odcr_id: str) -> int:
        """EC2's available count plus credits, less debits; no more than the instances of claims leave."""
        odcr = self.odcrs.get(odcr_id)
        if odcr is None or odcr.unlaunchable:
            return 0
        # The description may already include the freed slots.
        room = min(odcr.total, odcr.available + self.credits.get(odcr_id, 0))
        room -= self.debits.get(odcr_id, 0)
        return max(0, min(room, odcr.total - self.occupied.get(odcr_id, 0)))

    def taken(self, slots: Mapping[str, int]) -> Inventory:
        """The inventory in which launches to come take these slots, by reservation id."""
        if not slots:
            return self
        more = Counter(slots)
        return replace(self, debits=Counter(self.debits) + more, occupied=Counter(self.occupied) + more)

    def returned(self, slots: Mapping[str, int]) -> Inventory:
        """The inventory with slots that were `taken` free again."""
        less = Counter(slots)
        return replace(self, debits=Counter(self.debits) - less, occupied=Counter(self.occupied) - less)
