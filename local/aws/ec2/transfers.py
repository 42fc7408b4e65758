"""Splitting a reservation in two and moving capacity from one to another.

Only capacity that nothing runs in is moved. Source: EC2 API reference, CreateCapacityReservationBySplitting
and MoveCapacityReservationInstances: both reservations active and the caller's own; for a move equal in
instance type, platform, zone, tenancy, placement group and kind of end. A source that gave everything away
is cancelled.
"""

from __future__ import annotations

from dataclasses import replace

from moto.ec2.utils import random_id

from local.aws.ec2 import checks, errors, life
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.ledger import CapacityLedger
from local.aws.ec2.reservations import Ec2Reservation, OccupiedSlots
from local.aws.ec2.world import AwsWorld

ALIKE = (
    "instance_type",
    "platform",
    "zone",
    "tenancy",
    "placement_group_arn",
    "end_date_type",
    "end_date",
    "reservation_type",
    "interruptible",
)


def split(world: AwsWorld, source: Ec2Reservation, account_id: str, count: int) -> Ec2Reservation:
    ledger = world.ledger
    _require_active(ledger, source, account_id)
    _require_unused(source, count)
    if count >= source.total:
        raise errors.invalid("InstanceCount", count, f"{source.id} has {source.total}; at least one stays.")
    target = replace(
        source,
        id=random_id(prefix="cr"),
        total=count,
        created=ledger.now(),
        start_date=ledger.now(),
        slots=OccupiedSlots(),
        history=[],
    )
    # the source shrinks first, so that no instance outside moves into a slot that is counted twice
    ledger.change(source, total=source.total - count)
    ledger.add(target)
    life.expire_at(world, target)
    return target


def move(
    world: AwsWorld,
    source: Ec2Reservation,
    destination: Ec2Reservation,
    account_id: str,
    count: int,
) -> None:
    ledger = world.ledger
    if source is destination:
        raise errors.invalid("DestinationCapacityReservationId", destination.id, "It is the source as well.")
    for reservation in (source, destination):
        _require_active(ledger, reservation, account_id)
    differing = [name for name in ALIKE if getattr(source, name) != getattr(destination, name)]
    if differing:
        raise errors.combination(f"{source.id} and {destination.id} differ in {', '.join(differing)}")
    _require_unused(source, count)
    if count == source.total:
        ledger.change(source, state="cancelled")
    else:
        ledger.change(source, total=source.total - count)
    ledger.change(destination, total=destination.total + count)


def _require_active(ledger: CapacityLedger, reservation: Ec2Reservation, account_id: str) -> None:
    checks.require_owner(ledger, reservation, account_id)
    checks.require_mutable(ledger, reservation)
    if reservation.state != "active":
        raise Ec2Error(
            ledger.codes["modify-wrong-state"], f"{reservation.id} is {reservation.state}, not active"
        )


def _require_unused(source: Ec2Reservation, count: int) -> None:
    if not 1 <= count <= source.available:
        raise errors.invalid(
            "InstanceCount", count, f"{source.id} has {source.available} instances available to give away."
        )
