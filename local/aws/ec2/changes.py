"""Creating, modifying and cancelling reservations.

Sources: EC2 API reference (CreateCapacityReservation, ModifyCapacityReservation,
CancelCapacityReservation); EC2 User Guide, "Modify an active Capacity Reservation", "Cancel a Capacity
Reservation". `future` has the rules of future dates, `life` the effects of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from moto.ec2.utils import random_id

from local.aws.clock import aware
from local.aws.ec2 import checks, errors, future, life, quotes, zones
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.reservations import PLATFORMS, Ec2Reservation
from local.aws.ec2.world import AwsWorld

# EC2 API Reference, CancelCapacityReservation. A pending one becomes active, delayed or failed first.
CANCELLABLE = frozenset({"active", "assessing", "scheduled", "delayed"})
MATCH_CRITERIA = ("open", "targeted")
TENANCIES = ("default", "dedicated")


def create(
    world: AwsWorld, backend: zones.HasZones, params: Mapping[str, Any], **special: Any
) -> Ec2Reservation:
    """Reserves capacity. `special` sets fields that only the control plane can: owner, kind, state."""
    ledger, now = world.ledger, world.ledger.now()
    for name in ("InstanceType", "InstancePlatform", "InstanceCount"):
        if params.get(name) is None:
            raise errors.missing(name)
    checks.instance_type(params["InstanceType"])
    platform = checks.one_of("InstancePlatform", params["InstancePlatform"], sorted(PLATFORMS))
    criteria = params.get("InstanceMatchCriteria") or "open"
    checks.one_of("InstanceMatchCriteria", criteria, MATCH_CRITERIA)
    count = checks.count_of(params["InstanceCount"], lowest=1)
    zone = zones.of_request(backend, params)
    if world.knobs.check_offerings:
        zones.require_offering(backend, params["InstanceType"], zone.name)
    end_date, end_date_type = checks.end_of(params, now)
    if special:
        start = aware(params["StartDate"]) if params.get("StartDate") else None
        waiting, commitment = start is not None and start > now, None
    else:
        start, commitment = future.start_and_commitment(params, now, end_date)
        waiting = False
    pending = world.knobs.pending_s
    state = "assessing" if commitment else "scheduled" if waiting else "pending" if pending else "active"
    fields: dict[str, Any] = {"owner_id": backend.account_id, "state": state, **special}
    reservation = Ec2Reservation(
        id=random_id(prefix="cr"),
        region=backend.region_name,
        partition=backend.partition,
        instance_type=params["InstanceType"],
        platform=platform,
        zone=zone.name,
        zone_id=zone.zone_id,
        total=count,
        created=now,
        tenancy=checks.one_of("Tenancy", params.get("Tenancy") or "default", TENANCIES),
        match_criteria=criteria,
        end_date=end_date,
        end_date_type=end_date_type,
        start_date=start or now,
        ebs_optimized=bool(params.get("EbsOptimized")),
        ephemeral_storage=bool(params.get("EphemeralStorage")),
        placement_group_arn=params.get("PlacementGroupArn"),
        outpost_arn=params.get("OutpostArn"),
        commitment=commitment,
        committed=count if commitment else 0,
        delivery_preference=params.get("DeliveryPreference"),
        **fields,
    )
    if reservation.reservation_type == "default" and not reservation.interruptible:
        already = checks.running_matches(ledger, reservation)
        world.quotas.check_reservation(reservation, count - already, world.codes["reservation-over-quota"])
        if not commitment:
            checks.require_capacity(ledger, reservation, count, already_running=already)
    ledger.add(reservation)
    if reservation.state == "pending":
        life.activate_at(world, reservation, now + timedelta(seconds=pending))
    elif reservation.state == "scheduled" and start:
        life.activate_at(world, reservation, start)
    elif reservation.state == "assessing":
        future.assess(world, reservation)
    life.expire_at(world, reservation)
    return reservation


def modify(world: AwsWorld, reservation: Ec2Reservation, account_id: str, params: Mapping[str, Any]) -> None:
    ledger = world.ledger
    checks.require_owner(ledger, reservation, account_id)
    checks.require_mutable(ledger, reservation)
    if params.get("StartDate") or params.get("QuoteId"):
        quotes.accept_date_change(world, reservation, params)
        return
    if reservation.state != "active":
        raise Ec2Error(
            ledger.codes["modify-wrong-state"],
            f"The capacity reservation {reservation.id} is {reservation.state} and can't be modified",
        )
    fields: dict[str, Any] = {}
    if params.get("InstanceCount") is not None:
        fields["total"] = _new_count(world, reservation, params["InstanceCount"])
    criteria = params.get("InstanceMatchCriteria")
    if criteria and criteria != reservation.match_criteria:
        checks.one_of("InstanceMatchCriteria", criteria, MATCH_CRITERIA)
        if reservation.used:
            raise errors.invalid(
                "InstanceMatchCriteria",
                criteria,
                f"{reservation.used} instances run in {reservation.id}; its instance eligibility can change "
                "only while it is unused.",
            )
        fields["match_criteria"] = criteria
    if params.get("EndDateType") or params.get("EndDate"):
        fields["end_date"], fields["end_date_type"] = checks.end_of(params, ledger.now())
    future.require_commitment(ledger, reservation, total=fields.get("total"), end=fields.get("end_date"))
    ledger.change(reservation, **fields)
    if "end_date" in fields:
        life.expire_at(world, reservation)


def _new_count(world: AwsWorld, reservation: Ec2Reservation, requested: Any) -> int:
    count = checks.count_of(requested, lowest=1, highest=None)
    growth = count - reservation.total
    if abs(growth) > checks.MOST_AT_ONCE:
        raise errors.invalid(
            "InstanceCount",
            count,
            f"It may change by at most {checks.MOST_AT_ONCE} instances in one request.",
        )
    if growth > 0:
        world.quotas.check_reservation(reservation, growth, world.codes["reservation-over-quota"])
        checks.require_capacity(world.ledger, reservation, growth)
    return count


def cancel(world: AwsWorld, reservation: Ec2Reservation, account_id: str, params: Mapping[str, Any]) -> None:
    ledger = world.ledger
    checks.require_owner(ledger, reservation, account_id)
    checks.require_mutable(ledger, reservation)
    if reservation.state not in CANCELLABLE:
        raise Ec2Error(
            ledger.codes["cancel-wrong-state"],
            f"The capacity reservation {reservation.id} is {reservation.state} and can't be cancelled",
        )
    if future.is_committed(ledger, reservation):
        quotes.wind_down(world, reservation, params)
    else:
        ledger.change(reservation, state="cancelled")
