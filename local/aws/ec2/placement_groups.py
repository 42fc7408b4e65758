"""Placement groups, which a reservation can belong to and a launch can name.

Source: EC2 API reference, CreatePlacementGroup, DescribePlacementGroups, DeletePlacementGroup, and its
error codes InvalidPlacementGroup.Duplicate, .InUse and .Unknown. moto has none of these actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from moto.ec2.utils import random_id

from local.aws.ec2 import errors
from local.aws.ec2.errors import Ec2Error

STRATEGIES = ("cluster", "spread", "partition")
MOST_PARTITIONS = 7


@dataclass(frozen=True, kw_only=True)
class Ec2PlacementGroup:
    id: str
    name: str
    arn: str
    strategy: str
    partition_count: int | None
    spread_level: str | None
    state: str = "available"


class HasGroups(Protocol):
    account_id: str
    region_name: str
    partition: str
    placement_groups: dict[str, Ec2PlacementGroup]


def create(backend: HasGroups, params: Mapping[str, Any]) -> Ec2PlacementGroup:
    name, strategy = params.get("GroupName"), params.get("Strategy") or "cluster"
    if not name:
        raise errors.missing("GroupName")
    if strategy not in STRATEGIES:
        raise errors.invalid("Strategy", strategy, f"Valid values: {', '.join(STRATEGIES)}.")
    if name in backend.placement_groups:
        raise Ec2Error("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists")
    partitions = params.get("PartitionCount")
    if partitions is not None and (strategy != "partition" or not 1 <= int(partitions) <= MOST_PARTITIONS):
        raise errors.invalid(
            "PartitionCount", partitions, f"It is 1 to {MOST_PARTITIONS}, with strategy partition only."
        )
    group = Ec2PlacementGroup(
        id=random_id(prefix="pg"),
        name=name,
        arn=arn_of(backend, name),
        strategy=strategy,
        partition_count=int(partitions or 2) if strategy == "partition" else None,
        spread_level=(params.get("SpreadLevel") or "rack") if strategy == "spread" else None,
    )
    backend.placement_groups[name] = group
    return group


def arn_of(backend: HasGroups, name: str) -> str:
    where = f"{backend.region_name}:{backend.account_id}"
    return f"arn:{backend.partition}:ec2:{where}:placement-group/{name}"


def find(backend: HasGroups, name: str) -> Ec2PlacementGroup:
    group = backend.placement_groups.get(name)
    if group is None:
        raise Ec2Error("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    return group


def name_in(backend: HasGroups, placement: Mapping[str, Any]) -> str | None:
    """The name of the group that a launch names, by its name or by its id."""
    named, id_ = placement.get("GroupName"), placement.get("GroupId")
    if named or not id_:
        return named
    group_name = next((group.name for group in backend.placement_groups.values() if group.id == id_), None)
    if group_name is None:
        raise Ec2Error("InvalidPlacementGroupId.NotFound", f"The Placement Group ID '{id_}' does not exist")
    return group_name


def delete(backend: HasGroups, name: str, *, in_use: bool) -> None:
    find(backend, name)
    if in_use:
        raise Ec2Error("InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use")
    del backend.placement_groups[name]


def describe(group: Ec2PlacementGroup, tags: Mapping[str, str]) -> dict[str, Any]:
    return {
        "GroupId": group.id,
        "GroupName": group.name,
        "GroupArn": group.arn,
        "State": group.state,
        "Strategy": group.strategy,
        "PartitionCount": group.partition_count,
        "SpreadLevel": group.spread_level,
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
