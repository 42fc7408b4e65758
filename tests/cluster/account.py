"""An AWS account for a test: resources made by AWS's own calls, and EC2's own state afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol

import boto3
from botocore.awsrequest import AWSRequest

from local.aws.control import Control
from local.aws.ec2_responses.pipeline import NOW
from providers.names import TAG_CLUSTER
from tests.cluster.objects import PROFILE

REGION = "us-east-1"
ACCOUNT = "123456789012"
CLUSTER = "blue"
A, B, C = "us-east-1a", "us-east-1b", "us-east-1c"
POOL = [
    {"Type": "AWS::EC2::CapacityReservationPool"},
    {
        "Type": "AWS::ResourceGroups::Generic",
        "Parameters": [{"Name": "allowed-resource-types", "Values": ["AWS::EC2::CapacityReservation"]}],
    },
]
ALIVE = ("pending", "running", "stopping", "stopped")

Json = dict[str, Any]


class Server(Protocol):
    """Local AWS, in this process or another."""

    endpoint: str
    control: Control


@lru_cache
def _client(service: str, endpoint: str) -> Any:
    """All tests of a process use the same server; a client takes longer to make than most calls."""
    session: Any = boto3
    client = session.client(service, region_name=REGION, endpoint_url=endpoint)
    client.meta.events.register("before-sign", _without_lag)
    return client


def _without_lag(request: AWSRequest, **_: object) -> None:
    """The test reads EC2's present state; only the broker reads the delayed state."""
    request.headers[NOW] = "1"


@lru_cache
def _image(endpoint: str, pattern: str) -> str:
    """An image that local AWS comes with, the same after every reset."""
    reply = _client("ec2", endpoint).describe_images(Filters=[{"Name": "name", "Values": [pattern]}])
    return str(reply["Images"][0]["ImageId"])


class Account:
    """A default network with a role for nodes; a test adds reservations and groups."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.ec2: Any = self.client("ec2")
        self.groups: Any = self.client("resource-groups")
        self.subnets: Mapping[str, str] = {
            s["AvailabilityZone"]: s["SubnetId"] for s in self.ec2.describe_subnets()["Subnets"]
        }
        self.security_group: str = self.ec2.describe_security_groups(
            Filters=[{"Name": "group-name", "Values": ["default"]}]
        )["SecurityGroups"][0]["GroupId"]
        self.image = self.image_named("amzn2-ami-hvm*x86_64*")
        iam = self.client("iam")
        iam.create_role(RoleName=PROFILE, AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName=PROFILE)
        iam.add_role_to_instance_profile(InstanceProfileName=PROFILE, RoleName=PROFILE)

    def client(self, service: str) -> Any:
        return _client(service, self.server.endpoint)

    def image_named(self, pattern: str) -> str:
        return _image(self.server.endpoint, pattern)

    def odcr(
        self,
        kind: str = "m5.large",
        zone: str = A,
        count: int = 1,
        *,
        criteria: str = "targeted",
        platform: str = "Linux/UNIX",
        **more: Any,
    ) -> str:
        """Creates a reservation. Returns its id."""
        reply = self.ec2.create_capacity_reservation(
            InstanceType=kind,
            InstancePlatform=platform,
            AvailabilityZone=zone,
            InstanceCount=count,
            InstanceMatchCriteria=criteria,
            **more,
        )
        return str(reply["CapacityReservation"]["CapacityReservationId"])

    def capacity_block(
        self,
        *,
        starts: timedelta = timedelta(hours=-1),
        ends: timedelta = timedelta(days=1),
        state: str = "active",
        **more: Any,
    ) -> str:
        """Creates a Capacity Block of one p5.48xlarge in zone A; `starts` and `ends` are relative to now.
        Returns its id."""
        now = datetime.now(UTC).replace(microsecond=0)
        reply = self.server.control.reservation(
            InstanceType="p5.48xlarge",
            InstancePlatform="Linux/UNIX",
            AvailabilityZone=A,
            InstanceCount=1,
            InstanceMatchCriteria="targeted",
            reservation_type="capacity-block",
            state=state,
            StartDate=(now + starts).isoformat(),
            EndDate=(now + ends).isoformat(),
            EndDateType="limited",
            **more,
        )
        return str(reply["CapacityReservationId"])

    def group(self, *odcrs: str, name: str = "team") -> str:
        """Creates a group. Returns its ARN."""
        reply = self.groups.create_group(Name=name, Configuration=POOL)["Group"]
        if odcrs:
            self.join(name, *odcrs)
        return str(reply["GroupArn"])

    def join(self, group: str, *odcrs: str) -> None:
        arns = [self.reservation(odcr)["CapacityReservationArn"] for odcr in odcrs]
        for start in range(0, len(arns), 10):  # the maximum for one call
            self.groups.group_resources(Group=group, ResourceArns=arns[start : start + 10])

    def reservation(self, odcr: str) -> Json:
        """EC2's own description."""
        reply = self.ec2.describe_capacity_reservations(CapacityReservationIds=[odcr])
        return dict(reply["CapacityReservations"][0])

    def free(self, odcr: str) -> int:
        return int(self.reservation(odcr)["AvailableInstanceCount"])

    def rival(self, odcr: str, count: int = 1) -> list[str]:
        """Instances of another user take slots of a reservation."""
        where = self.reservation(odcr)
        reply = self.ec2.run_instances(
            ImageId=self.image,
            InstanceType=where["InstanceType"],
            MinCount=count,
            MaxCount=count,
            Placement={"AvailabilityZone": where["AvailabilityZone"]},
            CapacityReservationSpecification={"CapacityReservationTarget": {"CapacityReservationId": odcr}},
        )
        return [str(i["InstanceId"]) for i in reply["Instances"]]

    def instances(self, *, own_only: bool = True) -> list[Json]:
        """The instances that EC2 shows and that have not ended: with the cluster's tag, or all."""
        chosen = [{"Name": "instance-state-name", "Values": list(ALIVE)}]
        if own_only:
            chosen.append({"Name": f"tag:{TAG_CLUSTER}", "Values": [CLUSTER]})
        return [
            instance
            for page in self.ec2.get_paginator("describe_instances").paginate(Filters=chosen)
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]

    def instance(self, id_: str) -> Json:
        return dict(self.ec2.describe_instances(InstanceIds=[id_])["Reservations"][0]["Instances"][0])

    def templates(self) -> list[Json]:
        """Launch templates with the newest version's data under `Data`."""
        reply = self.ec2.describe_launch_templates()["LaunchTemplates"]
        return [t | {"Data": self.template_data(t["LaunchTemplateName"])} for t in reply]

    def template_names(self) -> list[str]:
        return [str(t["LaunchTemplateName"]) for t in self.ec2.describe_launch_templates()["LaunchTemplates"]]

    def template_data(self, name: str) -> Json:
        versions = self.ec2.describe_launch_template_versions(LaunchTemplateName=name, Versions=["$Latest"])
        return dict(versions["LaunchTemplateVersions"][0]["LaunchTemplateData"])

    def fleets(self) -> list[Json]:
        """The parameters of every CreateFleet that arrived, oldest first."""
        return [call["params"] for call in self.server.control.log("CreateFleet")]


def tags(item: Mapping[str, Any]) -> dict[str, str]:
    listed: Sequence[Mapping[str, str]] = item.get("Tags", ())
    return {tag["Key"]: tag["Value"] for tag in listed}


def pools(fleet: Mapping[str, Any]) -> list[Json]:
    """The overrides of a CreateFleet; each is a pool."""
    return [override for config in fleet["LaunchTemplateConfigs"] for override in config["Overrides"]]
