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

from providers.local.ec2 import errors, launches, prices, templates
from providers.local.ec2.errors import Ec2Error
from providers.local.ec2.matching import ON_DEMAND, SPOT, Want
from providers.local.ec2.templates import LaunchData
from providers.local.world import World

# how a fleet's default capacity type fixes the market type; the others leave it to the template
MARKET = {"spot": SPOT, "capacity-block": "capacity-block"}


@dataclass(eq=False, kw_only=True)
class Pool:
    data: LaunchData
    override: Mapping[str, Any]
    template: Mapping[str, Any]  # id and version, as the answer names them
    want: Want | None  # None: what it asks for does not make a launch, see `problem`
    problem: EC2ClientError | None = None
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


def of_fleet(world: World, backend: Any, configs: list[dict[str, Any]], kind: str) -> list[Pool]:
    pools = [pool for config in configs for pool in _of_config(world, backend, config, kind)]
    if not pools:
        raise errors.missing("LaunchTemplateConfigs")
    seen: set[tuple[str, str]] = set()
    for pool in pools:
        if pool.want is None:
            continue
        key = (pool.want.instance_type, pool.want.zone)
        if key in seen:
            raise Ec2Error("InvalidFleetConfig", "The fleet configuration contains duplicate instance pools.")
        seen.add(key)
    return pools


def _of_config(world: World, backend: Any, config: Mapping[str, Any], kind: str) -> Iterator[Pool]:
    specification = config.get("LaunchTemplateSpecification") or {}
    template, version = templates.version_of(backend, specification)
    named = {**specification, "LaunchTemplateId": template.id, "Version": str(version.number)}
    for override in config.get("Overrides") or [{}]:
        data, want, problem = dict(version.data), None, None
        try:
            data = templates.of_override(backend, version.data, override)
            if user_data := specification.get("LaunchTemplateSpecificationUserData"):
                data["UserData"] = user_data
            _require_launchable(data, override)
            market = MARKET.get(kind) or templates.market_of(data)
            want = launches.want_of(world, backend, data, market)
        except EC2ClientError as refused:
            problem = refused
        yield Pool(data=data, override=dict(override), template=named, want=want, problem=problem)


def _require_launchable(data: Mapping[str, Any], override: Mapping[str, Any]) -> None:
    if not data.get("InstanceType"):
        if override.get("InstanceRequirements") or data.get("InstanceRequirements"):
            raise Ec2Error(
                "UnsupportedOperation",
                "InstanceRequirements: local AWS does not choose instance types; name an InstanceType",
            )
        raise errors.missing("InstanceType")
    if not data.get("ImageId"):
        raise errors.missing("ImageId")


def in_order(pools: list[Pool], kind: str, options: Mapping[str, Any]) -> list[Pool]:
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
