"""An account for a test: reservations and groups made by AWS's own calls, and EC2's state afterwards."""

from __future__ import annotations

from typing import Any

import boto3

from local.aws import LocalAws
from providers.aws import AwsProvider
from providers.launch import (
    LaunchRequest,
    LaunchResult,
    Override,
    ReservationTarget,
    Template,
    TemplateRef,
)
from tests.unit.providers.aws.support import ManualClock

REGION = "us-east-1"
ZONE = "us-east-1a"
P5 = "p5.48xlarge"
POOL = [
    {"Type": "AWS::EC2::CapacityReservationPool"},
    {
        "Type": "AWS::ResourceGroups::Generic",
        "Parameters": [{"Name": "allowed-resource-types", "Values": ["AWS::EC2::CapacityReservation"]}],
    },
]


# The same after every reset: they come with local AWS.
IMAGES: dict[str, str] = {}


class World:
    def __init__(self, server: LocalAws) -> None:
        self.server = server
        self.control = server.control
        self.clock = ManualClock()
        self.aws = self.provider()
        self.ec2: Any = self.client("ec2")
        self._subnets: dict[str, str] = {}

    def provider(self, *, cluster: str = "blue") -> AwsProvider:
        return AwsProvider(
            cluster=cluster, region=REGION, endpoint_url=self.server.endpoint, clock=self.clock
        )

    def client(self, service: str) -> Any:
        session: Any = boto3
        return session.client(service, region_name=REGION, endpoint_url=self.server.endpoint)

    def image(self) -> str:
        """One of the images that every account sees."""
        if "" not in IMAGES:
            reply = self.ec2.describe_images(Filters=[{"Name": "name", "Values": ["amzn2-ami-hvm*x86_64*"]}])
            IMAGES[""] = str(reply["Images"][0]["ImageId"])
        return IMAGES[""]

    def subnet(self, zone: str = ZONE) -> str:
        if not self._subnets:
            self._subnets = {
                item["AvailabilityZone"]: str(item["SubnetId"])
                for item in self.ec2.describe_subnets()["Subnets"]
            }
        return self._subnets[zone]

    def reserve(self, count: int = 1, *, kind: str = P5, zone: str = ZONE, criteria: str = "targeted") -> str:
        reply = self.ec2.create_capacity_reservation(
            InstanceType=kind,
            InstancePlatform="Linux/UNIX",
            AvailabilityZone=zone,
            InstanceCount=count,
            InstanceMatchCriteria=criteria,
        )
        return str(reply["CapacityReservation"]["CapacityReservationId"])

    def shared(self) -> str:
        """A reservation that another account shares with this one."""
        reply = self.control.reservation(
            InstanceType=P5,
            InstancePlatform="Linux/UNIX",
            AvailabilityZone=ZONE,
            InstanceCount=1,
            owner_id="222222222222",
            shared_with=["123456789012"],
        )
        return str(reply["CapacityReservationId"])

    def arn(self, reservation: str) -> str:
        reply = self.ec2.describe_capacity_reservations(CapacityReservationIds=[reservation])
        return str(reply["CapacityReservations"][0]["CapacityReservationArn"])

    def group(self, *reservations: str, name: str = "gpu") -> str:
        groups = self.client("resource-groups")
        reply = groups.create_group(Name=name, Configuration=POOL)
        if reservations:
            groups.group_resources(Group=name, ResourceArns=[self.arn(r) for r in reservations])
        return str(reply["Group"]["GroupArn"])

    def template(self, target: ReservationTarget | None = None, **content: Any) -> TemplateRef:
        template = Template(
            image_id=content.pop("image_id", None) or self.image(),
            target=target or ReservationTarget(preference="none"),
            **content,
        )
        return self.aws.ensure_template(template, owner="gpu")

    def pool(self, kind: str = P5, zone: str = ZONE, priority: int | None = None) -> Override:
        return Override(instance_type=kind, zone=zone, subnet_id=self.subnet(zone), priority=priority)

    def launch(
        self,
        target: ReservationTarget | None = None,
        *,
        count: int = 1,
        token: str = "t-1",
        pools: tuple[Override, ...] = (),
        minimum: int = 0,
        **content: Any,
    ) -> LaunchResult:
        market = content.get("market", "on-demand")
        return self.aws.launch(
            LaunchRequest(
                token=token,
                template=self.template(target, **content),
                overrides=pools or (self.pool(),),
                count=count,
                minimum=minimum,
                market=market,
                tags={"karpenter.sh/nodepool": "gpu"},
            )
        )

    def free(self, reservation: str) -> int:
        """EC2's own count."""
        reply = self.ec2.describe_capacity_reservations(CapacityReservationIds=[reservation])
        return int(reply["CapacityReservations"][0]["AvailableInstanceCount"])

    def running(self) -> list[dict[str, Any]]:
        """The instances that EC2 itself shows as not ended."""
        return [
            instance
            for page in self.ec2.get_paginator("describe_instances").paginate()
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
            if instance["State"]["Name"] not in ("terminated", "shutting-down")
        ]
