"""What the broker does in AWS, done by a user who has the broker's policies and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import boto3
import pytest
from botocore.exceptions import ClientError
from moto.core.authorization import enable_iam_authentication

from providers.aws import AwsProvider
from providers.local import LocalAws
from providers.model import (
    LaunchRequest,
    OdcrRequest,
    Override,
    ReservationTarget,
    Selector,
    Template,
)

REGION, ZONE, TYPE = "us-east-1", "us-east-1a", "p5.48xlarge"


@contextmanager
def user_with(aws: LocalAws, policies: Sequence[str]) -> Iterator[tuple[AwsProvider, Any]]:
    """That user's provider and client of EC2, while AWS asks for permissions."""
    iam: Any = boto3.client("iam", endpoint_url=aws.endpoint, region_name=REGION)
    iam.create_user(UserName="broker")
    for number, document in enumerate(policies):
        iam.put_user_policy(UserName="broker", PolicyName=f"p-{number}", PolicyDocument=document)
    key = iam.create_access_key(UserName="broker")["AccessKey"]
    keys = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    with mock.patch.dict(os.environ, keys), enable_iam_authentication():
        session: Any = boto3.Session(region_name=REGION)
        own = session.client("ec2", endpoint_url=aws.endpoint)
        yield AwsProvider(cluster="demo", region=REGION, endpoint_url=aws.endpoint), own
    iam.delete_access_key(UserName="broker", AccessKeyId=key["AccessKeyId"])
    for number, _ in enumerate(policies):
        iam.delete_user_policy(UserName="broker", PolicyName=f"p-{number}")
    iam.delete_user(UserName="broker")


@contextmanager
def denied() -> Iterator[None]:
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        yield


def launches(aws: LocalAws, policies: Sequence[str], *, group: str, odcr: str) -> None:
    """From the look at the account to the end of an instance; not what is another's."""
    ec2: Any = boto3.client("ec2", endpoint_url=aws.endpoint, region_name=REGION)
    iam: Any = boto3.client("iam", endpoint_url=aws.endpoint, region_name=REGION)
    iam.create_role(RoleName="nodes", AssumeRolePolicyDocument="{}")
    image = ec2.describe_images(Filters=[{"Name": "name", "Values": ["amzn2-ami-hvm*x86_64*"]}])["Images"][0]
    theirs = ec2.run_instances(ImageId=image["ImageId"], InstanceType="m5.large", MinCount=1, MaxCount=1)
    stranger = theirs["Instances"][0]["InstanceId"]
    zone = [{"Name": "availability-zone", "Values": [ZONE]}]
    found = ec2.describe_subnets(Filters=zone)["Subnets"][0]
    with user_with(aws, policies) as (broker, own):
        assert odcr in {one.id for one in broker.reservations()}
        assert broker.group(group).member_ids
        (subnet,) = broker.subnets([Selector(id=found["SubnetId"])])
        groups = broker.security_groups([Selector(name="default")])
        images = broker.images([Selector(alias="al2023@latest")])
        profile = broker.instance_profile(role="nodes", profile="")
        for number, target in enumerate(
            (ReservationTarget(reservation_id=odcr), ReservationTarget(group_arn=group))
        ):
            template = Template(
                image_id=next(one.id for one in images if one.architecture == "amd64"),
                target=target,
                security_group_ids=(groups[0].id,),
                instance_profile=profile,
                tags={"team": "a"},
            )
            ref = broker.ensure_template(template, owner="gpu")
            result = broker.launch(
                LaunchRequest(
                    token=f"policy-{number}",
                    template=ref,
                    overrides=(Override(instance_type=TYPE, zone=ZONE, subnet_id=subnet.id),),
                    count=1,
                    tags={"team": "a"},
                )
            )
            assert [one.reservation_id for one in result.instances] == [odcr], result.errors
            ids = [one.id for one in result.instances]
            broker.tag(ids, {"Name": "node"})
            broker.untag([odcr], ["capacity-broker.io/advised/demo/gpu"])
            broker.terminate(ids)
            broker.delete_template(ref)
            with denied():
                own.create_tags(Resources=ids, Tags=[{"Key": "capacity-broker.io/cluster", "Value": "x"}])
        with denied():
            own.terminate_instances(InstanceIds=[stranger])
        with denied():
            own.create_tags(Resources=[odcr], Tags=[{"Key": "team", "Value": "b"}])
        with denied():
            own.cancel_capacity_reservation(CapacityReservationId=odcr)
    ec2.terminate_instances(InstanceIds=[stranger])


def reserves(aws: LocalAws, policies: Sequence[str], *, odcr: str) -> None:
    """Its own reservations and groups, from making to giving back; Terraform's are not its to change."""
    with user_with(aws, policies) as (broker, own):
        request = OdcrRequest(token="policy", instance_type=TYPE, zone=ZONE, count=1, tags={"team": "a"})
        made = broker.create_reservation(request)
        group = broker.create_group(name="policy", tags={"team": "a"})
        broker.add_to_group(group.arn, [made.arn])
        broker.resize_reservation(made.id, count=2)
        broker.remove_from_group(group.arn, [made.arn])
        broker.delete_group(group.arn)
        broker.cancel_reservation(made.id)
        with denied():
            own.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=1)
