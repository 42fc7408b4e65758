"""Terraform's own AWS provider works on local AWS as it does on AWS: it finds its resources again."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace, ResourceFlavor
from broker.apis.ome import CapacityReservation
from local.aws import LocalAws
from local.in_process import InProcessTransport
from providers.aws import AwsProvider
from providers.aws.notices import TYPES
from tests.aws.iam import POLICY
from tests.cluster.ome.reserved import GPU, flavors_alone
from tests.cluster.stack import Stack
from tests.peers import terraform
from tests.peers.terraform import Terraform, TerraformFailed, TerraformMissing
from tests.peers.test_terraform_policy import allowed
from tests.support.definitions import defined

pytestmark = pytest.mark.peers

REGION = "us-east-1"
END = "2031-01-31T23:00:00Z"
OTHERS = "222222222222"
ALLOWED = allowed()
ISSUER = "oidc.eks.us-east-1.amazonaws.com/id/ABCDEF"
OIDC = f"arn:aws:iam::123456789012:oidc-provider/{ISSUER}"


@pytest.fixture(autouse=True, scope="module")
def _terraform_is_here() -> None:
    try:
        terraform.find()
    except TerraformMissing as error:
        if os.environ.get("CI_REQUIRE_PEERS") == "1":
            pytest.fail(f"CI requires Terraform: {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def aws() -> Iterator[LocalAws]:
    with LocalAws() as local:
        yield local


class Account:
    """EC2's and Resource Groups' own view, apart from Terraform's state."""

    def __init__(self, endpoint: str) -> None:
        session = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local", region_name=REGION)
        self.ec2: Any = session.client("ec2", endpoint_url=endpoint)
        self.groups: Any = session.client("resource-groups", endpoint_url=endpoint)
        self.iam: Any = session.client("iam", endpoint_url=endpoint)
        self.ram: Any = session.client("ram", endpoint_url=endpoint)

    def reservations(self) -> dict[str, dict[str, Any]]:
        """Those that have not ended, by id."""
        pages = self.ec2.get_paginator("describe_capacity_reservations").paginate()
        return {
            entry["CapacityReservationId"]: entry
            for page in pages
            for entry in page["CapacityReservations"]
            if entry["State"] == "active"
        }

    def counts(self) -> dict[str, int]:
        return {id_: entry["TotalInstanceCount"] for id_, entry in self.reservations().items()}

    def trust(self, role: str) -> Any:
        """The principals of the role."""
        document = self.iam.get_role(RoleName=role)["Role"]["AssumeRolePolicyDocument"]
        (statement,) = (document if isinstance(document, dict) else json.loads(document))["Statement"]
        return statement

    def members(self, group: str) -> set[str]:
        reply = self.groups.list_group_resources(Group=group)
        return {entry["Identifier"]["ResourceArn"] for entry in reply["Resources"]}


def reserved(aws: LocalAws, flavors_yaml: str, *, gpus: dict[str, int]) -> dict[str, Any]:
    """A broker's view of a CapacityReservation ml/training of the flavors that Terraform printed."""
    stack = Stack(aws, InProcessTransport(defined()))
    try:
        flavors_alone(stack)
        for document in yaml.safe_load_all(flavors_yaml):
            body = {"metadata": document["metadata"], "spec": document["spec"]}
            stack.client.create(ResourceFlavor.KIND, body)
        quotas = [
            {"name": name, "resources": [{"name": GPU, "nominalQuota": count}]}
            for name, count in gpus.items()
        ]
        spec = {"resourceGroups": [{"coveredResources": [GPU], "flavors": quotas}]}
        stack.client.create(Namespace.KIND, {"metadata": {"name": "ml"}})
        where = {"name": "training", "namespace": "ml"}
        stack.client.create(CapacityReservation.KIND, {"metadata": where, "spec": spec})
        stack.start(kubelets=False)

        def status() -> dict[str, Any]:
            status_ = stack.client.get(CapacityReservation.KIND, "training", namespace="ml").get("status", {})
            return dict(status_) if status_.get("capacityReservationLifecycleState") == "Active" else {}

        return stack.until(status, "ml/training active")
    finally:
        stack.close()


def seen_by(aws: LocalAws, account: str) -> set[str]:
    """The active reservations that another account sees."""
    own = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local", region_name=REGION)
    sts: Any = own.client("sts", endpoint_url=aws.endpoint)
    keys = sts.assume_role(RoleArn=f"arn:aws:iam::{account}:role/x", RoleSessionName="test")["Credentials"]
    other: Any = boto3.Session(
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
        region_name=REGION,
    ).client("ec2", endpoint_url=aws.endpoint)
    reservations = other.describe_capacity_reservations()["CapacityReservations"]
    return {
        reservation["CapacityReservationId"]
        for reservation in reservations
        if reservation["State"] == "active"
    }


@pytest.mark.covers("CAP-11", "CAP-12", "CAP-13", "SAF-60")
def test_apply_plan_resize_import_and_destroy(aws: LocalAws, tmp_path: Path) -> None:
    account = Account(aws.endpoint)
    run = Terraform.prepare(tmp_path, "local", endpoint=aws.endpoint, end_date=END)

    # Apply: EC2 has the requested reservations, in the group.
    assert run.apply() == {"add": 8}
    outputs = run.outputs()
    ids, arns, group = outputs["reservation_ids"], outputs["reservation_arns"], outputs["group_arn"]
    reservations = account.reservations()
    assert set(reservations) == set(ids.values())
    first, second = reservations[ids["h100-a"]], reservations[ids["h100-b"]]
    assert (first["InstanceType"], first["AvailabilityZone"]) == ("p5.48xlarge", "us-east-1a")
    assert (first["TotalInstanceCount"], first["AvailableInstanceCount"]) == (4, 4)
    assert (first["InstanceMatchCriteria"], first["EndDateType"]) == ("targeted", "unlimited")
    assert (second["AvailabilityZone"], second["InstanceMatchCriteria"]) == ("us-east-1b", "open")
    assert second["EndDateType"] == "limited"
    assert second["EndDate"].strftime("%Y-%m-%dT%H:%M:%SZ") == END
    assert {tag["Key"]: tag["Value"] for tag in second["Tags"]} == {
        "ManagedBy": "terraform",
        "Name": "h100-b",
        "project": "capacity-broker",
        "team": "research",
        "capacity-broker.io/reservation": "ml/training",
        "capacity-broker.io/flavor": "p5-48xlarge-us-east-1b",
    }
    assert account.members(group) == set(arns.values())
    held = account.ec2.get_groups_for_capacity_reservation(CapacityReservationId=ids["h100-a"])
    assert [entry["GroupArn"] for entry in held["CapacityReservationGroups"]] == [group]
    assert account.trust("capacity-broker") == {
        "Sid": "EksPodIdentity",
        "Effect": "Allow",
        "Action": ["sts:AssumeRole", "sts:TagSession"],
        "Principal": {"Service": "pods.eks.amazonaws.com"},
        "Condition": {
            "StringEquals": {
                "aws:RequestTag/eks-cluster-arn": "arn:aws:eks:us-east-1:123456789012:cluster/demo",
                "aws:RequestTag/kubernetes-namespace": "capacity-broker",
                "aws:RequestTag/kubernetes-service-account": "capacity-broker",
            }
        },
    }
    node_class = EC2NodeClass.model_validate(yaml.safe_load(outputs["node_class_yaml"]))
    assert (node_class.metadata.name, node_class.spec.role) == ("gpu", "nodes")
    assert yaml.safe_load(outputs["node_class_yaml"])["spec"]["capacityReservationSpec"] == {
        "capacityReservationTarget": {"capacityReservationResourceGroupArn": group}
    }

    policy = outputs["broker_policy_json"]
    assert len(policy) < 6144, "IAM's limit for a managed policy"
    assert account.iam.get_policy(PolicyArn="arn:aws:iam::123456789012:policy/capacity-broker")
    assert {statement["Effect"] for statement in json.loads(policy)["Statement"]} == {"Allow"}

    # Adoption: the CapacityReservation has them, each in its flavor, and no id was written anywhere.
    a, b = outputs["flavors"]["h100-a"], outputs["flavors"]["h100-b"]
    status = reserved(aws, outputs["resource_flavors_yaml"], gpus={a: 32, b: 16})
    assert {
        reservation["id"]: (reservation["flavor"], reservation["total"])
        for reservation in status["cloudReservations"]
    } == {
        ids["h100-a"]: (a, 4),
        ids["h100-b"]: (b, 2),
    }
    assert {flavor["name"]: flavor["resources"][0]["total"] for flavor in status["allocatable"]} == {
        a: "32",
        b: "16",
    }

    # Plan: the resources are as made, also after the broker marked them for Karpenter's selector terms.
    broker = AwsProvider(cluster="demo", region=REGION, endpoint_url=aws.endpoint)
    broker.tag(ids.values(), {"capacity-broker.io/advised/demo/gpu": "true"})
    assert run.plan() == ""

    # Resize: in place, so the ids and the membership stay.
    # In the same run: a role by IRSA that may reserve, and the reservations shared with another account.
    run.variables |= {"counts": {"a": 6, "b": 1}, "end_date": None, "share_with": [OTHERS]}
    run.variables |= {"manage_reservations": True, "oidc_provider_arn": OIDC}
    assert run.apply() == {"add": 6, "change": 3}
    assert account.counts() == {ids["h100-a"]: 6, ids["h100-b"]: 1}
    assert account.reservations()[ids["h100-b"]]["EndDateType"] == "unlimited"
    assert account.members(group) == set(arns.values())
    assert seen_by(aws, OTHERS) == set(ids.values())
    assert account.trust("capacity-broker") == {
        "Sid": "ServiceAccountToken",
        "Effect": "Allow",
        "Action": ["sts:AssumeRoleWithWebIdentity"],
        "Principal": {"Federated": OIDC},
        "Condition": {
            "StringEquals": {
                f"{ISSUER}:aud": "sts.amazonaws.com",
                f"{ISSUER}:sub": "system:serviceaccount:capacity-broker:capacity-broker",
            }
        },
    }
    managing = run.outputs()
    assert managing["service_account_annotations"] == {
        "eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/capacity-broker"
    }
    assert set(managing["broker_actions"]) == ALLOWED
    assert set(outputs["broker_actions"]) < ALLOWED
    assert managing["broker_policy_json"] == policy
    assert len(managing["broker_manage_policy_json"]) < 6144
    # tests/faults/test_permissions.py runs the broker under this policy.
    rendered = {"always": json.loads(policy), "manage": json.loads(managing["broker_manage_policy_json"])}
    assert rendered == POLICY
    assert run.plan() == ""
    run.variables |= {"share_with": [], "manage_reservations": False}
    assert run.apply() == {"remove": 6}
    assert seen_by(aws, OTHERS) == set()

    # Import: a lost state is found again, with nothing to change in the account.
    run.forget()
    module = "module.reservations"
    adopted = run.adopt(
        {
            **{f'{module}.aws_ec2_capacity_reservation.this["{key}"]': id_ for key, id_ in ids.items()},
            **{
                f'{module}.aws_resourcegroups_resource.this["{key}"]': f"{group},{arn}"
                for key, arn in arns.items()
            },
            f"{module}.aws_resourcegroups_group.this": "training",
            "module.broker_iam.aws_iam_role.this": "capacity-broker",
            "module.broker_iam.aws_iam_policy.this": "arn:aws:iam::123456789012:policy/capacity-broker",
            "module.broker_iam.aws_iam_role_policy_attachment.this": (
                "capacity-broker/arn:aws:iam::123456789012:policy/capacity-broker"
            ),
        }
    )
    assert adopted == {"import": 8}
    assert account.counts() == {ids["h100-a"]: 6, ids["h100-b"]: 1}

    # Destroy: the reservations are given back, the group is gone.
    assert run.destroy() == {"remove": 8}
    assert account.reservations() == {}
    states = account.ec2.describe_capacity_reservations(CapacityReservationIds=list(ids.values()))
    assert {entry["State"] for entry in states["CapacityReservations"]} == {"cancelled"}
    assert account.groups.list_groups()["Groups"] == []


def test_impossible_values_are_refused_before_anything_is_created(aws: LocalAws, tmp_path: Path) -> None:
    before = Account(aws.endpoint).reservations()
    wrong = {
        "counts": {"a": 0, "b": 2},
        "end_date": "tomorrow",
        "share_with": ["ml"],
        "oidc_provider_arn": "oidc",
    }
    run = Terraform.prepare(tmp_path, "local", endpoint=aws.endpoint, **wrong)
    with pytest.raises(TerraformFailed) as refused:
        run.plan()
    for message in (
        "count is a whole number from 1 to 1000",
        "end_date is RFC 3339",
        "share_with takes account ids of 12 digits",
        "oidc_provider_arn is the ARN of an IAM OIDC provider",
    ):
        assert message in " ".join(str(refused.value).replace("│", " ").split())
    assert Account(aws.endpoint).reservations() == before


@pytest.mark.covers("CAP-13")
def test_the_example_for_eks_is_valid(tmp_path: Path) -> None:
    run = Terraform.prepare(tmp_path, "eks")
    assert "The configuration is valid" in run.run("validate", "-no-color").stdout


def test_every_example_shows_its_usage() -> None:
    for example in (terraform.TERRAFORM / "examples").iterdir():
        assert "terraform init && terraform apply" in (example / "README.md").read_text()


def test_the_queue_of_the_example_gets_every_notice_that_the_broker_knows() -> None:
    text = (terraform.TERRAFORM / "examples" / "eks" / "notices.tf").read_text()
    prefixes = tuple(re.findall(r'prefix = "(.+?)"', text))
    assert [type_ for _, type_ in TYPES if not type_.startswith(prefixes)] == []


def test_every_file_is_formatted() -> None:
    program, _ = terraform.find()
    run = Terraform(program, terraform.TERRAFORM, {**os.environ, "TF_CLI_CONFIG_FILE": os.devnull})
    assert run.run("fmt", "-check", "-recursive", codes=(0, 3)).stdout == ""
