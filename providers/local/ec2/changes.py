"""Creating, modifying, cancelling and ending reservations.

Sources: EC2 API reference (CreateCapacityReservation, ModifyCapacityReservation,
CancelCapacityReservation); EC2 User Guide, "Modify an active Capacity Reservation", "Cancel a Capacity
Reservation", "Future-dated Capacity Reservations". A reservation that ends leaves its instances running,
outside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from moto.ec2.utils import random_id

from providers.local.clock import aware
from providers.local.ec2 import errors, zones
from providers.local.ec2.errors import Ec2Error
from providers.local.ec2.ledger import Ledger
from providers.local.ec2.matching import ON_DEMAND
from providers.local.ec2.reservations import PLATFORMS, CapacityReservation
from providers.local.world import World

MOST_AT_ONCE = 1000  # instances in one create, and the largest change in one modify
FUTURE = (timedelta(days=5), timedelta(days=120))
BLOCK_ENDS_EARLY = timedelta(minutes=30)
CANCELLABLE = frozenset({"active", "pending", "assessing", "delayed"})
MATCH_CRITERIA = ("open", "targeted")
TENANCIES = ("default", "dedicated")


def create(
    world: World, backend: zones.HasZones, params: Mapping[str, Any], **special: Any
) -> CapacityReservation:
    """Reserve capacity. `special` sets what no request can: owner, kind, state (the control plane's use)."""
    ledger, now = world.ledger, world.ledger.now()
    for name in ("InstanceType", "InstancePlatform", "InstanceCount"):
        if params.get(name) is None:
            raise errors.missing(name)
    platform = _one_of("InstancePlatform", params["InstancePlatform"], sorted(PLATFORMS))
    criteria = _one_of("InstanceMatchCriteria", params.get("InstanceMatchCriteria") or "open", MATCH_CRITERIA)
    count = _count(params["InstanceCount"], lowest=1)
    zone = zones.of_request(backend, params)
    if world.check_offerings:
        zones.require_offering(backend, params["InstanceType"], zone.name)
    end_date, end_date_type = _end(params, now)
    start, commitment = (_start(params), None) if special else _future(params, now)
    fields: dict[str, Any] = {
        "owner_id": backend.account_id,
        "state": "scheduled" if start else "pending" if world.pending else "active",
        **special,
    }
    reservation = CapacityReservation(
        id=random_id(prefix="cr"),
        region=backend.region_name,
        partition=backend.partition,
        instance_type=params["InstanceType"],
        platform=platform,
        zone=zone.name,
        zone_id=zone.zone_id,
        total=count,
        created=now,
        tenancy=_one_of("Tenancy", params.get("Tenancy") or "default", TENANCIES),
        match_criteria=criteria,
        end_date=end_date,
        end_date_type=end_date_type,
        start_date=start or now,
        ebs_optimized=bool(params.get("EbsOptimized")),
        ephemeral_storage=bool(params.get("EphemeralStorage")),
        placement_group_arn=params.get("PlacementGroupArn"),
        outpost_arn=params.get("OutpostArn"),
        commitment=commitment,
        delivery_preference=params.get("DeliveryPreference"),
        **fields,
    )
    if reservation.reservation_type == "default" and not reservation.interruptible:
        _require_capacity(ledger, reservation, count, already_running=_running_matches(ledger, reservation))
    ledger.add(reservation)
    if reservation.state == "pending":
        _activate_at(ledger, reservation, now + timedelta(seconds=world.pending))
    elif reservation.state == "scheduled" and start:
        _activate_at(ledger, reservation, start)
    expire_at(ledger, reservation)
    return reservation


def modify(
    world: World, reservation: CapacityReservation, account_id: str, params: Mapping[str, Any]
) -> None:
    ledger = world.ledger
    require_owner(ledger, reservation, account_id)
    require_mutable(ledger, reservation)
    if reservation.state not in ("active", "scheduled"):
        raise Ec2Error(
            ledger.codes["modify-wrong-state"],
            f"The capacity reservation {reservation.id} is {reservation.state} and can't be modified",
        )
    fields: dict[str, Any] = {}
    if params.get("InstanceCount") is not None:
        count = _count(params["InstanceCount"], lowest=1, highest=None)
        growth = count - reservation.total
        if abs(growth) > MOST_AT_ONCE:
            raise errors.invalid(
                "InstanceCount", count, f"It may change by at most {MOST_AT_ONCE} instances in one request."
            )
        if growth > 0:
            _require_capacity(ledger, reservation, growth)
        fields["total"] = count
    criteria = params.get("InstanceMatchCriteria")
    if criteria and criteria != reservation.match_criteria:
        _one_of("InstanceMatchCriteria", criteria, MATCH_CRITERIA)
        if reservation.used:
            raise errors.invalid(
                "InstanceMatchCriteria",
                criteria,
                f"{reservation.used} instances run in {reservation.id}; its instance eligibility can change "
                "only while it is unused.",
            )
        fields["match_criteria"] = criteria
    if params.get("EndDateType") or params.get("EndDate"):
        fields["end_date"], fields["end_date_type"] = _end(params, ledger.now())
    ledger.change(reservation, **fields)
    if "end_date" in fields:
        expire_at(ledger, reservation)


def cancel(world: World, reservation: CapacityReservation, account_id: str) -> None:
    ledger = world.ledger
    require_owner(ledger, reservation, account_id)
    require_mutable(ledger, reservation)
    if reservation.state not in CANCELLABLE:
        raise Ec2Error(
            ledger.codes["cancel-wrong-state"],
            f"The capacity reservation {reservation.id} is {reservation.state} and can't be cancelled",
        )
    if reservation.commitment and reservation.start_date:
        committed_until = reservation.start_date + reservation.commitment
        if ledger.now() < committed_until:
            raise Ec2Error(
                ledger.codes["cancel-wrong-state"],
                f"The capacity reservation {reservation.id} is committed until {committed_until.isoformat()}",
            )
    ledger.change(reservation, state="cancelled")


# ---- what time does to a reservation


def _activate_at(ledger: Ledger, reservation: CapacityReservation, at: datetime) -> None:
    waiting = reservation.state

    def activate() -> None:
        if reservation.state == waiting:
            ledger.change(reservation, state="active")

    ledger.schedule(at, activate)


def expire_at(ledger: Ledger, reservation: CapacityReservation) -> None:
    end = reservation.end_date
    if end is None:
        return

    def end_instances() -> None:
        """EC2 terminates what runs in a Capacity Block before the block ends."""
        if reservation.end_date == end and reservation.usable:
            for occupant in list(reservation.slots.occupants.values()):
                occupant.instance.disable_api_termination = False
                occupant.instance.ec2_backend.terminate_instances([occupant.instance.id])

    def expire() -> None:
        if reservation.end_date == end and reservation.state in ("active", "pending", "scheduled", "delayed"):
            ledger.change(reservation, state="expired")

    if reservation.reservation_type == "capacity-block":
        ledger.schedule(end - BLOCK_ENDS_EARLY, end_instances)
    ledger.schedule(end, expire)


# ---- what a request has to satisfy


def _require_capacity(
    ledger: Ledger, reservation: CapacityReservation, count: int, *, already_running: int = 0
) -> None:
    free = ledger.free(ON_DEMAND, reservation.instance_type, reservation.zone)
    if free is not None and free < count - already_running:
        raise errors.no_capacity(reservation.instance_type, reservation.zone)


def _running_matches(ledger: Ledger, reservation: CapacityReservation) -> int:
    """Running instances that the new reservation takes in: they need no further machine."""
    if reservation.match_criteria != "open" or reservation.state not in ("active", "pending"):
        return 0
    return min(reservation.total, ledger.would_absorb(reservation))


def require_owner(ledger: Ledger, reservation: CapacityReservation, account_id: str) -> None:
    if reservation.owner_id != account_id:
        raise Ec2Error(
            ledger.codes["not-owner"],
            f"The capacity reservation {reservation.id} is shared with you; only its owner "
            f"{reservation.owner_id} can change it",
        )


def require_mutable(ledger: Ledger, reservation: CapacityReservation) -> None:
    if reservation.reservation_type == "capacity-block":
        raise Ec2Error(
            ledger.codes["block-immutable"],
            f"{reservation.id} is a Capacity Block, which can't be modified or cancelled",
        )


def _count(value: Any, *, lowest: int, highest: int | None = MOST_AT_ONCE) -> int:
    count = int(value)
    if count < lowest or (highest is not None and count > highest):
        raise errors.invalid("InstanceCount", count, f"Expecting a number from {lowest} to {MOST_AT_ONCE}.")
    return count


def _one_of(parameter: str, value: str, accepted: Any) -> str:
    if value not in accepted:
        raise errors.invalid(parameter, value, f"Valid values: {', '.join(accepted)}.")
    return value


def _end(params: Mapping[str, Any], now: datetime) -> tuple[datetime | None, str]:
    end, kind = params.get("EndDate"), params.get("EndDateType")
    if kind == "limited" and not end:
        raise errors.combination("EndDateType limited needs an EndDate")
    if kind == "unlimited" and end:
        raise errors.combination("EndDate can't be specified with EndDateType unlimited")
    if kind:
        _one_of("EndDateType", kind, ("unlimited", "limited"))
    if not end:
        return None, "unlimited"
    at = aware(end)
    if at <= now:
        raise errors.invalid("EndDate", at.isoformat(), "It has to be in the future.")
    return at, "limited"


def _start(params: Mapping[str, Any]) -> datetime | None:
    return aware(params["StartDate"]) if params.get("StartDate") else None


def _future(params: Mapping[str, Any], now: datetime) -> tuple[datetime | None, timedelta | None]:
    """Start and commitment of a future-dated reservation; neither for one that starts at once."""
    start = _start(params)
    if start is None:
        return None, None
    if not FUTURE[0] <= start - now <= FUTURE[1]:
        raise errors.invalid("StartDate", start.isoformat(), "It has to be 5 to 120 days ahead.")
    if params.get("InstanceMatchCriteria") != "targeted":
        raise errors.combination("A future-dated Capacity Reservation needs InstanceMatchCriteria targeted")
    if params.get("DeliveryPreference") != "incremental":
        raise errors.combination("A future-dated Capacity Reservation needs DeliveryPreference incremental")
    if not params.get("CommitmentDuration"):
        raise errors.missing("CommitmentDuration")
    if params["InstanceType"].startswith("p"):
        raise Ec2Error("Unsupported", f"{params['InstanceType']} can't be reserved for a future date")
    return start, timedelta(seconds=int(params["CommitmentDuration"]))
