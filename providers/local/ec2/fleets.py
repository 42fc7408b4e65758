"""CreateFleet of type `instant`: pools tried in order, what could not be launched listed under `Errors`.

The answer is 200 even if nothing was launched. Sources: EC2 API reference, CreateFleet; EC2 User Guide, "Use
Capacity Reservations to reserve On-Demand capacity in EC2 Fleet". With `use-capacity-reservations-first` the
reservations of all pools come before On-Demand, and templates that target one reservation by id are not used.
Below `MinTargetCapacity` nothing is launched at all. Other fleet types are moto's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.fleets import Fleet
from moto.ec2.models.instances import Reservation
from moto.ec2.utils import random_fleet_id

from providers.local.ec2 import errors, fleet_launch, matching, pools
from providers.local.ec2.errors import Ec2Error
from providers.local.ec2.matching import ONLY, Target, Want
from providers.local.ec2.pools import Pool
from providers.local.world import World

RESERVATIONS_FIRST = "use-capacity-reservations-first"
RESERVED_MARKET = {
    "on-demand-capacity-reservation": matching.ON_DEMAND,
    "capacity-block": "capacity-block",
    "interruptible-capacity-reservation": "interruptible-capacity-reservation",
}
KINDS = ("on-demand", "spot", "capacity-block", "reserved-capacity")


class InstantFleet(Fleet):
    """moto's fleet, except that `create` below launches for it."""

    errors: list[dict[str, Any]]
    launched: list[dict[str, Any]]

    @property
    def fleet_id(self) -> str:  # moto finds `id` only of a class named Fleet
        return self.id

    @property
    def instances(self) -> list[dict[str, Any]]:
        return self.launched

    def create_on_demand_requests(self, weight_to_add: float) -> None:
        """Nothing here: pools, and what each refuses, are more than moto's one cheapest specification."""

    def create_spot_requests(self, weight_to_add: float) -> list[Any]:
        return []


@dataclass
class Filling:
    """A fleet on its way to its target."""

    target: float
    got: float = 0.0
    errors: dict[int, tuple[Pool, EC2ClientError, str]] = field(default_factory=dict)
    launched: list[tuple[Pool, Want, Reservation]] = field(default_factory=list)

    @property
    def missing(self) -> float:
        return self.target - self.got

    def refused(self, pool: Pool, error: EC2ClientError, lifecycle: str) -> None:
        self.errors[id(pool)] = (pool, error, lifecycle)


def is_ours(asked: Mapping[str, Any]) -> bool:
    """Instant fleets of one capacity type; moto mixes Spot and On-Demand in its own way."""
    capacity = asked["target_capacity_specification"]
    mixed = int(capacity.get("SpotTargetCapacity") or 0) > 0 or (
        capacity.get("DefaultTargetCapacityType") == "spot"
        and int(capacity.get("OnDemandTargetCapacity") or 0) > 0
    )
    return asked["fleet_type"] == "instant" and not mixed


def create(world: World, backend: Any, asked: dict[str, Any], params: Mapping[str, Any]) -> InstantFleet:
    capacity = asked["target_capacity_specification"]
    kind = capacity.get("DefaultTargetCapacityType") or "on-demand"
    if kind not in KINDS:
        raise errors.invalid("DefaultTargetCapacityType", kind, f"Valid values: {', '.join(KINDS)}.")
    options = (asked["spot_options"] if kind == "spot" else asked["on_demand_options"]) or {}
    minimum = _minimum(options)
    found = pools.of_fleet(world, backend, asked["launch_template_configs"] or [], kind)
    fleet = InstantFleet(backend, random_fleet_id(), **{**asked, "launch_template_configs": []})
    fleet.launch_template_configs = asked["launch_template_configs"]
    fleet.errors, fleet.launched = [], []
    backend.fleets[fleet.id] = fleet  # moto looks an instance's fleet up when the instance ends

    tags = asked["tag_specifications"]
    run = fleet_launch.runner(backend, fleet.id, tags)
    fill = _way_to_fill(world, run, kind, options, params.get("ReservedCapacityOptions") or {})
    filling = Filling(target=float(capacity["TotalTargetCapacity"]))
    for pool in found:
        if pool.problem is not None:
            filling.refused(pool, pool.problem, "on-demand")
    usable = [pool for pool in found if pool.problem is None]
    reserved_options = params.get("ReservedCapacityOptions") or {}
    ordered = pools.in_order(usable, kind, reserved_options if kind == "reserved-capacity" else options)
    _fill_in_one_place(backend, filling, ordered, options, fill, minimum)
    if filling.got < minimum:
        _take_back(backend, filling)
    _write(fleet, filling)
    return fleet


def _minimum(options: Mapping[str, Any]) -> int:
    minimum = int(options.get("MinTargetCapacity") or 0)
    if minimum and not (options.get("SingleInstanceType") or options.get("SingleAvailabilityZone")):
        raise errors.combination("MinTargetCapacity needs SingleInstanceType or SingleAvailabilityZone")
    return minimum


# ---- ways to fill

Fill = Callable[[Filling, list[Pool]], None]


def _way_to_fill(
    world: World,
    run: fleet_launch.Run,
    kind: str,
    options: Mapping[str, Any],
    reserved: Mapping[str, Any],
) -> Fill:
    if kind == "reserved-capacity":
        return lambda filling, ordered: _reserved(run, filling, ordered, reserved)
    usage = (options.get("CapacityReservationOptions") or {}).get("UsageStrategy")
    if usage == RESERVATIONS_FIRST:
        return lambda filling, ordered: _reservations_first(world, run, filling, ordered)
    return lambda filling, ordered: _one_after_another(run, filling, ordered)


def _one_after_another(run: fleet_launch.Run, filling: Filling, ordered: list[Pool]) -> None:
    for pool in ordered:
        assert pool.want is not None
        _attempt(run, filling, pool, pool.want)


def _reservations_first(world: World, run: fleet_launch.Run, filling: Filling, ordered: list[Pool]) -> None:
    used = []
    for pool in ordered:
        assert pool.want is not None
        if pool.want.target.reservation_id:
            code = world.codes["fleet-id-target-with-usage-strategy"]
            why = f"A launch template that targets a reservation by id is not used with {RESERVATIONS_FIRST}"
            filling.refused(pool, Ec2Error(code, why), pool.want.market)
        else:
            used.append((pool, pool.want))
    for pool, want in used:
        if any(reservation.available for reservation in matching.candidates(world.ledger, want)):
            _attempt(run, filling, pool, want, spill=False, partly=True)
    for pool, want in used:
        _attempt(run, filling, pool, want)


def _reserved(
    run: fleet_launch.Run, filling: Filling, ordered: list[Pool], options: Mapping[str, Any]
) -> None:
    """`reserved-capacity`: kinds of reservation in order, On-Demand only if the request says so."""
    target = options.get("CapacityReservationTarget") or {}
    targets = [Target(ONLY, reservation_id=i) for i in target.get("CapacityReservationIds") or []]
    targets += [Target(ONLY, group=a) for a in target.get("CapacityReservationResourceGroupArns") or []]
    for kind in options.get("ReservationTypes") or list(RESERVED_MARKET):
        if kind not in RESERVED_MARKET:
            raise errors.invalid("ReservationTypes", kind, f"Valid values: {', '.join(RESERVED_MARKET)}.")
        for pool in ordered:
            assert pool.want is not None
            own = replace(pool.want.target, preference=ONLY)
            for choice in targets or [own]:
                want = replace(pool.want, market=RESERVED_MARKET[kind], target=choice)
                _attempt(run, filling, pool, want, spill=False)
    if "on-demand" in ((options.get("ReservedCapacityFallbackOptions") or {}).get("MarketTypes") or []):
        for pool in ordered:
            assert pool.want is not None
            want = replace(pool.want, market=matching.ON_DEMAND, target=Target("none"))
            _attempt(run, filling, pool, want)


def _attempt(
    run: fleet_launch.Run,
    filling: Filling,
    pool: Pool,
    want: Want,
    *,
    spill: bool = True,
    partly: bool = False,
) -> None:
    """One launch of what is missing into one pool; what it refuses is the pool's error."""
    if filling.missing <= 0:
        return
    count = math.ceil(filling.missing / pool.weight)
    try:
        reservation = run(pool, want, count, spill)
    except EC2ClientError as refused:
        filling.refused(pool, refused, want.market)
        return
    filling.launched.append((pool, want, reservation))
    filling.got += len(reservation.instances) * pool.weight
    filling.errors.pop(id(pool), None)
    if len(reservation.instances) < count and not partly:
        filling.refused(pool, matching.refusal(want, run.codes), want.market)


# ---- one instance type, one zone, a minimum


def _fill_in_one_place(
    backend: Any, filling: Filling, ordered: list[Pool], options: Mapping[str, Any], fill: Fill, minimum: int
) -> None:
    """Fill, keeping to one instance type or one zone where the request says so: the first that reaches the
    target, else the one that comes closest."""
    places = list(_places(ordered, options))
    best: tuple[float, list[Pool]] = (-1.0, [])
    for place in places:
        fill(filling, place)
        if filling.missing <= 0 or len(places) == 1:
            return
        if filling.got > best[0]:
            best = (filling.got, place)
        _take_back(backend, filling)
    if best[0] >= max(minimum, 1):
        fill(filling, best[1])


def _places(ordered: list[Pool], options: Mapping[str, Any]) -> Iterator[list[Pool]]:
    def place(pool: Pool) -> tuple[str, str]:
        assert pool.want is not None
        return (
            pool.want.instance_type if options.get("SingleInstanceType") else "",
            pool.want.zone if options.get("SingleAvailabilityZone") else "",
        )

    order = list(dict.fromkeys(place(pool) for pool in ordered))
    for _, members in groupby(sorted(ordered, key=lambda pool: order.index(place(pool))), key=place):
        yield list(members)


def _take_back(backend: Any, filling: Filling) -> None:
    for _, _, reservation in filling.launched:
        backend.erase(reservation)
    filling.launched.clear()
    filling.got = 0.0


# ---- the answer


def _write(fleet: InstantFleet, filling: Filling) -> None:
    entries: dict[tuple[int, str], dict[str, Any]] = {}
    for pool, want, reservation in filling.launched:
        first: Any = reservation.instances[0]
        entry = entries.setdefault(
            (id(pool), want.market),
            {
                "LaunchTemplateAndOverrides": pool.named,
                "Lifecycle": want.market,
                "InstanceIds": [],
                "InstanceType": first.instance_type,
                "Platform": first.platform if first.platform == "windows" else None,
                "AvailabilityZone": first.availability_zone,
                "AvailabilityZoneId": first.placement.availability_zone_id,
                "SubnetId": first.subnet_id,
            },
        )
        entry["InstanceIds"] += [instance.id for instance in reservation.instances]
        for instance in reservation.instances:
            fleet.on_demand_instances.append(
                {"id": reservation.id, "instance": instance, "launch_spec": None}
            )
    fleet.launched = list(entries.values())
    fleet.errors = [
        {
            "LaunchTemplateAndOverrides": pool.named,
            "Lifecycle": lifecycle,
            "ErrorCode": error.code,
            "ErrorMessage": error.message,
        }
        for pool, error, lifecycle in filling.errors.values()
    ]
    fleet.fulfilled_capacity = filling.got
    if fleet.target_capacity_specification.get("DefaultTargetCapacityType") == "spot":
        fleet.fulfilled_spot_capacity = filling.got
    else:
        fleet.fulfilled_on_demand_capacity = filling.got
