"""Future-dated reservations: requested, assessed, scheduled, delivered (or delayed until possible).

    assessing -> scheduled -> active        assessing -> unsupported        scheduled -> delayed -> active

The control plane sets the duration and outcome of the assessment (`assessment`). The commitment begins with
the delivery. Until it is over, the reservation neither shrinks below the committed count nor ends.

Sources: EC2 API reference, CreateCapacityReservation and CapacityReservation (states); EC2 User Guide,
"Future-dated Capacity Reservations" (5 to 120 days ahead, 32 vCPUs, families). The API page names six
families, the guide eight: the guide's are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from local.aws.clock import aware
from local.aws.ec2 import errors, events
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.launch_needs import ON_DEMAND
from local.aws.ec2.ledger import CapacityLedger
from local.aws.ec2.reservations import Ec2Reservation
from local.aws.ec2.world import AwsWorld

AHEAD = (timedelta(days=5), timedelta(days=120))
LEAST_VCPUS = 32
FAMILIES = frozenset({"c", "g", "gr", "i", "im", "is", "m", "r", "t", "u", "x"})
LONGEST_COMMITMENT = 200_000_000
RETRY = timedelta(minutes=15)  # of a delivery that is delayed


def start_and_commitment(
    params: Mapping[str, Any], now: datetime, end: datetime | None
) -> tuple[datetime | None, timedelta | None]:
    """Start and commitment of a future-dated reservation; neither for one that starts at once."""
    if not params.get("StartDate"):
        for name in ("CommitmentDuration", "DeliveryPreference"):
            if params.get(name):
                raise errors.combination(f"{name} is for a future-dated Capacity Reservation: add StartDate")
        return None, None
    start = aware(params["StartDate"])
    if not AHEAD[0] <= start - now <= AHEAD[1]:
        raise errors.invalid("StartDate", start.isoformat(), "It has to be 5 to 120 days ahead.")
    if params.get("InstanceMatchCriteria") != "targeted":
        raise errors.combination("A future-dated Capacity Reservation needs InstanceMatchCriteria targeted")
    if params.get("DeliveryPreference") != "incremental":
        raise errors.combination("A future-dated Capacity Reservation needs DeliveryPreference incremental")
    for name in ("PlacementGroupArn", "OutpostArn"):
        if params.get(name):
            raise errors.combination(f"A future-dated Capacity Reservation can't have a {name}")
    commitment = _commitment(params)
    _require_size(params)
    if end is not None and end < start + commitment:
        raise errors.invalid("EndDate", end.isoformat(), "It is within the commitment duration.")
    return start, commitment


def _commitment(params: Mapping[str, Any]) -> timedelta:
    if params.get("CommitmentDuration") is None:
        raise errors.missing("CommitmentDuration")
    seconds = int(params["CommitmentDuration"])
    if not 1 <= seconds <= LONGEST_COMMITMENT:
        raise errors.invalid(
            "CommitmentDuration", seconds, f"Expecting a number from 1 to {LONGEST_COMMITMENT}."
        )
    return timedelta(seconds=seconds)


def _require_size(params: Mapping[str, Any]) -> None:
    instance_type, count = str(params["InstanceType"]), int(params["InstanceCount"])
    family = re.match("[a-z]+", instance_type)
    if family is None or family.group() not in FAMILIES:
        raise Ec2Error("Unsupported", f"{instance_type} can't be reserved for a future date")
    vcpus = INSTANCE_TYPES.get(instance_type, {}).get("VCpuInfo", {}).get("DefaultVCpus")
    if vcpus and vcpus * count < LEAST_VCPUS:
        raise errors.invalid(
            "InstanceCount",
            count,
            f"{count} {instance_type} are {vcpus * count} vCPUs; a future-dated Capacity Reservation has at "
            f"least {LEAST_VCPUS}.",
        )


def assess(world: AwsWorld, reservation: Ec2Reservation) -> None:
    """EC2 decides after a while, with the outcome that the control plane has set by then."""

    def decide() -> None:
        if reservation.state != "assessing":
            return
        _enter(world, reservation, world.knobs.assessment_outcome)
        if reservation.state == "scheduled":
            deliver_at(world, reservation)

    world.ledger.after(world.knobs.assessment_s, decide)


def deliver_at(world: AwsWorld, reservation: Ec2Reservation) -> None:
    start = reservation.start_date
    assert start is not None

    def deliver() -> None:
        if reservation.start_date == start and reservation.state in ("scheduled", "delayed"):
            _deliver(world, reservation, deliver)

    world.ledger.schedule(start, deliver)


def _deliver(world: AwsWorld, reservation: Ec2Reservation, deliver: Any) -> None:
    ledger = world.ledger
    free = ledger.free(ON_DEMAND, reservation.instance_type, reservation.zone)
    if free is None or free >= reservation.total:
        reservation.delivered = ledger.now()
        _enter(world, reservation, "active")
        return
    if reservation.state != "delayed":
        _enter(world, reservation, "delayed")
    ledger.schedule(ledger.now() + RETRY, deliver)


def _enter(world: AwsWorld, reservation: Ec2Reservation, state: str) -> None:
    world.ledger.change(reservation, state=state)
    events.reservation_state(world.notices, reservation)


def is_committed(ledger: CapacityLedger, reservation: Ec2Reservation) -> bool:
    """Whether EC2 agreed and the commitment has not ended; a delay waives it."""
    until = reservation.committed_until
    if until is None or reservation.state not in ("scheduled", "active"):
        return False
    return ledger.now() < until


def require_commitment(
    ledger: CapacityLedger, reservation: Ec2Reservation, *, total: int | None, end: datetime | None
) -> None:
    """Refuses changes that a commitment forbids."""
    until = reservation.committed_until
    if until is None or ledger.now() >= until:
        return
    if total is not None and total < reservation.committed:
        raise Ec2Error(
            ledger.codes["within-commitment"],
            f"{reservation.id} is committed to {reservation.committed} instances until {until.isoformat()}",
        )
    if end is not None and end < until:
        raise Ec2Error(
            ledger.codes["within-commitment"],
            f"{reservation.id} is committed until {until.isoformat()}; it can't end on {end.isoformat()}",
        )
