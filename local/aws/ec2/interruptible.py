"""Interruptible reservations: unused capacity of a source reservation, allocated and reclaimed.

Invariant: an instance of the source's capacity is in the source or in its interruptible reservation, never in
both. While the allocation is `updating`, slots are on their way between the two.

A reclamation takes free slots first. Then running instances are warned and terminated two minutes later,
and each slot returns to the source when EC2 has freed it. Meanwhile the reservation takes no launch (EC2
answers InvalidCapacityReservationState.Unavailable). At zero it is cancelled, or kept if its allocation
retains it.

Sources: EC2 User Guide, "Interruptible Capacity Reservations for capacity owners"; API reference,
CreateInterruptibleCapacityReservationAllocation and UpdateInterruptibleCapacityReservationAllocation. Which
of the running instances go first is not documented: here the newest.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from moto.ec2.utils import random_id

from local.aws.ec2 import checks, errors, events
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.records import InterruptibleAllocation
from local.aws.ec2.reservations import Ec2Reservation
from local.aws.ec2.world import AwsWorld

NOTICE = timedelta(minutes=2)
MOST_AT_ONCE = 1000
ADHOC = "adhoc"
OVER = ("canceled", "failed")


def of(world: AwsWorld, source: Ec2Reservation) -> InterruptibleAllocation | None:
    """The one allocation that a source can have at a time."""
    allocation = world.allocations.get(source.id)
    return allocation if allocation is not None and allocation.status not in OVER else None


def allocate(
    world: AwsWorld, source: Ec2Reservation, account_id: str, params: Mapping[str, Any]
) -> InterruptibleAllocation:
    ledger = world.ledger
    checks.require_owner(ledger, source, account_id)
    checks.require_mutable(ledger, source)
    if source.state != "active" or source.end_date is not None:
        raise Ec2Error(
            ledger.codes["allocate-wrong-state"],
            f"{source.id} is {source.state}{' and has an end date' if source.end_date else ''}; capacity is "
            "allocated from an active reservation without an end date",
        )
    if of(world, source) is not None:
        raise Ec2Error(
            ledger.codes["allocation-exists"],
            f"{source.id} has an interruptible allocation already; update that one",
        )
    count = checks.count_of(params.get("InstanceCount"), lowest=1)
    _require_free(source, count)
    reservation = Ec2Reservation(
        id=random_id(prefix="cr"),
        owner_id=source.owner_id,
        region=source.region,
        partition=source.partition,
        instance_type=source.instance_type,
        platform=source.platform,
        zone=source.zone,
        zone_id=source.zone_id,
        total=count,
        created=ledger.now(),
        start_date=ledger.now(),
        tenancy=source.tenancy,
        match_criteria="targeted",
        ebs_optimized=source.ebs_optimized,
        placement_group_arn=source.placement_group_arn,
        interruptible=True,
        source_id=source.id,
    )
    allocation = InterruptibleAllocation(
        source=source,
        reservation=reservation,
        target=count,
        at_zero=params.get("ZeroSizePreference") or "default",
    )
    world.allocations[source.id] = allocation
    # the source shrinks first, so that no instance outside moves into a slot that is counted twice
    ledger.change(source, total=source.total - count, lent=count)
    ledger.add(reservation)
    return allocation


def update(
    world: AwsWorld, source: Ec2Reservation, account_id: str, params: Mapping[str, Any]
) -> InterruptibleAllocation:
    ledger = world.ledger
    checks.require_owner(ledger, source, account_id)
    allocation = of(world, source)
    if allocation is None:
        raise Ec2Error(
            ledger.codes["allocation-absent"], f"{source.id} has no interruptible allocation to update"
        )
    if allocation.status != "active":
        raise Ec2Error(
            ledger.codes["modify-wrong-state"], f"The allocation of {source.id} is {allocation.status}"
        )
    if params.get("ZeroSizePreference"):
        allocation.at_zero = params["ZeroSizePreference"]
    if params.get("TargetInstanceCount") is None:
        if not params.get("ZeroSizePreference"):
            raise errors.missing("TargetInstanceCount")
        return allocation
    target = int(params["TargetInstanceCount"])
    growth = target - allocation.reservation.total
    if target < 0 or abs(growth) > MOST_AT_ONCE:
        raise errors.invalid(
            "TargetInstanceCount", target, f"It may change by at most {MOST_AT_ONCE} in one request."
        )
    allocation.target = target
    if growth > 0:
        _require_free(source, growth)
        ledger.change(source, total=source.total - growth, lent=source.lent + growth)
        ledger.change(allocation.reservation, total=allocation.reservation.total + growth)
    elif growth < 0 or target == 0:
        _reclaim(world, allocation)
    return allocation


def _require_free(source: Ec2Reservation, count: int) -> None:
    if count > source.available:
        raise errors.invalid(
            "InstanceCount", count, f"{source.id} has {source.available} unused instances to allocate."
        )


# ---- taking back


def _reclaim(world: AwsWorld, allocation: InterruptibleAllocation) -> None:
    reservation, ledger = allocation.reservation, world.ledger
    allocation.reclaim_count = reservation.total - allocation.target
    _return(world, allocation, min(reservation.available, allocation.reclaim_count))
    short = reservation.total - allocation.target
    if short <= 0:
        _finish(world, allocation)
        return
    allocation.status = "canceling" if _ends(allocation) else "updating"
    running = list(reservation.slots.occupants.values())
    allocation.reclaimed = running[len(running) - min(short, len(running)) :]
    reservation.reclaiming = True
    ends = ledger.now() + NOTICE
    for occupant in allocation.reclaimed:
        events.interruption(world.notices, occupant, ends)
    ledger.schedule(ends, lambda: _terminate(world, allocation))


def _terminate(world: AwsWorld, allocation: InterruptibleAllocation) -> None:
    for occupant in allocation.reclaimed:
        if occupant.where is allocation.reservation:
            occupant.instance.disable_api_termination = False
            occupant.instance.ec2_backend.terminate_instances([occupant.instance.id])
    allocation.reclaimed = []
    _take_freed(world, allocation)


def _take_freed(world: AwsWorld, allocation: InterruptibleAllocation) -> None:
    """Freed slots go back to the source; the rest follow when EC2 frees them."""
    reservation = allocation.reservation
    _return(world, allocation, min(reservation.available, reservation.total - allocation.target))
    if reservation.total > allocation.target:
        world.ledger.after(max(1.0, world.knobs.slot_release_s / 10), lambda: _take_freed(world, allocation))
    else:
        _finish(world, allocation)


def _return(world: AwsWorld, allocation: InterruptibleAllocation, count: int) -> None:
    if count > 0:
        world.ledger.change(allocation.reservation, total=allocation.reservation.total - count)
        source = allocation.source
        world.ledger.change(source, total=source.total + count, lent=source.lent - count)


def _ends(allocation: InterruptibleAllocation) -> bool:
    return allocation.target == 0 and allocation.at_zero != "retain"


def _finish(world: AwsWorld, allocation: InterruptibleAllocation) -> None:
    reservation, source = allocation.reservation, allocation.source
    reservation.reclaiming = False
    if _ends(allocation):
        world.ledger.change(reservation, state="cancelled")
        allocation.status = "canceled"
    else:
        world.ledger.note(reservation)
        allocation.status = "active"
    events.reclaimed(world.notices, source, count=allocation.reclaim_count, target=allocation.target)


# ---- as the API shows it


def describe(allocation: InterruptibleAllocation, *, lent: int) -> dict[str, Any]:
    """InterruptibleCapacityAllocation, which the source carries. `lent`: in the described view of it."""
    return {
        "InstanceCount": lent,
        "TargetInstanceCount": allocation.target,
        "Status": allocation.status,
        "InterruptibleCapacityReservationId": allocation.reservation.id,
        "InterruptionType": ADHOC,
        "ZeroSizePreference": allocation.at_zero,
    }
