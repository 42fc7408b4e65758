"""The parameters of a launch, merged from its launch template, the request and the fleet's overrides.

A parameter of the request or the override replaces the template's parameter of the same name (EC2 User
Guide, "Launch instances from a launch template": "Any parameters that you specify override the same
parameters in the launch template"). All are in the form of `LaunchTemplateData`.

moto answers DescribeLaunchTemplates and ...Versions with the first 15 only; here they have pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moto.ec2.utils import parse_user_data

from local.aws.ec2 import errors, zones
from local.aws.ec2.launch_needs import MARKETS, ON_DEMAND, SPOT, CapacityTarget

LaunchData = dict[str, Any]

ROOT_GIB = 8

# RunInstances parameters that describe the call, not the instance
NOT_LAUNCH_DATA = frozenset(
    {"MinCount", "MaxCount", "ClientToken", "DryRun", "LaunchTemplate", "AdditionalInfo"}
)
# fields of an override that are the instance's, and those that steer the fleet
OVERRIDES = (
    "InstanceType",
    "ImageId",
    "SubnetId",
    "KeyName",
    "BlockDeviceMappings",
    "IamInstanceProfile",
    "MetadataOptions",
)


def version_of(backend: Any, specification: Mapping[str, Any]) -> tuple[Any, Any]:
    """The template and the version that a LaunchTemplateSpecification names, or EC2's NotFound."""
    if template_id := specification.get("LaunchTemplateId"):
        template = backend.get_launch_template(template_id)
    elif name := specification.get("LaunchTemplateName"):
        template = backend.get_launch_template_by_name(name)
    else:
        raise errors.missing("LaunchTemplateId or LaunchTemplateName")
    return template, template.get_version(specification.get("Version") or template.default_version_number)


def of_request(backend: Any, params: Mapping[str, Any]) -> LaunchData:
    """The parameters of a RunInstances."""
    data: LaunchData = {}
    if params.get("LaunchTemplate"):
        _, version = version_of(backend, params["LaunchTemplate"])
        data.update(version.data)
    data.update({k: v for k, v in params.items() if k not in NOT_LAUNCH_DATA and v is not None})
    return data


def of_override(backend: Any, data: Mapping[str, Any], override: Mapping[str, Any]) -> LaunchData:
    """The parameters of one pool of a fleet. A zone in the override replaces the template's subnet."""
    merged = dict(data)
    merged.update({k: override[k] for k in OVERRIDES if override.get(k) is not None})
    placement = {**(data.get("Placement") or {}), **(override.get("Placement") or {})}
    zone = override.get("AvailabilityZone")
    if zone_id := override.get("AvailabilityZoneId"):
        zone = zones.named(backend, zone_id)
    if zone:
        placement["AvailabilityZone"] = zone
    if placement:
        merged["Placement"] = placement
    if override.get("SubnetId") or zone:
        # an interface of the template would keep its own subnet, but the override decides the pool's zone
        merged["NetworkInterfaces"] = [
            {k: v for k, v in interface.items() if k != "SubnetId"}
            for interface in data.get("NetworkInterfaces") or []
        ]
        if not override.get("SubnetId"):
            merged.pop("SubnetId", None)
    return merged


def subnet_of(data: Mapping[str, Any]) -> str | None:
    if data.get("SubnetId"):
        return str(data["SubnetId"])
    return next((nic["SubnetId"] for nic in primary_first(data) if nic.get("SubnetId")), None)


def security_groups_of(data: Mapping[str, Any]) -> list[str]:
    """Ids of the security groups of the primary interface, which are the instance's."""
    interfaces = primary_first(data)
    if interfaces and interfaces[0].get("Groups"):
        return list(dict.fromkeys(interfaces[0]["Groups"]))
    return list(dict.fromkeys(data.get("SecurityGroupIds") or []))


def primary_first(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    def position(interface: Mapping[str, Any]) -> tuple[int, int]:
        return int(interface.get("NetworkCardIndex") or 0), int(interface.get("DeviceIndex") or 0)

    return sorted(data.get("NetworkInterfaces") or [], key=position)


def market_of(data: Mapping[str, Any], default: str = ON_DEMAND) -> str:
    market = (data.get("InstanceMarketOptions") or {}).get("MarketType") or default
    if market not in MARKETS:
        raise errors.invalid("MarketType", market, f"Valid values: {', '.join(sorted(MARKETS))}.")
    return str(market)


def tags_of(*specifications: list[dict[str, Any]] | None) -> dict[str, dict[str, str]]:
    """resource type -> key -> value; a later specification wins."""
    out: dict[str, dict[str, str]] = {}
    for specification in specifications:
        for entry in specification or []:
            tags = {tag["Key"]: tag.get("Value", "") for tag in entry.get("Tags") or []}
            out.setdefault(entry.get("ResourceType", ""), {}).update(tags)
    return out


def block_devices_of(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Mappings that moto can make volumes of: those with a disk of their own."""
    out = []
    for mapping in data.get("BlockDeviceMappings") or []:
        if "Ebs" in mapping and mapping.get("NoDevice") is None:
            out.append({**mapping, "Ebs": {"DeleteOnTermination": True, **mapping["Ebs"]}})
    return out


def volumes_of(backend: Any, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The template's volumes, and the image's root volume if the template does not have it."""
    mappings = block_devices_of(data)
    image = backend.amis.get(data.get("ImageId"))
    root = (image.root_device_name if image else None) or "/dev/sda1"
    if not any(mapping.get("DeviceName") == root for mapping in mappings):
        default = {"DeviceName": root, "Ebs": {"VolumeSize": ROOT_GIB, "DeleteOnTermination": True}}
        mappings.insert(0, default)
    return mappings


def user_data_of(data: Mapping[str, Any]) -> Any:
    value = data.get("UserData")
    return parse_user_data(value) if isinstance(value, str | bytes) else value


def check(data: Mapping[str, Any], codes: Mapping[str, str]) -> None:
    """Refuses, for CreateLaunchTemplate, a specification that no launch could have."""
    CapacityTarget.of(data.get("CapacityReservationSpecification"), codes)
    if (data.get("InstanceMarketOptions") or {}).get("MarketType"):
        market_of(data, SPOT)
