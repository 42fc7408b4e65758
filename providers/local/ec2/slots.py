"""Places where instances run: a reservation's slots, or a pool of one capacity type, instance type and
zone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from providers.local.ec2.matching import Want
    from providers.local.ec2.reservations import CapacityReservation


@dataclass(eq=False)
class Slots:
    occupants: dict[str, Occupant] = field(default_factory=dict)
    lingering: int = 0  # slots whose instance has ended and that EC2 has not freed yet

    @property
    def used(self) -> int:
        return len(self.occupants) + self.lingering


class PoolKey(NamedTuple):
    """Capacity outside reservations; a zone's name says its Region."""

    capacity_type: str
    instance_type: str
    zone: str


class Glimpse(NamedTuple):
    """What DescribeInstances shows of an instance at one moment."""

    at: datetime
    state: str
    code: int
    reservation_id: str | None


@dataclass(eq=False)
class Occupant:
    """A moto instance, what it asked for, and where it runs (nowhere while it is stopped)."""

    instance: Any
    want: Want
    where: CapacityReservation | PoolKey | None = None
    history: list[Glimpse] = field(default_factory=list)
