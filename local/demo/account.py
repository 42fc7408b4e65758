"""The demo's account before the broker starts: reservations, a group, and a full reservation.

Everything is made through AWS's API, as a team's Terraform would, so that the broker sees a usual account.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import boto3

from broker.apis.names import TAG_RESERVATION

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client

REGION = "us-east-1"
CLUSTER = "demo"
PROFILE = "demo-node"
PLATFORM: Final = "Linux/UNIX"
ROLLOUT_SLOTS = 4
_POOL = [
    {"Type": "AWS::EC2::CapacityReservationPool"},
    {
        "Type": "AWS::ResourceGroups::Generic",
        "Parameters": [{"Name": "allowed-resource-types", "Values": ["AWS::EC2::CapacityReservation"]}],
    },
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleIds:
    """The ids that the example manifests need in place of their ${NAME}s."""

    names: Mapping[str, str]

    def fill(self, text: str) -> str:
        """The manifest with each ${NAME} replaced. Raises KeyError for a name that the account lacks."""
        for name, value in self.names.items():
            text = text.replace(f"${{{name}}}", value)
        if "${" in text:
            left = text[text.index("${") :].split("}")[0]
            raise KeyError(f"the example uses {left}}}, which the demo does not make")
        return text


def client(service: str, endpoint: str) -> Any:
    """A boto3 client of the local account."""
    return boto3.client(
        service,  # type: ignore[call-overload]
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id="demo",
        aws_secret_access_key="demo",
    )


def build(endpoint: str) -> ExampleIds:
    """Makes the demo's account. Raises botocore's ClientError where the endpoint refuses."""
    ec2: EC2Client = client("ec2", endpoint)
    p5 = _reserve(ec2, "p5.48xlarge", "us-east-1a", 2, "targeted", "training")
    g6a = _reserve(ec2, "g6.12xlarge", "us-east-1a", 1, "targeted", "inference")
    g6b = _reserve(ec2, "g6.12xlarge", "us-east-1b", 1, "targeted", "inference")
    open_ = _reserve(ec2, "m7i.4xlarge", "us-east-1b", 2, "open", "burst")
    full = _reserve(ec2, "g5.12xlarge", "us-east-1c", 1, "targeted", "another-user")
    web = _reserve(ec2, "c7i.4xlarge", "us-east-1a", 3, "targeted", "web")
    group = _group(ec2, endpoint, "inference", g6a, g6b)
    ids = {"ODCR_P5": p5, "ODCR_OPEN": open_, "ODCR_FULL": full, "ODCR_WEB": web}
    return ExampleIds(names={**plain(endpoint).names, **ids, "GROUP_ARN": group})


def teams(endpoint: str) -> ExampleIds:
    """The account of two teams: three p5.48xlarge for one, one for the other, tagged as Terraform would."""
    group, odcrs = _of_teams(client("ec2", endpoint), endpoint)
    return ExampleIds(names={**plain(endpoint).names, **odcrs, "GROUP_ARN": group})


def everything(endpoint: str) -> ExampleIds:
    """The account of all examples, after the purchases that some of them request."""
    ids = build(endpoint)
    ec2: EC2Client = client("ec2", endpoint)
    _of_teams(ec2, endpoint)
    for owner, instance_type in (("research/gpus", "g6.12xlarge"), ("production/gpus", "g5.12xlarge")):
        odcr = _reserve(ec2, instance_type, "us-east-1a", 2, "targeted", owner.partition("/")[0])
        _own(ec2, odcr, owner)
        _group(ec2, endpoint, f"capacity-broker.{CLUSTER}.{owner.replace('/', '--')}", odcr)
    return ids


def rollout(endpoint: str) -> ExampleIds:
    """The account of the rollout: a reservation of four, and a second image."""
    ids, ec2 = plain(endpoint).names, client("ec2", endpoint)
    odcr = _reserve(ec2, "c7i.4xlarge", "us-east-1a", ROLLOUT_SLOTS, "targeted", "web")
    return ExampleIds(names={**ids, "NEW_AMI": _image(ec2, other_than=ids["AMI"]), "ODCR_WEB": odcr})


def _of_teams(ec2: EC2Client, endpoint: str) -> tuple[str, dict[str, str]]:
    """The group of two teams, and the reservation of each."""
    odcrs = {}
    for team, count in (("vision", 3), ("speech", 1)):
        odcrs[team] = _reserve(ec2, "p5.48xlarge", "us-east-1a", count, "targeted", team)
        _own(ec2, odcrs[team], f"{team}/gpus")
    return _group(ec2, endpoint, "h100", *odcrs.values()), odcrs


def _own(ec2: EC2Client, odcr: str, owner: str) -> None:
    tag = {"Key": TAG_RESERVATION, "Value": owner}
    ec2.create_tags(Resources=[odcr], Tags=[tag])  # type: ignore[list-item]


def plain(endpoint: str) -> ExampleIds:
    """An account without reservations."""
    ec2: EC2Client = client("ec2", endpoint)
    _tag_network(ec2)
    _node_profile(endpoint)
    return ExampleIds(names={"AMI": _image(ec2)})


def _group(ec2: EC2Client, endpoint: str, name: str, *odcrs: str) -> str:
    groups = client("resource-groups", endpoint)
    arn: str = groups.create_group(Name=name, Configuration=_POOL)["Group"]["GroupArn"]
    groups.group_resources(Group=arn, ResourceArns=[_arn(ec2, odcr) for odcr in odcrs])
    return arn


def _tag_network(ec2: EC2Client) -> None:
    subnets = [subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"]]
    groups = [group["GroupId"] for group in ec2.describe_security_groups()["SecurityGroups"]]
    ec2.create_tags(Resources=[*subnets, *groups], Tags=[{"Key": "karpenter.sh/discovery", "Value": CLUSTER}])


def _node_profile(endpoint: str) -> None:
    iam = client("iam", endpoint)
    iam.create_role(RoleName=PROFILE, AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName=PROFILE)
    iam.add_role_to_instance_profile(InstanceProfileName=PROFILE, RoleName=PROFILE)


def _image(ec2: EC2Client, *, other_than: str = "") -> str:
    """Any x86 image of moto's own that has the platform of the reservations."""
    images = ec2.describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])["Images"]
    linux = (i["ImageId"] for i in images if i.get("PlatformDetails") == PLATFORM)
    return next(id_ for id_ in linux if id_ != other_than)


def _reserve(ec2: EC2Client, instance_type: str, zone: str, count: int, criteria: str, team: str) -> str:
    response = ec2.create_capacity_reservation(
        InstanceType=instance_type,
        InstancePlatform=PLATFORM,
        AvailabilityZone=zone,
        InstanceCount=count,
        InstanceMatchCriteria=criteria,  # type: ignore[arg-type]
        TagSpecifications=[
            {"ResourceType": "capacity-reservation", "Tags": [{"Key": "team", "Value": team}]}
        ],
    )
    return response["CapacityReservation"]["CapacityReservationId"]


def _arn(ec2: EC2Client, odcr: str) -> str:
    described = ec2.describe_capacity_reservations(CapacityReservationIds=[odcr])["CapacityReservations"]
    return described[0]["CapacityReservationArn"]


def rival(endpoint: str, ids: ExampleIds, odcr: str) -> str:
    """An instance of another user takes a slot, unseen by the broker. Returns the instance's id."""
    ec2: EC2Client = client("ec2", endpoint)
    odcr_ = ec2.describe_capacity_reservations(CapacityReservationIds=[odcr])["CapacityReservations"][0]
    response = ec2.run_instances(
        ImageId=ids.names["AMI"],
        InstanceType=odcr_["InstanceType"],  # type: ignore[arg-type]
        MinCount=1,
        MaxCount=1,
        Placement={"AvailabilityZone": odcr_["AvailabilityZone"]},
        CapacityReservationSpecification={"CapacityReservationTarget": {"CapacityReservationId": odcr}},
    )
    return response["Instances"][0]["InstanceId"]


def leave(endpoint: str, instance: str) -> None:
    """The instance of the other user ends."""
    client("ec2", endpoint).terminate_instances(InstanceIds=[instance])
