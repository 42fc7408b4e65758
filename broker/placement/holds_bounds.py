"""The operator's bounds on room that is kept while no pod runs in it.

Kept room is counted by no ResourceQuota. Without bounds, a namespace without a running pod could therefore
hold a node for good: the longest time that a reservation can name is 292 years.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from broker.apis.godel import LONGEST_TTL
from broker.apis.units import add, written
from broker.placement.holds import Amounts
from broker.placement.quantities import PODS


class NamespaceRoom(NamedTuple):
    """Room of a deleted pod that a namespace keeps."""

    id: str
    amount: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomBounds:
    """`default`: seconds of a Gödel reservation that names none. `longest`: seconds of any; 0 sets no bound.

    `share`: percent of a namespace's ResourceQuotas that its kept room may take.
    """

    default: int = 60
    longest: int = 24 * 3600
    share: int = 50

    def seconds(self, requested: int) -> int:
        """The time of a Gödel reservation. A number that is not positive counts as none."""
        return min(requested if requested > 0 else self.default, self.longest or LONGEST_TTL, LONGEST_TTL)

    def end(self, created: datetime | None, requested: datetime | None) -> datetime | None:
        """The end of a reservation that requests another end, or none."""
        if created is None or not self.longest:
            return requested
        latest = created + timedelta(seconds=min(self.longest, LONGEST_TTL))
        return latest if requested is None else min(requested, latest)


def within(rooms: Iterable[NamespaceRoom], limits: Amounts) -> Mapping[str, str]:
    """The rooms that exceed the limits, by id, with the reason. Rooms before them in the order come first."""
    used: dict[str, int] = {}
    refused: dict[str, str] = {}
    for room in rooms:
        amount = {**room.amount, PODS: 1}
        over = [name for name in sorted(limits) if used.get(name, 0) + amount.get(name, 0) > limits[name]]
        if over:
            name = over[0]
            refused[room.id] = (
                f"{written(name, amount.get(name, 0))} of {name} is requested, the namespace may keep "
                f"{written(name, limits[name])} and keeps {written(name, used.get(name, 0))}"
            )
            continue
        add(used, amount)
    return refused
