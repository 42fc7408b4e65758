"""Records that EC2's operations keep in the shared world, beside the ledger.

They are apart from the operations, which read the world, so that the world can name their types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from local.aws.ec2 import zones
from local.aws.ec2.reservations import Ec2Reservation, Occupant

Kind = Literal["cancellation", "date-change"]


@dataclass(eq=False, kw_only=True)
class BillingRequest:
    reservation: Ec2Reservation
    consumer: str
    status: str
    updated: datetime


@dataclass(eq=False, kw_only=True)
class InterruptibleAllocation:
    source: Ec2Reservation
    reservation: Ec2Reservation  # the interruptible one
    target: int
    at_zero: str = "default"
    status: str = "active"
    reclaimed: list[Occupant] = field(default_factory=list)
    reclaim_count: int = 0  # of the reclamation that is under way


@dataclass(kw_only=True)
class ReservationQuote:
    id: str
    kind: Kind
    reservation: Ec2Reservation
    created: datetime
    expires: datetime
    state_then: str
    start_then: datetime | None
    new_start: datetime | None = None
    used: bool = False

    def state(self, now: datetime) -> str:
        return "expired" if self.used or now >= self.expires else "active"


@dataclass(eq=False, kw_only=True)
class FleetPart:
    """One instance type of a fleet."""

    spec: Mapping[str, Any]
    member: Ec2Reservation | None = None

    @property
    def weight(self) -> float:
        return float(self.spec.get("Weight") or 1)

    @property
    def fulfilled(self) -> float:
        return self.member.total * self.weight if self.member is not None and self.member.usable else 0.0


@dataclass(eq=False, kw_only=True)
class ReservationFleet:
    id: str
    arn: str
    zone: str
    target: float
    created: datetime
    end: datetime | None
    tags: Mapping[str, str]
    parts: list[FleetPart]
    backend: zones.HasZones
    state: str = "submitted"

    @property
    def fulfilled(self) -> float:
        return sum(part.fulfilled for part in self.parts)
