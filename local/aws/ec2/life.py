"""The effects of time on a reservation: it starts, warns, ends its instances, ends.

Invariant: each step reads the reservation as it is at the step's time, so steps are only ever added. An
end date that was moved has no effect at its old time.

A reservation that ends leaves its instances running, outside it. A Capacity Block does not: EC2 terminates
its instances from 30 minutes before its end (60 for UltraServers) and announces it 10 minutes earlier (EC2
User Guide, "Capacity Blocks for ML", "Monitor Capacity Blocks using EventBridge"). The time of each
instance's warning is not documented: here with the block's own.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from local.aws.ec2 import events
from local.aws.ec2.reservations import Ec2Reservation
from local.aws.ec2.world import AwsWorld

NOTICE = timedelta(minutes=10)  # before the drain
CAN_EXPIRE = frozenset({"active", "pending", "scheduled", "delayed"})


def activate_at(world: AwsWorld, reservation: Ec2Reservation, at: datetime) -> None:
    waiting = reservation.state

    def activate() -> None:
        if reservation.state == waiting:
            activate_now(world, reservation)

    world.ledger.schedule(at, activate)


def activate_now(world: AwsWorld, reservation: Ec2Reservation) -> None:
    world.ledger.change(reservation, state="active")
    if reservation.reservation_type == "capacity-block":
        events.block_delivered(world.notices, reservation)


def expire_at(world: AwsWorld, reservation: Ec2Reservation) -> None:
    """Schedules the end of a reservation that has an end date, and the steps before it."""
    end, drain, ledger = reservation.end_date, reservation.drains_at, world.ledger
    if end is None:
        return

    def expire() -> None:
        if reservation.end_date == end and reservation.state in CAN_EXPIRE:
            if drain is not None:
                terminate(reservation, len(reservation.slots.occupants))
            ledger.change(reservation, state="expired")
            if reservation.commitment:
                events.reservation_state(world.notices, reservation)

    if drain is not None:
        _drain_at(world, reservation, end, drain)
    ledger.schedule(end, expire)


def _drain_at(world: AwsWorld, block: Ec2Reservation, end: datetime, drain: datetime) -> None:
    def warn() -> None:
        if block.end_date == end and block.usable:
            events.block_expiring(world.notices, block)
            for occupant in block.slots.occupants.values():
                events.interruption(world.notices, occupant, drain)

    def end_instances() -> None:
        if block.end_date == end and block.usable:
            terminate(block, len(block.slots.occupants))

    world.ledger.schedule(drain - NOTICE, warn)
    world.ledger.schedule(drain, end_instances)


def terminate(reservation: Ec2Reservation, count: int) -> None:
    """EC2's own termination, of the newest instances first; protection against it is the owner's alone."""
    if count <= 0:
        return
    for occupant in list(reservation.slots.occupants.values())[-count:]:
        occupant.instance.disable_api_termination = False
        occupant.instance.ec2_backend.terminate_instances([occupant.instance.id])
