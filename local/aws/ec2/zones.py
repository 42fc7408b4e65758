"""Zones by name or id, and which instance types they offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend, Zone
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

from local.aws.ec2 import errors


class HasZones(Protocol):
    """The attributes of an EC2 backend that this module reads."""

    account_id: str
    region_name: str
    partition: str


def by_name(backend: HasZones) -> dict[str, Zone]:
    return {zone.name: zone for zone in RegionsAndZonesBackend.zones.get(backend.region_name, [])}


def id_of(backend: HasZones, name: str | None) -> str | None:
    zone = by_name(backend).get(name or "")
    return zone.zone_id if zone else None


def named(backend: HasZones, zone_id: str) -> str:
    for zone in by_name(backend).values():
        if zone.zone_id == zone_id:
            return zone.name
    raise errors.invalid("AvailabilityZoneId", zone_id, f"{backend.region_name} has no such zone.")


def of_request(backend: HasZones, params: Mapping[str, Any]) -> Zone:
    """The zone that a request names by `AvailabilityZone` or `AvailabilityZoneId`."""
    name, zone_id = params.get("AvailabilityZone"), params.get("AvailabilityZoneId")
    if name and zone_id:
        raise errors.combination("AvailabilityZone and AvailabilityZoneId can't be specified together")
    if not name and not zone_id:
        raise errors.missing("AvailabilityZone")
    name = name or named(backend, str(zone_id))
    zone = by_name(backend).get(name)
    if zone is None:
        raise errors.invalid("AvailabilityZone", name, f"{backend.region_name} has no such zone.")
    return zone


def offered(backend: HasZones, zone: str) -> list[str]:
    """The instance types that a zone has, by moto's data of 2025."""
    everywhere = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(backend.region_name, [])
    return [offer["InstanceType"] for offer in everywhere if offer["Location"] == zone]


def architectures(instance_type: str) -> list[str]:
    known = INSTANCE_TYPES.get(instance_type, {})
    return list(known.get("ProcessorInfo", {}).get("SupportedArchitectures", []))


def require_offering(backend: HasZones, instance_type: str, zone: str) -> None:
    """Refuses a type that a zone doesn't have, if the control plane has enabled this check."""
    if instance_type not in offered(backend, zone):
        raise errors.Ec2Error(
            "Unsupported",
            f"Your requested instance type ({instance_type}) is not supported in your requested "
            f"Availability Zone ({zone}).",
        )
