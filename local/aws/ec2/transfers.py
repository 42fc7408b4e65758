"""Splitting a reservation in two and moving capacity from one to another.

Free slots are taken first, then running instances that were launched `open`, between open reservations that
are shared with the same accounts. Both reservations are active and the caller's own, under no commitment; for
a move they are equal in instance type, platform, zone, tenancy, placement group and kind of end. A source
that gave everything away is cancelled. Sources: EC2 User Guide, "Move capacity between Capacity
Reservations", "Split off capacity from an existing Capacity Reservation"; EC2 API reference,
CreateCapacityReservationBySplitting and MoveCapacityReservationInstances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from moto.ec2.utils import random_id

from local.aws.ec2 import checks, errors, future, life
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.ledger import CapacityLedger
from local.aws.ec2.reservations import Ec2Reservation, Occupant, OccupiedSlots
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
    moved = _moved_instances(source, source, count)
    if count >= source.total:
        raise errors.invalid("InstanceCount", count, f"{source.id} has {source.total}; at least one stays.")
    target = replace(
        source,
        id=random_id(prefix="cr"),
        total=0,
        created=ledger.now(),
        start_date=ledger.now(),
        slots=OccupiedSlots(),
        history=[],
    )
    ledger.add(target)
    _transfer(ledger, source, target, count, moved)
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
    _transfer(ledger, source, destination, count, _moved_instances(source, destination, count))


def _transfer(
    ledger: CapacityLedger,
    source: Ec2Reservation,
    destination: Ec2Reservation,
    count: int,
    moved: Sequence[Occupant],
) -> None:
    for occupant in moved:
        ledger.move(occupant, destination)
    # The source shrinks first, so that no instance outside moves into a slot that is counted twice.
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
    if future.is_committed(ledger, reservation):
        raise Ec2Error(
            ledger.codes["within-commitment"], f"{reservation.id} is committed; its capacity can't be moved"
        )


def _moved_instances(source: Ec2Reservation, destination: Ec2Reservation, count: int) -> list[Occupant]:
    """The running instances that go along, beyond the free slots. EC2 chooses at random: here the oldest."""
    used = max(0, count - source.available)
    eligible = [
        occupant
        for occupant in source.slots.occupants.values()
        if _launched_open(occupant) and _alike_open(source, destination)
    ]
    if count < 1 or used > len(eligible):
        raise errors.invalid(
            "InstanceCount",
            count,
            f"{source.id} has {source.available} instances available to give away, and {len(eligible)} "
            "running ones that may be moved.",
        )
    return eligible[:used]


def _launched_open(occupant: Occupant) -> bool:
    target = occupant.needs.target
    return not target.reservation_id and not target.group and target.preference in (None, "open")


def _alike_open(source: Ec2Reservation, destination: Ec2Reservation) -> bool:
    return (
        source.match_criteria == destination.match_criteria == "open"
        and source.shared_with == destination.shared_with
    )
