"""Checks of a request about a reservation, in any action.

Source: EC2 API reference, the parameters of CreateCapacityReservation and ModifyCapacityReservation; EC2 User
Guide, "Work with Capacity Reservations" (permitted changes).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from local.aws.clock import aware
from local.aws.ec2 import errors
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.launch_needs import ON_DEMAND
from local.aws.ec2.ledger import CapacityLedger
from local.aws.ec2.reservations import Ec2Reservation

TYPE_NAME = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+")
MOST_AT_ONCE = 1000  # instances in one create, and the largest change in one modify


def require_capacity(
    ledger: CapacityLedger, reservation: Ec2Reservation, count: int, *, already_running: int = 0
) -> None:
    free = ledger.free(ON_DEMAND, reservation.instance_type, reservation.zone)
    if free is not None and free < count - already_running:
        raise errors.no_capacity(reservation.instance_type, reservation.zone)


def running_matches(ledger: CapacityLedger, reservation: Ec2Reservation) -> int:
    """Running instances that the new reservation takes in: they need no further machine."""
    if reservation.match_criteria != "open" or reservation.state not in ("active", "pending"):
        return 0
    return min(reservation.total, ledger.would_absorb(reservation))


def require_owner(ledger: CapacityLedger, reservation: Ec2Reservation, account_id: str) -> None:
    if reservation.owner_id != account_id:
        raise Ec2Error(
            ledger.codes["not-owner"],
            f"The capacity reservation {reservation.id} is shared with you; only its owner "
            f"{reservation.owner_id} can change it",
        )


def require_mutable(ledger: CapacityLedger, reservation: Ec2Reservation) -> None:
    """Blocks never change; interruptible reservations and members of a fleet change only through
    their allocation or fleet."""
    if reservation.reservation_type == "capacity-block":
        raise Ec2Error(
            ledger.codes["block-immutable"],
            f"{reservation.id} is a Capacity Block, which can't be modified or cancelled",
        )
    if reservation.interruptible:
        raise Ec2Error(
            ledger.codes["interruptible-immutable"],
            f"{reservation.id} is an interruptible Capacity Reservation; change the allocation of its source"
            f"{f' {reservation.source_id}' if reservation.source_id else ''} instead",
        )
    if reservation.fleet_id:
        raise Ec2Error(
            ledger.codes["fleet-member-immutable"],
            f"{reservation.id} belongs to the Capacity Reservation Fleet {reservation.fleet_id}; modify or "
            "cancel the fleet instead",
        )


def instance_type(value: str) -> None:
    """A name that no instance type can have; `zones` checks that a zone has the type."""
    if not TYPE_NAME.fullmatch(value):
        raise Ec2Error("InvalidParameterValue", f"Invalid value '{value}' for InstanceType.")


def count_of(value: Any, *, lowest: int, highest: int | None = MOST_AT_ONCE) -> int:
    count = int(value)
    if count < lowest or (highest is not None and count > highest):
        raise errors.invalid("InstanceCount", count, f"Expecting a number from {lowest} to {MOST_AT_ONCE}.")
    return count


def one_of(parameter: str, value: str, accepted: Iterable[str]) -> str:
    accepted = list(accepted)
    if value not in accepted:
        raise errors.invalid(parameter, value, f"Valid values: {', '.join(accepted)}.")
    return value


def end_of(params: Mapping[str, Any], now: datetime) -> tuple[datetime | None, str]:
    end, kind = params.get("EndDate"), params.get("EndDateType")
    if kind == "limited" and not end:
        raise errors.combination("EndDateType limited needs an EndDate")
    if kind == "unlimited" and end:
        raise errors.combination("EndDate can't be specified with EndDateType unlimited")
    if kind:
        one_of("EndDateType", kind, ("unlimited", "limited"))
    if not end:
        return None, "unlimited"
    at = aware(end)
    if at <= now:
        raise errors.invalid("EndDate", at.isoformat(), "It has to be in the future.")
    return at, "limited"
