"""A small vocabulary for the tests of local AWS: its EC2 client, its knobs and one-line launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from local.aws import Control

REGION = "us-east-1"
ZONE = "us-east-1a"
OTHER_ZONE = "us-east-1b"
TYPE = "m5.large"
OTHER_TYPE = "c5.large"
LINUX = "ami-760aaa0f"  # of moto's own images
WINDOWS = "ami-56ec3e2f"
OTHER_ACCOUNT = "222222222222"
# The first answer of a slow machine may take long: the readers of these never wait for a lost one.
ONCE = Config(
    retries={"mode": "standard", "total_max_attempts": 1}, max_pool_connections=20, read_timeout=600
)


# A client other than the SDK: only the server checks its requests.
UNCHECKED = ONCE.merge(Config(parameter_validation=False))


@cache
def _client(service: str, endpoint: str | None, region: str, config: Config = ONCE) -> Any:
    session: Any = boto3.Session(
        aws_access_key_id="testing", aws_secret_access_key="testing", region_name=region
    )
    return session.client(service, endpoint_url=endpoint, config=config)


@dataclass(frozen=True)
class Aws:
    endpoint: str | None
    control: Control

    def client(self, service: str = "ec2", *, region: str = REGION) -> Any:
        return _client(service, self.endpoint, region)

    @property
    def unchecked(self) -> Any:
        return _client("ec2", self.endpoint, REGION, UNCHECKED)

    # ---- reservations

    def reserve(self, ec2: Any, count: int = 1, **changes: Any) -> str:
        request = {
            "InstanceType": TYPE,
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": ZONE,
            "InstanceCount": count,
            "InstanceMatchCriteria": "targeted",
            **changes,
        }
        odcr = ec2.create_capacity_reservation(**request)["CapacityReservation"]
        return str(odcr["CapacityReservationId"])

    def group(self, name: str, *reservation_ids: str) -> str:
        client = self.client("resource-groups")
        arn = client.create_group(
            Name=name,
            Configuration=[
                {"Type": "AWS::EC2::CapacityReservationPool"},
                {
                    "Type": "AWS::ResourceGroups::Generic",
                    "Parameters": [
                        {"Name": "allowed-resource-types", "Values": ["AWS::EC2::CapacityReservation"]}
                    ],
                },
            ],
        )["Group"]["GroupArn"]
        arns = [
            f"arn:aws:ec2:{REGION}:123456789012:capacity-reservation/{reservation_id}"
            for reservation_id in reservation_ids
        ]
        if arns:
            answer = client.group_resources(Group=name, ResourceArns=arns)
            assert answer["Succeeded"] == arns, answer
        return str(arn)


def seen(ec2: Any, reservation_id: str) -> Any:
    """One reservation as describe shows it."""
    answer = ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id])
    (reservation,) = answer["CapacityReservations"]
    return reservation


def free(ec2: Any, reservation_id: str) -> int:
    return int(seen(ec2, reservation_id)["AvailableInstanceCount"])


def to_id(reservation_id: str, **more: str) -> dict[str, Any]:
    return {"CapacityReservationTarget": {"CapacityReservationId": reservation_id}, **more}


def to_group(arn: str, **more: str) -> dict[str, Any]:
    return {"CapacityReservationTarget": {"CapacityReservationResourceGroupArn": arn}, **more}


ONLY = {"CapacityReservationPreference": "capacity-reservations-only"}
OPEN = {"CapacityReservationPreference": "open"}
NONE = {"CapacityReservationPreference": "none"}


def run(
    ec2: Any, count: int = 1, *, specification: dict[str, Any] | None = None, **changes: Any
) -> list[Any]:
    """RunInstances; the instances as DescribeInstances shows them."""
    request: dict[str, Any] = {
        "ImageId": LINUX,
        "InstanceType": TYPE,
        "MinCount": count,
        "MaxCount": count,
        "Placement": {"AvailabilityZone": ZONE},
        **changes,
    }
    if specification is not None:
        request["CapacityReservationSpecification"] = specification
    created = ec2.run_instances(**request)["Instances"]
    return instances(ec2, [instance["InstanceId"] for instance in created])


def instances(ec2: Any, ids: Sequence[str]) -> list[Any]:
    answer = ec2.describe_instances(InstanceIds=list(ids))
    return [instance for reservation in answer["Reservations"] for instance in reservation["Instances"]]


def places(described: Sequence[Any]) -> list[str | None]:
    """The reservation of each instance, None for one outside."""
    return [instance.get("CapacityReservationId") for instance in described]


_names = iter(range(1_000_000))


def template(ec2: Any, **data: Any) -> str:
    answer = ec2.create_launch_template(
        LaunchTemplateName=f"template-{next(_names)}", LaunchTemplateData={"ImageId": LINUX, **data}
    )
    return str(answer["LaunchTemplate"]["LaunchTemplateId"])


def pool(template_id: str, *overrides: dict[str, Any]) -> dict[str, Any]:
    """A LaunchTemplateConfig; without overrides the usual type in the usual zone."""
    return {
        "LaunchTemplateSpecification": {"LaunchTemplateId": template_id, "Version": "$Latest"},
        "Overrides": list(overrides) or [{"InstanceType": TYPE, "AvailabilityZone": ZONE}],
    }


def fleet(ec2: Any, *configs: dict[str, Any], total: int = 1, kind: str = "on-demand", **more: Any) -> Any:
    return ec2.create_fleet(
        Type="instant",
        LaunchTemplateConfigs=list(configs),
        TargetCapacitySpecification={"TotalTargetCapacity": total, "DefaultTargetCapacityType": kind},
        **more,
    )


def launched(answer: Any) -> list[str]:
    return [instance_id for entry in answer["Instances"] for instance_id in entry["InstanceIds"]]


def codes(answer: Any) -> list[str]:
    return [error["ErrorCode"] for error in answer["Errors"]]


class refused:  # noqa: N801  reads well in a test: `with refused("Code")`
    """The block must fail with this EC2 error code."""

    def __init__(self, code: str, *, status: int = 400, text: str = ""):
        self.code, self.status, self.text = code, status, text

    def __enter__(self) -> None:
        self._raises = pytest.raises(ClientError)
        self._info = self._raises.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        handled = bool(self._raises.__exit__(kind, error, trace))
        if not handled:
            return False
        response: Any = self._info.value.response
        assert response["Error"]["Code"] == self.code, response["Error"]
        assert response["ResponseMetadata"]["HTTPStatusCode"] == self.status
        assert self.text in response["Error"]["Message"]
        return True
