"""Capacity Reservation Fleets: a capacity in units, reserved type after type by priority, in one zone.

Invariant: a fleet's fulfilled capacity is the sum of its members' instances by weight; it is never stored.
The instance type of lowest priority number comes first, as many of it as the zone has; then the next. The
missing rest is tried again every 15 minutes. Members are changed only through the fleet.

Sources: EC2 API reference, CreateCapacityReservationFleet, ModifyCapacityReservationFleet,
CancelCapacityReservationFleets; EC2 User Guide, "Capacity Reservation Fleets". From which members a smaller
target takes is not documented: here the last priority first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from moto.ec2.utils import random_id

from local.aws.clock import aware
from local.aws.ec2 import changes, checks, errors, life, zones
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.launch_needs import ON_DEMAND
from local.aws.ec2.records import FleetPart, ReservationFleet
from local.aws.ec2.world import AwsWorld

RETRY = timedelta(minutes=15)
ACTIVE_STATES = frozenset({"active", "partially_fulfilled"})
WEIGHTS = (0.001, 99.999)
# parameter -> the only value that EC2 accepts
ONLY = {"AllocationStrategy": "prioritized", "Tenancy": "default", "InstanceMatchCriteria": "open"}


def create(
    world: AwsWorld, backend: zones.HasZones, params: Mapping[str, Any], tags: Mapping[str, str]
) -> ReservationFleet:
    for name, value in ONLY.items():
        if params.get(name) not in (None, value):
            raise errors.invalid(name, params[name], f"Valid values: {value}.")
    specs = params.get("InstanceTypeSpecifications") or []
    if not specs:
        raise errors.missing("InstanceTypeSpecifications")
    where = {zones.of_request(backend, spec).name for spec in specs}
    if len(where) > 1:
        raise errors.combination(
            f"A Capacity Reservation Fleet is in one Availability Zone, not in {', '.join(sorted(where))}"
        )
    for spec in specs:
        _check(spec)
    target = _target(params.get("TotalTargetCapacity"))
    fleet_id = random_id(prefix="crf")
    scope = f"{backend.region_name}:{backend.account_id}"
    fleet = ReservationFleet(
        id=fleet_id,
        arn=f"arn:{backend.partition}:ec2:{scope}:capacity-reservation-fleet/{fleet_id}",
        zone=where.pop(),
        target=target,
        created=world.ledger.now(),
        end=_end(world, params),
        tags=tags,
        parts=[FleetPart(spec=spec) for spec in sorted(specs, key=_priority)],
        backend=backend,
    )
    world.reservation_fleets[fleet.id] = fleet
    _fill(world, fleet)
    _expire_at(world, fleet)
    return fleet


def _check(spec: Mapping[str, Any]) -> None:
    for name in ("InstanceType", "InstancePlatform"):
        if not spec.get(name):
            raise errors.missing(f"InstanceTypeSpecification.{name}")
    weight = spec.get("Weight")
    if weight is not None and not WEIGHTS[0] <= float(weight) <= WEIGHTS[1]:
        raise errors.invalid("Weight", weight, f"Expecting a number from {WEIGHTS[0]} to {WEIGHTS[1]}.")


def _priority(spec: Mapping[str, Any]) -> float:
    value = spec.get("Priority")
    return math.inf if value is None else float(value)


def _target(value: Any) -> float:
    if value is None:
        raise errors.missing("TotalTargetCapacity")
    if float(value) < 1:
        raise errors.invalid("TotalTargetCapacity", value, "It is at least 1.")
    return float(value)


def _end(world: AwsWorld, params: Mapping[str, Any]) -> datetime | None:
    return checks.end_of({"EndDate": params.get("EndDate")}, world.ledger.now())[0]


# ---- towards the target


def _fill(world: AwsWorld, fleet: ReservationFleet) -> None:
    for part in fleet.parts:
        missing = math.ceil((fleet.target - fleet.fulfilled) / part.weight - 1e-9)
        free = world.ledger.free(ON_DEMAND, part.spec["InstanceType"], fleet.zone)
        count = min(missing, checks.MOST_AT_ONCE, missing if free is None else free)
        if count > 0:
            _grow(world, fleet, part, count)
    short = fleet.fulfilled < fleet.target
    fleet.state = "active" if not short else "partially_fulfilled" if fleet.fulfilled else "failed"
    if fleet.state == "partially_fulfilled":
        world.ledger.after(RETRY.total_seconds(), lambda: _try_again(world, fleet))


def _try_again(world: AwsWorld, fleet: ReservationFleet) -> None:
    if fleet.state == "partially_fulfilled":
        _fill(world, fleet)


def _grow(world: AwsWorld, fleet: ReservationFleet, part: FleetPart, count: int) -> None:
    if part.member is not None and part.member.usable:
        world.ledger.change(part.member, total=part.member.total + count)
        return
    parameters = {
        "InstanceType": part.spec["InstanceType"],
        "InstancePlatform": part.spec["InstancePlatform"],
        "AvailabilityZone": fleet.zone,
        "InstanceCount": count,
        "EbsOptimized": part.spec.get("EbsOptimized"),
        "EndDate": fleet.end,
    }
    part.member = changes.create(world, fleet.backend, parameters, fleet_id=fleet.id)
    if fleet.tags:
        backend: Any = fleet.backend
        backend.create_tags([part.member.id], dict(fleet.tags))


def _shrink(world: AwsWorld, fleet: ReservationFleet) -> None:
    for part in reversed(fleet.parts):
        spare = math.floor((fleet.fulfilled - fleet.target) / part.weight + 1e-9)
        member = part.member
        if spare <= 0 or member is None or not member.usable:
            continue
        if spare >= member.total:
            world.ledger.change(member, state="cancelled")
        else:
            world.ledger.change(member, total=member.total - spare)


def modify(world: AwsWorld, fleet: ReservationFleet, params: Mapping[str, Any]) -> None:
    if fleet.state not in ACTIVE_STATES:
        raise Ec2Error(
            world.codes["modify-wrong-state"], f"{fleet.id} is {fleet.state} and can't be modified"
        )
    if params.get("EndDate") and params.get("RemoveEndDate"):
        raise errors.combination("EndDate and RemoveEndDate can't be specified together")
    end = None if params.get("RemoveEndDate") else _end(world, params) or fleet.end
    if params.get("TotalTargetCapacity") is not None:
        fleet.target = _target(params["TotalTargetCapacity"])
        _shrink(world, fleet)
        _fill(world, fleet)
    if end != fleet.end:
        fleet.end = end
        for part in fleet.parts:
            if part.member is not None and part.member.usable:
                kind = "limited" if end else "unlimited"
                world.ledger.change(part.member, end_date=end, end_date_type=kind)
                life.expire_at(world, part.member)
        _expire_at(world, fleet)


def cancel(world: AwsWorld, fleet: ReservationFleet) -> str:
    """The state that it was in; instances run on outside."""
    before = fleet.state
    if before not in ACTIVE_STATES:
        raise Ec2Error(
            world.codes["cancel-wrong-state"], f"{fleet.id} is {fleet.state} and can't be cancelled"
        )
    fleet.state = "cancelled"
    for part in fleet.parts:
        if part.member is not None and part.member.usable:
            world.ledger.change(part.member, state="cancelled")
    return before


def _expire_at(world: AwsWorld, fleet: ReservationFleet) -> None:
    end = fleet.end
    if end is None:
        return

    def expire() -> None:
        if fleet.end == end and fleet.state in ACTIVE_STATES:
            fleet.state = "expired"

    world.ledger.schedule(aware(end), expire)


# ---- as the API shows it


def describe(fleet: ReservationFleet, tags: list[dict[str, str]]) -> dict[str, Any]:
    shown = {
        **ONLY,
        "CapacityReservationFleetId": fleet.id,
        "CapacityReservationFleetArn": fleet.arn,
        "State": fleet.state,
        "TotalTargetCapacity": int(fleet.target),
        "TotalFulfilledCapacity": fleet.fulfilled,
        "CreateTime": fleet.created,
        "EndDate": fleet.end,
        "InstanceTypeSpecifications": [_part(part) for part in fleet.parts if part.member is not None],
        "Tags": tags,
    }
    return {key: value for key, value in shown.items() if value is not None}


def _part(part: FleetPart) -> dict[str, Any]:
    member = part.member
    assert member is not None
    shown = {
        "CapacityReservationId": member.id,
        "InstanceType": member.instance_type,
        "InstancePlatform": member.platform,
        "AvailabilityZone": member.zone,
        "AvailabilityZoneId": member.zone_id,
        "TotalInstanceCount": member.total if member.usable else 0,
        "FulfilledCapacity": part.fulfilled,
        "EbsOptimized": member.ebs_optimized,
        "CreateDate": member.created,
        "Weight": part.weight,
        "Priority": part.spec.get("Priority"),
    }
    return {key: value for key, value in shown.items() if value is not None}
