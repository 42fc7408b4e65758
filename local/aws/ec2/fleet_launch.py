"""Makes a launch of a fleet's pool, with everything that its template requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moto import settings
from moto.ec2.models.instances import Reservation

from local.aws.ec2 import launches, templates
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.launch_needs import SPOT, LaunchNeeds
from local.aws.ec2.launches import Launch
from local.aws.ec2.pools import FleetPool
from local.aws.ec2.world import world


@dataclass(frozen=True)
class Run:
    backend: Any
    fleet_id: str
    tags: list[dict[str, Any]]
    codes: Mapping[str, str]

    def __call__(self, pool: FleetPool, needs: LaunchNeeds, count: int, spill: bool) -> Reservation:
        data = pool.data
        launch = Launch(
            data=data,
            needs=needs,
            action="CreateFleet",
            at_least=1,
            at_most=count,
            spill=spill,
            facts={**pool.template, "Priority": pool.override.get("Priority")},
        )
        subnet_id = templates.subnet_of(data) or _default_subnet(self.backend, needs.zone)
        interfaces = launches.interfaces_of(data) or [{"DeviceIndex": 0, "DeleteOnTermination": True}]
        tags = _tags(self.fleet_id, pool, self.tags)
        reservation: Reservation = self.backend.run_instances(
            data["ImageId"],
            count,
            templates.user_data_of(data),
            [],
            launch=launch,
            instance_type=data["InstanceType"],
            # moto walks through all that a Region offers, only to raise if it validates types at all
            is_instance_type_default=not settings.EC2_ENABLE_INSTANCE_TYPE_VALIDATION,
            region_name=self.backend.region_name,
            subnet_id=subnet_id,
            placement_hostid=(data.get("Placement") or {}).get("HostId"),
            key_name=data.get("KeyName"),
            security_group_ids=_security_groups(self.backend, data, subnet_id),
            nics=interfaces,
            private_ip=data.get("PrivateIpAddress"),
            ebs_optimized=bool(data.get("EbsOptimized")),
            metadata_options=data.get("MetadataOptions") or {},
            monitoring_state="enabled" if (data.get("Monitoring") or {}).get("Enabled") else "disabled",
            instance_market_options=SPOT if needs.market == SPOT else None,
            block_device_mappings=templates.volumes_of(self.backend, data),
            tags=tags,
            fleet_id=self.fleet_id,
        )
        if interface_tags := tags.get("network-interface"):
            for instance in reservation.instances:
                for interface in instance.nics.values():
                    interface.add_tags(interface_tags)
        return reservation


def runner(backend: Any, fleet_id: str, tags: list[dict[str, Any]]) -> Run:
    return Run(backend, fleet_id, tags, world().codes)


def _tags(fleet_id: str, pool: FleetPool, requested: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    tags = templates.tags_of(pool.data.get("TagSpecifications"), requested)
    tags["instance"] = {
        **tags.get("instance", {}),
        "aws:ec2:fleet-id": fleet_id,
        "aws:ec2launchtemplate:id": pool.template["LaunchTemplateId"],
        "aws:ec2launchtemplate:version": pool.template["Version"],
    }
    return tags


def _default_subnet(backend: Any, zone: str) -> str:
    subnet = backend.get_default_subnets().get(zone)
    if subnet is None:
        raise Ec2Error("MissingInput", f"No default subnet for availability zone: '{zone}'.")
    return str(subnet.id)


def _security_groups(backend: Any, data: Mapping[str, Any], subnet_id: str) -> list[Any]:
    """The requested groups, else the network's default group; all of the subnet's own network."""
    vpc_id = backend.get_subnet(subnet_id).vpc_id
    named = [backend.get_security_group_by_name_or_id(name) for name in data.get("SecurityGroups") or []]
    ids = templates.security_groups_of(data)
    groups = named + [backend.get_security_group_from_id(group_id) for group_id in ids]
    for name, group in zip([*(data.get("SecurityGroups") or []), *ids], groups, strict=True):
        if group is None:
            raise Ec2Error("InvalidGroup.NotFound", f"The security group '{name}' does not exist")
        if group.vpc_id != vpc_id:
            raise Ec2Error(
                "InvalidParameter",
                f"Security group {group.id} and subnet {subnet_id} belong to different networks.",
            )
    if not groups:
        default = backend.get_security_group_from_name("default", vpc_id)
        groups = [default] if default is not None else []
    return groups
