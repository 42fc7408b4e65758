"""A fleet's pools: each launch template with each of its overrides, in the order in which they are tried.

Sources: EC2 API reference, CreateFleet, FleetLaunchTemplateOverridesRequest (`Priority`: the lowest number
first, none last) and OnDemandOptionsRequest (`AllocationStrategy`). EC2 refuses a whole fleet in which two
pools have the same instance type and zone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from moto.ec2.exceptions import EC2ClientError

from local.aws.ec2 import errors, launches, prices, requirements, templates, zones
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.launch_needs import ON_DEMAND, SPOT, LaunchNeeds
from local.aws.ec2.templates import LaunchData
from local.aws.ec2.world import AwsWorld

# fleet's default capacity type -> market type; the other types leave it to the template
MARKET = {"spot": SPOT, "capacity-block": "capacity-block"}


@dataclass(eq=False, kw_only=True)
class FleetPool:
    data: LaunchData
    override: Mapping[str, Any]
    template: Mapping[str, Any]  # id and version, as the answer names them
    needs: LaunchNeeds | None  # None: the pool is invalid, see `problem`
    problem: EC2ClientError | None = None
    chosen: bool = False  # its type was chosen by requirements
    instances: list[Any] = field(default_factory=list)

    @property
    def weight(self) -> float:
        return float(self.override.get("WeightedCapacity") or 1)

    @property
    def instance_type(self) -> str:
        return str(self.data.get("InstanceType"))

    @property
    def named(self) -> dict[str, Any]:
        """LaunchTemplateAndOverrides, as instances and errors carry it."""
        overrides = {**self.override, "InstanceType": self.data.get("InstanceType")}
        return {"LaunchTemplateSpecification": dict(self.template), "Overrides": overrides}


def of_fleet(world: AwsWorld, backend: Any, configs: list[dict[str, Any]], kind: str) -> list[FleetPool]:
    pools = [pool for config in configs for pool in _of_config(world, backend, config, kind)]
    if not pools:
        raise errors.missing("LaunchTemplateConfigs")
    seen: set[tuple[str, str]] = set()
    distinct: list[FleetPool] = []
    for pool in pools:
        key = (pool.needs.instance_type, pool.needs.zone) if pool.needs is not None else None
        if key in seen and pool.chosen:
            continue  # two sets of requirements may well choose the same type
        if key in seen:
            raise Ec2Error("InvalidFleetConfig", "The fleet configuration contains duplicate instance pools.")
        if key is not None:
            seen.add(key)
        distinct.append(pool)
    return distinct


def _of_config(world: AwsWorld, backend: Any, config: Mapping[str, Any], kind: str) -> Iterator[FleetPool]:
    specification = config.get("LaunchTemplateSpecification") or {}
    template, version = templates.version_of(backend, specification)
    named = {**specification, "LaunchTemplateId": template.id, "Version": str(version.number)}
    for requested in config.get("Overrides") or [{}]:
        try:
            overrides = _chosen(world, backend, version.data, requested, kind)
        except EC2ClientError as refused:
            yield FleetPool(
                data=version.data, override=requested, template=named, needs=None, problem=refused
            )
            continue
        for override in overrides:
            data, needs, problem = dict(version.data), None, None
            try:
                data = templates.of_override(backend, version.data, override)
                if user_data := specification.get("LaunchTemplateSpecificationUserData"):
                    data["UserData"] = user_data
                _require_launchable(data)
                market = MARKET.get(kind) or templates.market_of(data)
                needs = launches.needs_of(world, backend, data, market)
            except EC2ClientError as refused:
                problem = refused
            yield FleetPool(
                data=data,
                override=override,
                template=named,
                needs=needs,
                problem=problem,
                chosen=override is not requested,
            )


def _chosen(
    world: AwsWorld, backend: Any, data: Mapping[str, Any], override: Mapping[str, Any], kind: str
) -> list[Mapping[str, Any]]:
    """The override itself, or one for each instance type that its requirements allow where it is."""
    required = override.get("InstanceRequirements")
    if required and override.get("InstanceType"):
        raise errors.combination("InstanceType and InstanceRequirements can't be specified together")
    if not required and not (override.get("InstanceType") or data.get("InstanceType")):
        required = data.get("InstanceRequirements")
    if not required:
        return [override]
    other_fields = {key: value for key, value in override.items() if key != "InstanceRequirements"}
    merged = templates.of_override(backend, data, other_fields)
    zone = launches.needs_of(world, backend, merged, MARKET.get(kind) or ON_DEMAND).zone
    image = backend.amis.get(merged.get("ImageId"))
    architecture = image.architecture if image is not None else None
    offered = [
        name for name in zones.offered(backend, zone) if architecture in (None, *zones.architectures(name))
    ]
    type_names = requirements.satisfying(required, offered, market=kind)
    if not type_names:
        raise Ec2Error(
            world.codes["requirements-no-type"],
            f"No instance type in {zone} satisfies the InstanceRequirements",
        )
    return [{**other_fields, "InstanceType": name} for name in type_names]


def _require_launchable(data: Mapping[str, Any]) -> None:
    for name in ("InstanceType", "ImageId"):
        if not data.get(name):
            raise errors.missing(name)


def in_order(pools: list[FleetPool], kind: str, options: Mapping[str, Any]) -> list[FleetPool]:
    strategy = options.get("AllocationStrategy")
    if strategy in ("prioritized", "capacity-optimized-prioritized"):
        return sorted(pools, key=lambda pool: _priority(pool.override))
    if kind in (ON_DEMAND, SPOT) and strategy in (
        None,
        "lowest-price",
        "lowestPrice",
        "price-capacity-optimized",
    ):
        return sorted(pools, key=lambda pool: prices.per_hour(pool.instance_type) / pool.weight)
    return pools


def _priority(override: Mapping[str, Any]) -> float:
    value = override.get("Priority")
    return float("inf") if value is None else float(value)
