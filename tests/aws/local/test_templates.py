"""DescribeInstances shows the values of the launch template; and templates themselves."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.aws.local.kit import (
    LINUX,
    TYPE,
    ZONE,
    Aws,
    fleet,
    instances,
    launched,
    pool,
    refused,
    template,
)

USER_DATA = base64.b64encode(b"#!/bin/sh\n").decode()


@pytest.fixture
def network(ec2: Any) -> dict[str, str]:
    """A network of its own, so that nothing comes from defaults."""
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/24", AvailabilityZone=ZONE)["Subnet"]
    groups = {
        name: ec2.create_security_group(GroupName=name, Description=name, VpcId=vpc)["GroupId"]
        for name in ("nodes", "storage")
    }
    return {"vpc": vpc, "subnet": subnet["SubnetId"], **groups}


@pytest.fixture
def profile(aws: Aws) -> str:
    created = aws.client("iam").create_instance_profile(InstanceProfileName="node")["InstanceProfile"]
    return str(created["Arn"])


def full_template(network: dict[str, str], groups: dict[str, Any]) -> dict[str, Any]:
    return {
        "InstanceType": TYPE,
        "UserData": USER_DATA,
        "IamInstanceProfile": {"Name": "node"},
        "EbsOptimized": True,
        "Monitoring": {"Enabled": True},
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 2,
            "InstanceMetadataTags": "enabled",
        },
        "Placement": {"Tenancy": "dedicated"},
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 50, "VolumeType": "gp3"}},
            {"DeviceName": "/dev/xvdb", "Ebs": {"VolumeSize": 7, "Encrypted": True}},
        ],
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [{"Key": "of", "Value": "template"}]},
            {"ResourceType": "volume", "Tags": [{"Key": "disk", "Value": "yes"}]},
        ],
        **groups,
    }


@pytest.mark.parametrize("interfaces", [False, True])
@pytest.mark.parametrize("way", ["fleet", "run"])
def test_instances_show_every_field_of_the_template(
    aws: Aws, ec2: Any, network: dict[str, str], profile: str, interfaces: bool, way: str
) -> None:
    group_ids = [network["nodes"], network["storage"]]
    if interfaces:
        groups: dict[str, Any] = {
            "NetworkInterfaces": [
                {"DeviceIndex": 0, "NetworkCardIndex": 0, "Groups": group_ids, "DeleteOnTermination": True}
            ]
        }
    else:
        groups = {"SecurityGroupIds": group_ids}
    template_id = template(ec2, **full_template(network, groups))
    if way == "fleet":
        answer = fleet(
            ec2,
            pool(template_id, {"SubnetId": network["subnet"], "AvailabilityZone": ZONE}),
            TagSpecifications=[
                {"ResourceType": "instance", "Tags": [{"Key": "by", "Value": "fleet"}]},
                {"ResourceType": "fleet", "Tags": [{"Key": "whole", "Value": "fleet"}]},
            ],
        )
        assert answer["Errors"] == []
        ids = launched(answer)
        (shown,) = ec2.describe_fleets(FleetIds=[answer["FleetId"]])["Fleets"]
        assert shown["Tags"] == [{"Key": "whole", "Value": "fleet"}]
    else:
        where = (
            {"NetworkInterfaces": [{**groups["NetworkInterfaces"][0], "SubnetId": network["subnet"]}]}
            if interfaces
            else {"SubnetId": network["subnet"]}
        )
        reply = ec2.run_instances(
            LaunchTemplate={"LaunchTemplateId": template_id}, MinCount=1, MaxCount=1, **where
        )
        ids = [instance["InstanceId"] for instance in reply["Instances"]]
    (instance,) = instances(ec2, ids)
    assert {group["GroupId"] for group in instance["SecurityGroups"]} == set(group_ids)
    (interface,) = instance["NetworkInterfaces"]
    assert sorted(group["GroupId"] for group in interface["Groups"]) == sorted(group_ids)
    assert interface["SubnetId"] == instance["SubnetId"] == network["subnet"]
    assert instance["VpcId"] == network["vpc"]
    assert instance["IamInstanceProfile"]["Arn"] == profile
    assert instance["EbsOptimized"] is True
    assert instance["Monitoring"]["State"] == "enabled"
    options = instance["MetadataOptions"]
    assert (options["HttpTokens"], options["HttpPutResponseHopLimit"]) == ("required", 2)
    assert options["InstanceMetadataTags"] == "enabled"
    assert instance["Placement"]["AvailabilityZone"] == ZONE
    assert instance["Placement"]["AvailabilityZoneId"] == "use1-az6"
    assert instance["Placement"]["Tenancy"] == "dedicated"
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert tags["of"] == "template"
    assert tags["aws:ec2launchtemplate:id"] == template_id
    if way == "fleet":
        assert tags["by"] == "fleet"
        assert tags["aws:ec2:fleet-id"] == shown["FleetId"]
    attribute = ec2.describe_instance_attribute(InstanceId=ids[0], Attribute="userData")
    assert attribute["UserData"]["Value"] == USER_DATA
    disks = {m["DeviceName"]: m["Ebs"]["VolumeId"] for m in instance["BlockDeviceMappings"]}
    volumes = {v["VolumeId"]: v for v in ec2.describe_volumes(VolumeIds=list(disks.values()))["Volumes"]}
    assert volumes[disks["/dev/xvda"]]["Size"] == 50
    assert volumes[disks["/dev/xvdb"]]["Size"] == 7
    assert volumes[disks["/dev/xvda"]]["Tags"] == [{"Key": "disk", "Value": "yes"}]


def test_overrides_win_over_the_template(aws: Aws, ec2: Any, network: dict[str, str]) -> None:
    other = "ami-1e749f67"
    template_id = template(ec2, InstanceType="t3.micro", SecurityGroupIds=[network["nodes"]], KeyName="old")
    override = {"InstanceType": TYPE, "SubnetId": network["subnet"], "ImageId": other, "Priority": 3.0}
    answer = fleet(ec2, pool(template_id, override))
    (instance,) = instances(ec2, launched(answer))
    assert (instance["InstanceType"], instance["ImageId"]) == (TYPE, other)
    assert instance["SubnetId"] == network["subnet"]
    assert answer["Instances"][0]["LaunchTemplateAndOverrides"]["Overrides"] == override


def test_many_interfaces_keep_their_cards(aws: Aws, ec2: Any, network: dict[str, str]) -> None:
    interfaces = [
        {
            "DeviceIndex": 0 if card == 0 else 1,
            "NetworkCardIndex": card,
            "InterfaceType": "efa",
            "Groups": [network["nodes"]],
            "DeleteOnTermination": True,
        }
        for card in range(4)
    ]
    template_id = template(ec2, InstanceType="p5.48xlarge", NetworkInterfaces=interfaces)
    answer = fleet(ec2, pool(template_id, {"SubnetId": network["subnet"]}))
    (instance,) = instances(ec2, launched(answer))
    cards = [
        (i["Attachment"]["NetworkCardIndex"], i["Attachment"]["DeviceIndex"], i["InterfaceType"])
        for i in instance["NetworkInterfaces"]
    ]
    assert sorted(cards) == [(0, 0, "efa"), (1, 1, "efa"), (2, 1, "efa"), (3, 1, "efa")]
    ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    left = ec2.describe_network_interfaces(Filters=[{"Name": "subnet-id", "Values": [network["subnet"]]}])
    assert left["NetworkInterfaces"] == []


def test_groups_of_another_network_are_refused(aws: Aws, ec2: Any, network: dict[str, str]) -> None:
    template_id = template(ec2, SecurityGroupIds=[network["nodes"]])
    answer = fleet(ec2, pool(template_id))  # in the default network
    assert answer["Instances"] == []
    (error,) = answer["Errors"]
    assert error["ErrorCode"] == "InvalidParameter"
    assert "different networks" in error["ErrorMessage"]


def test_a_subnet_without_addresses(aws: Aws, ec2: Any, network: dict[str, str]) -> None:
    small = ec2.create_subnet(VpcId=network["vpc"], CidrBlock="10.1.9.0/28", AvailabilityZone=ZONE)
    subnet = small["Subnet"]["SubnetId"]
    reservation_id = aws.reserve(ec2, 20, InstanceMatchCriteria="open")
    answer = fleet(
        ec2,
        pool(template(ec2, SecurityGroupIds=[network["nodes"]]), {"InstanceType": TYPE, "SubnetId": subnet}),
        total=20,
    )
    assert answer["Instances"] == []
    assert [error["ErrorCode"] for error in answer["Errors"]] == ["InsufficientFreeAddressesInSubnet"]
    (reservation,) = ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id])[
        "CapacityReservations"
    ]
    assert reservation["AvailableInstanceCount"] == 20
    assert ec2.describe_instances()["Reservations"] == []


def test_templates_have_pages(aws: Aws, ec2: Any) -> None:
    ids = {template(ec2) for _ in range(31)}
    for size in (None, 10):
        pages = ec2.get_paginator("describe_launch_templates").paginate(
            PaginationConfig={"PageSize": size} if size else {}
        )
        listed = [entry["LaunchTemplateId"] for page in pages for entry in page["LaunchTemplates"]]
        assert len(listed) == 31
        assert set(listed) == ids
    with refused("InvalidLaunchTemplateId.NotFound"):
        ec2.describe_launch_templates(LaunchTemplateIds=["lt-00000000000000000"])
    template_id = ids.pop()
    for _ in range(20):
        ec2.create_launch_template_version(
            LaunchTemplateId=template_id, LaunchTemplateData={"ImageId": LINUX}
        )
    versions = ec2.get_paginator("describe_launch_template_versions").paginate(LaunchTemplateId=template_id)
    assert sum(len(page["LaunchTemplateVersions"]) for page in versions) == 21


def test_template_is_created_at_the_clocks_time(aws: Aws, ec2: Any) -> None:
    aws.control.freeze()
    template_id = template(ec2)
    (shown,) = ec2.describe_launch_templates(LaunchTemplateIds=[template_id])["LaunchTemplates"]
    aws.control.advance(86400)
    assert (aws.control.now() - shown["CreateTime"]).total_seconds() >= 86400


LIVES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two interfaces": {"NetworkInterfaces": [{"DeviceIndex": 0}, {"DeviceIndex": 1}]},
    "a kept interface": {"NetworkInterfaces": [{"DeviceIndex": 0, "DeleteOnTermination": False}]},
    "a profile": {"IamInstanceProfile": {"Name": "node"}},
    "a kept volume": {
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 7, "DeleteOnTermination": False}}
        ]
    },
    "no volume of its own": {
        "BlockDeviceMappings": [{"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"}]
    },
    "explicitly unprotected": {"DisableApiTermination": False, "DisableApiStop": False},
    "protected": {"DisableApiTermination": True, "DisableApiStop": True},
}


def _launched_by_template(ec2: Any, way: str, template_id: str) -> str:
    if way == "fleet":
        return launched(fleet(ec2, pool(template_id, {"InstanceType": TYPE})))[0]
    by = {"LaunchTemplateId": template_id}
    reply = ec2.run_instances(LaunchTemplate=by, InstanceType=TYPE, MinCount=1, MaxCount=1)
    return str(reply["Instances"][0]["InstanceId"])


@pytest.mark.covers("FLT-72")
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("way", ["fleet", "run"])
def test_instance_of_a_template_is_stopped_started_and_terminated(
    ec2: Any, profile: str, way: str, life: str
) -> None:
    template_id = template(ec2, **LIVES[life])
    instance_id = _launched_by_template(ec2, way, template_id)
    ec2.delete_launch_template(LaunchTemplateId=template_id)  # its instances outlive it

    def state() -> str:
        return str(instances(ec2, [instance_id])[0]["State"]["Name"])

    if life == "protected":
        with refused("OperationNotPermitted"):
            ec2.stop_instances(InstanceIds=[instance_id])
        with refused("OperationNotPermitted"):
            ec2.terminate_instances(InstanceIds=[instance_id])
        assert state() == "running"
        ec2.modify_instance_attribute(InstanceId=instance_id, DisableApiStop={"Value": False})
        ec2.modify_instance_attribute(InstanceId=instance_id, DisableApiTermination={"Value": False})
    ec2.stop_instances(InstanceIds=[instance_id])
    assert state() == "stopped"
    ec2.start_instances(InstanceIds=[instance_id])
    assert state() == "running"
    ec2.stop_instances(InstanceIds=[instance_id])
    ec2.terminate_instances(InstanceIds=[instance_id])
    assert state() == "terminated"
    ec2.terminate_instances(InstanceIds=[instance_id])
    assert state() == "terminated"
