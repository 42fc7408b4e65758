"""The Terraform example of an EKS cluster: applied on local AWS, its output installs the chart as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from broker.run import discovered
from broker.settings import Settings
from local.aws import LocalAws
from providers.aws import AwsProvider
from tests.aws.iam import POLICY
from tests.deploy import helm
from tests.deploy.test_chart import environment
from tests.peers.terraform import Terraform
from tests.peers.test_terraform import OIDC, REGION, _terraform_is_here

__all__ = ["_terraform_is_here"]
pytestmark = pytest.mark.peers

IMAGE = {
    "repository": "123456789012.dkr.ecr.us-east-1.amazonaws.com/capacity-broker",
    "digest": f"sha256:{'a' * 64}",
}
RESERVED = {"instance_type": "p5.48xlarge", "availability_zone": "us-east-1a", "count": 2}


@pytest.fixture(scope="module")
def aws() -> Iterator[LocalAws]:
    with LocalAws() as local:
        yield local


def credentials(run: Terraform, aws: LocalAws) -> dict[str, str]:
    """The environment of the run, for local AWS."""
    keys = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
    return {**run.environment, **keys, "AWS_ENDPOINT_URL": aws.endpoint}


def client(aws: LocalAws, service: str, region: str = REGION) -> Any:
    session: Any = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local", region_name=region)
    return session.client(service, endpoint_url=aws.endpoint)


def cluster(aws: LocalAws, name: str, region: str = REGION) -> dict[str, Any]:
    """An EKS cluster on the default network. Returns EKS's description."""
    subnets = [subnet["SubnetId"] for subnet in client(aws, "ec2", region).describe_subnets()["Subnets"]]
    role = "arn:aws:iam::123456789012:role/cluster"
    eks = client(aws, "eks", region)
    eks.create_cluster(name=name, roleArn=role, resourcesVpcConfig={"subnetIds": subnets[:2]})
    return dict(eks.describe_cluster(name=name)["cluster"])


@pytest.mark.covers("USR-22")
def test_output_of_the_example_installs_the_chart_as_it_is(aws: LocalAws, tmp_path: Path) -> None:
    described = cluster(aws, "demo")
    teams = {"ml": {"capacity_reservation": "training", "reservations": {"h100": RESERVED}}}
    run = Terraform.prepare(
        tmp_path, "eks", cluster_name="demo", region=REGION, node_role_name="nodes", image=IMAGE
    )
    run.variables |= {"teams": teams, "oidc_provider_arn": OIDC}
    run.environment = credentials(run, aws)
    run.apply()
    outputs = run.outputs()
    values = yaml.safe_load(outputs["helm_values_yaml"])
    given = environment(helm.render(values))
    assert (given["CLUSTER_NAME"], given["AWS_REGION"]) == ("demo", REGION)
    subnets = client(aws, "ec2").describe_subnets(SubnetIds=described["resourcesVpcConfig"]["subnetIds"])
    assert values["networkPolicy"]["apiServerCIDRs"] == sorted(
        subnet["CidrBlock"] for subnet in subnets["Subnets"]
    )

    # The broker of this chart finds the rest, by a call that its policy allows.
    provider = AwsProvider(
        cluster=given["CLUSTER_NAME"], region=given["AWS_REGION"], endpoint_url=aws.endpoint
    )
    settings = discovered(
        Settings(cluster_name="demo", region=REGION, cluster_endpoint=given["CLUSTER_ENDPOINT"]),
        provider.cluster_facts,
    )
    assert settings.cluster_endpoint == described["endpoint"]
    assert settings.cluster_ca == described["certificateAuthority"]["data"]
    (statement,) = [
        statement_ for statement_ in POLICY["always"]["Statement"] if statement_["Sid"] == "ReadCluster"
    ]
    assert statement == {
        "Sid": "ReadCluster",
        "Effect": "Allow",
        "Action": ["eks:DescribeCluster"],
        "Resource": [described["arn"]],
    }
    attached = client(aws, "iam").get_policy(PolicyArn="arn:aws:iam::123456789012:policy/capacity-broker")[
        "Policy"
    ]
    document = client(aws, "iam").get_policy_version(
        PolicyArn=attached["Arn"], VersionId=attached["DefaultVersionId"]
    )["PolicyVersion"]["Document"]
    text = document if isinstance(document, str) else json.dumps(document)
    assert "eks:DescribeCluster" in text and described["arn"] in text


@pytest.mark.covers("USR-22")
def test_arns_of_the_example_are_of_the_partition_of_its_region(aws: LocalAws, tmp_path: Path) -> None:
    region = "us-gov-west-1"
    cluster(aws, "gov", region)
    run = Terraform.prepare(
        tmp_path, "eks", cluster_name="gov", region=region, node_role_name="nodes", image=IMAGE
    )
    run.variables |= {"oidc_provider_arn": OIDC.replace("arn:aws:", "arn:aws-us-gov:")}
    run.environment = credentials(run, aws)
    run.apply()
    iam = client(aws, "iam", region)
    (policy,) = iam.list_policies(Scope="Local")["Policies"]
    version = iam.get_policy_version(PolicyArn=policy["Arn"], VersionId=policy["DefaultVersionId"])
    text = json.dumps(version["PolicyVersion"]["Document"])
    assert "arn:aws-us-gov:iam::123456789012:role/nodes" in text
    assert "arn:aws-us-gov:ec2:us-gov-west-1:" in text and "arn:aws:" not in text
