"""The Capacity Reservation as EC2 keeps it.

Invariant: a reservation's usage is the number of instances in it plus the slots of ended instances
that are not free yet; it is never stored as a number.

Sources: EC2 API reference, CapacityReservation and CreateCapacityReservation; EC2 User Guide, "Reserve
compute capacity with EC2 On-Demand Capacity Reservations" and "Capacity Blocks for ML".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from local.aws.ec2.launch_needs import LaunchNeeds

ReservationType = Literal["default", "capacity-block"]

PLATFORMS = frozenset(
    {
        "Linux/UNIX",
        "Red Hat Enterprise Linux",
        "SUSE Linux",
        "Windows",
        "Windows with SQL Server",
        "Windows with SQL Server Enterprise",
        "Windows with SQL Server Standard",
        "Windows with SQL Server Web",
        "Linux with SQL Server Standard",
        "Linux with SQL Server Web",
        "Linux with SQL Server Enterprise",
        "RHEL with SQL Server Standard",
        "RHEL with SQL Server Enterprise",
        "RHEL with SQL Server Web",
        "RHEL with HA",
        "RHEL with HA and SQL Server Standard",
        "RHEL with HA and SQL Server Enterprise",
        "Ubuntu Pro",
    }
)
STATES = frozenset(
    {
        "active",
        "expired",
        "cancelled",
        "pending",
        "failed",
        "scheduled",
        "payment-pending",
        "payment-failed",
        "assessing",
        "delayed",
        "unsupported",
        "cancelling",
        "unavailable",
    }
)
# A reservation just created may take launches while describe still says pending (up to five minutes).
USABLE = frozenset({"active", "pending"})
DRAIN = timedelta(minutes=30)  # of a Capacity Block, before its end
ULTRASERVER_DRAIN = timedelta(minutes=60)
ENDED = frozenset({"expired", "cancelled", "failed", "payment-failed", "unsupported"})


@dataclass(eq=False)
class OccupiedSlots:
    """The instances in a reservation, or in a pool of one capacity type, instance type and zone."""

    occupants: dict[str, Occupant] = field(default_factory=dict)
    lingering: int = 0  # slots of ended instances that EC2 has not freed yet

    @property
    def used(self) -> int:
        return len(self.occupants) + self.lingering


class PoolKey(NamedTuple):
    """Capacity outside reservations; a zone's name contains its Region."""

    capacity_type: str
    instance_type: str
    zone: str


class Glimpse(NamedTuple):
    """An instance as DescribeInstances shows it at one moment."""

    at: datetime
    state: str
    code: int
    reservation_id: str | None


@dataclass(eq=False)
class Occupant:
    """A moto instance, its needs, and the place where it runs (none while it is stopped)."""

    instance: Any
    needs: LaunchNeeds
    where: Ec2Reservation | PoolKey | None = None
    history: list[Glimpse] = field(default_factory=list)


class ReservationView(NamedTuple):
    """A reservation as describe shows it at one moment; describe lag shows an older view."""

    at: datetime
    state: str
    total: int
    available: int
    used: int
    match_criteria: str
    end_date: datetime | None
    end_date_type: str
    lent: int


@dataclass(eq=False, kw_only=True)
class Ec2Reservation:
    id: str
    owner_id: str
    region: str
    partition: str
    instance_type: str
    platform: str
    zone: str
    zone_id: str
    total: int
    created: datetime
    tenancy: str = "default"
    match_criteria: str = "open"
    end_date: datetime | None = None
    end_date_type: str = "unlimited"
    start_date: datetime | None = None
    ebs_optimized: bool = False
    ephemeral_storage: bool = False
    placement_group_arn: str | None = None
    outpost_arn: str | None = None
    reservation_type: ReservationType = "default"
    interruptible: bool = False
    source_id: str | None = None
    lent: int = 0  # instances in the interruptible reservation that was allocated from this one
    reclaiming: bool = False  # an interruptible reservation, while its owner takes capacity back
    commitment: timedelta | None = None
    committed: int = 0  # instances that the commitment is for
    delivered: datetime | None = None
    original_start: datetime | None = None
    adjusted: bool = False
    delivery_preference: str | None = None
    capacity_block_id: str | None = None
    ultraserver_type: str | None = None
    launchable: bool = True  # of an UltraServer, once it is active: EC2's LaunchStatus
    fleet_id: str | None = None
    billing_owner: str | None = None
    state: str = "active"
    shared_with: frozenset[str] = frozenset()
    shared_by_ram: frozenset[str] = frozenset()  # of those, the ones that a resource share named
    slots: OccupiedSlots = field(default_factory=OccupiedSlots)
    history: list[ReservationView] = field(default_factory=list)

    @property
    def arn(self) -> str:
        return f"arn:{self.partition}:ec2:{self.region}:{self.owner_id}:capacity-reservation/{self.id}"

    @property
    def usable(self) -> bool:
        return self.state in USABLE

    @property
    def used(self) -> int:
        return self.slots.used

    @property
    def available(self) -> int:
        return max(0, self.total - self.used) if self.usable else 0

    @property
    def market(self) -> str:
        """The market type that a launch has to name to run in it."""
        if self.reservation_type == "capacity-block":
            return "capacity-block"
        return "interruptible-capacity-reservation" if self.interruptible else "on-demand"

    @property
    def drains_at(self) -> datetime | None:
        """The time at which EC2 begins to terminate the instances of a Capacity Block."""
        if self.reservation_type != "capacity-block" or self.end_date is None:
            return None
        return self.end_date - (ULTRASERVER_DRAIN if self.ultraserver_type else DRAIN)

    def is_draining(self, now: datetime) -> bool:
        return self.drains_at is not None and now >= self.drains_at

    @property
    def committed_until(self) -> datetime | None:
        starts = self.delivered or self.start_date
        return starts + self.commitment if self.commitment and starts else None

    def visible_to(self, account_id: str) -> bool:
        return account_id == self.owner_id or account_id in self.shared_with

    def view(self, at: datetime) -> ReservationView:
        return ReservationView(
            at=at,
            state=self.state,
            total=self.total,
            available=self.available,
            used=self.used,
            match_criteria=self.match_criteria,
            end_date=self.end_date,
            end_date_type=self.end_date_type,
            lent=self.lent,
        )

    def seen(self, at: datetime) -> ReservationView:
        """The newest view that is not younger than `at`; a reservation younger than that shows as pending."""
        for view in reversed(self.history):
            if view.at <= at:
                return view
        first = self.history[0]
        return (
            first._replace(state="pending", used=0, available=first.total)
            if first.state == "active"
            else first
        )


def adjustment(reservation: Ec2Reservation) -> dict[str, Any]:
    """How the last change of date went; nothing where there was none."""
    if not reservation.adjusted or reservation.commitment is None:
        return {}
    details = {
        "StartDate": reservation.start_date,
        "EndDate": reservation.end_date,
        "EndDateType": reservation.end_date_type,
        "CommitmentEndDate": reservation.committed_until,
        "CommitmentDuration": int(reservation.commitment.total_seconds()),
    }
    return {
        "AdjustmentStatus": "applied",
        "AdjustmentDetails": {name: value for name, value in details.items() if value is not None},
    }


def describe(
    reservation: Ec2Reservation, view: ReservationView, tags: list[dict[str, str]]
) -> dict[str, Any]:
    """The API's shape of a reservation."""
    shown: dict[str, Any] = {
        "CapacityReservationId": reservation.id,
        "CapacityReservationArn": reservation.arn,
        "OwnerId": reservation.owner_id,
        "InstanceType": reservation.instance_type,
        "InstancePlatform": reservation.platform,
        "AvailabilityZone": reservation.zone,
        "AvailabilityZoneId": reservation.zone_id,
        "Tenancy": reservation.tenancy,
        "TotalInstanceCount": view.total,
        "AvailableInstanceCount": view.available,
        "State": view.state,
        "StartDate": reservation.start_date,
        "CreateDate": reservation.created,
        "EndDate": view.end_date,
        "EndDateType": view.end_date_type,
        "InstanceMatchCriteria": view.match_criteria,
        "EbsOptimized": reservation.ebs_optimized,
        "EphemeralStorage": reservation.ephemeral_storage,
        "PlacementGroupArn": reservation.placement_group_arn,
        "OutpostArn": reservation.outpost_arn,
        "ReservationType": reservation.reservation_type,
        "CapacityBlockId": reservation.capacity_block_id,
        "DeliveryPreference": reservation.delivery_preference,
        "CapacityReservationFleetId": reservation.fleet_id,
        "UnusedReservationBillingOwnerId": reservation.billing_owner,
        "OriginalStartDate": reservation.original_start,
        **adjustment(reservation),
        "Interruptible": True if reservation.interruptible else None,
        "Tags": tags,
        "CapacityAllocations": [{"AllocationType": "used", "Count": view.used}] if view.used else [],
    }
    if reservation.commitment:
        shown["CommitmentInfo"] = {
            "CommittedInstanceCount": reservation.committed,
            "CommitmentEndDate": reservation.committed_until,
            "CommitmentDuration": int(reservation.commitment.total_seconds()),
        }
    if reservation.ultraserver_type:
        ready = reservation.launchable and view.state == "active"
        shown["LaunchStatus"] = "launchable" if ready else "unlaunchable"
    if reservation.source_id:
        shown["InterruptionInfo"] = {
            "SourceCapacityReservationId": reservation.source_id,
            "InterruptionType": "adhoc",
        }
    return {key: value for key, value in shown.items() if value is not None}
