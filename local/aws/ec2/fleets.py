"""CreateFleet of type `instant`: pools tried in order, failed launches listed under `Errors`.

The answer is 200 even if nothing was launched. Sources: EC2 API reference, CreateFleet; EC2 User Guide, "Use
Capacity Reservations to reserve On-Demand capacity in EC2 Fleet". With `use-capacity-reservations-first` the
reservations of all pools come before On-Demand, and templates that target one reservation by id are not used.
Below `MinTargetCapacity` nothing is launched at all. Other fleet types are moto's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from moto.ec2.models.fleets import Fleet
from moto.ec2.utils import random_fleet_id

from local.aws.ec2 import errors, fleet_launch, pools
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.fleet_filling import Fill, Filling, check_reserved, way_to_fill
from local.aws.ec2.pools import FleetPool
from local.aws.ec2.world import AwsWorld

OVERRIDES = 300
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
        """Nothing here: pools with their refusals are more than moto's one cheapest specification."""

    def create_spot_requests(self, weight_to_add: float) -> list[Any]:
        return []


def is_unmixed_instant(arguments: Mapping[str, Any]) -> bool:
    """Instant fleets of one capacity type; moto mixes Spot and On-Demand in its own way."""
    capacity = arguments["target_capacity_specification"]
    mixed = int(capacity.get("SpotTargetCapacity") or 0) > 0 or (
        capacity.get("DefaultTargetCapacityType") == "spot"
        and int(capacity.get("OnDemandTargetCapacity") or 0) > 0
    )
    return arguments["fleet_type"] == "instant" and not mixed


def create(
    world: AwsWorld, backend: Any, arguments: dict[str, Any], params: Mapping[str, Any]
) -> InstantFleet:
    capacity = arguments["target_capacity_specification"]
    kind = capacity.get("DefaultTargetCapacityType") or "on-demand"
    if kind not in KINDS:
        raise errors.invalid("DefaultTargetCapacityType", kind, f"Valid values: {', '.join(KINDS)}.")
    reserved = params.get("ReservedCapacityOptions") or {}
    check_reserved(kind, arguments["fleet_type"], reserved)
    options = (arguments["spot_options"] if kind == "spot" else arguments["on_demand_options"]) or {}
    minimum = _minimum(options)
    _require_few_overrides(world, arguments["launch_template_configs"] or [])
    fleet_pools = pools.of_fleet(world, backend, arguments["launch_template_configs"] or [], kind)
    fleet = InstantFleet(backend, random_fleet_id(), **{**arguments, "launch_template_configs": []})
    fleet.launch_template_configs = arguments["launch_template_configs"]
    fleet.errors, fleet.launched = [], []
    backend.fleets[fleet.id] = fleet  # moto looks an instance's fleet up when the instance ends

    tags = arguments["tag_specifications"]
    run = fleet_launch.runner(backend, fleet.id, tags)
    fill = way_to_fill(world, run, kind, options, reserved)
    filling = Filling(target=float(capacity["TotalTargetCapacity"]))
    for pool in fleet_pools:
        if pool.problem is not None:
            filling.refused(pool, pool.problem, "on-demand")
    usable = [pool for pool in fleet_pools if pool.problem is None]
    ordered = pools.in_order(usable, kind, reserved if kind == "reserved-capacity" else options)
    _fill_in_one_place(backend, filling, ordered, options, fill, minimum)
    if filling.got < minimum:
        _take_back(backend, filling)
    _write(fleet, filling)
    return fleet


def _require_few_overrides(world: AwsWorld, configs: Sequence[Mapping[str, Any]]) -> None:
    """EC2 User Guide, "EC2 Fleet quotas"."""
    count = sum(len(config.get("Overrides") or [{}]) for config in configs)
    if count > OVERRIDES:
        raise Ec2Error(
            world.codes["too-many-overrides"],
            f"The request has {count} launch template overrides, a fleet takes {OVERRIDES} at most.",
        )


def _minimum(options: Mapping[str, Any]) -> int:
    minimum = int(options.get("MinTargetCapacity") or 0)
    if minimum and not (options.get("SingleInstanceType") or options.get("SingleAvailabilityZone")):
        raise errors.combination("MinTargetCapacity needs SingleInstanceType or SingleAvailabilityZone")
    return minimum


# ---- one instance type, one zone, a minimum


def _fill_in_one_place(
    backend: Any,
    filling: Filling,
    ordered: list[FleetPool],
    options: Mapping[str, Any],
    fill: Fill,
    minimum: int,
) -> None:
    """Fills within one instance type or one zone if the request requires it: the first that reaches the
    target, else the closest."""
    places = list(_places(ordered, options))
    best: tuple[float, list[FleetPool]] = (-1.0, [])
    for place in places:
        fill(filling, place)
        if filling.missing <= 0 or len(places) == 1:
            return
        if filling.got > best[0]:
            best = (filling.got, place)
        _take_back(backend, filling)
    if best[0] >= max(minimum, 1):
        fill(filling, best[1])


def _places(ordered: list[FleetPool], options: Mapping[str, Any]) -> Iterator[list[FleetPool]]:
    def place(pool: FleetPool) -> tuple[str, str]:
        assert pool.needs is not None
        return (
            pool.needs.instance_type if options.get("SingleInstanceType") else "",
            pool.needs.zone if options.get("SingleAvailabilityZone") else "",
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
    for pool, needs, reservation in filling.launched:
        first: Any = reservation.instances[0]
        entry = entries.setdefault(
            (id(pool), needs.market),
            {
                "LaunchTemplateAndOverrides": pool.named,
                "Lifecycle": needs.market,
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
