"""Terraform's own AWS provider works on local AWS as it does on AWS: what it made is what it finds again."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from providers.local import LocalAws
from tests.peers import terraform
from tests.peers.terraform import Terraform, TerraformFailed, TerraformMissing

pytestmark = pytest.mark.peers

REGION = "us-east-1"
END = "2031-01-31T23:00:00Z"


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

    def members(self, group: str) -> set[str]:
        reply = self.groups.list_group_resources(Group=group)
        return {entry["Identifier"]["ResourceArn"] for entry in reply["Resources"]}


def test_apply_plan_resize_import_and_destroy(aws: LocalAws, tmp_path: Path) -> None:
    account = Account(aws.endpoint)
    run = Terraform.prepare(tmp_path, "local", endpoint=aws.endpoint, end_date=END)

    # Apply: EC2 has the reservations that were asked for, in the group.
    assert run.apply() == {"add": 8}
    made = run.outputs()
    ids, arns, group = made["reservation_ids"], made["reservation_arns"], made["group_arn"]
    found = account.reservations()
    assert set(found) == set(ids.values())
    first, second = found[ids["h100-a"]], found[ids["h100-b"]]
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
    }
    assert account.members(group) == set(arns.values())
    held = account.ec2.get_groups_for_capacity_reservation(CapacityReservationId=ids["h100-a"])
    assert [entry["GroupArn"] for entry in held["CapacityReservationGroups"]] == [group]
    assert account.iam.get_role(RoleName="capacity-broker")["Role"]["Arn"]
    node_class = yaml.safe_load(made["node_class_yaml"])
    assert node_class["metadata"]["name"] == "gpu"
    assert node_class["spec"]["capacityReservationSpec"] == {
        "capacityReservationTarget": {"capacityReservationResourceGroupArn": group}
    }

    policy = made["broker_policy_json"]
    assert len(policy) < 6144, "IAM's limit for a managed policy"
    assert account.iam.get_policy(PolicyArn="arn:aws:iam::123456789012:policy/capacity-broker")
    assert {statement["Effect"] for statement in json.loads(policy)["Statement"]} == {"Allow"}

    # Plan: what was made is what is there.
    assert run.plan() == ""

    # Resize: in place, so the ids and the membership stay.
    run.variables |= {"counts": {"a": 6, "b": 1}, "end_date": None}
    assert run.apply() == {"change": 2}
    assert account.counts() == {ids["h100-a"]: 6, ids["h100-b"]: 1}
    assert account.reservations()[ids["h100-b"]]["EndDateType"] == "unlimited"
    assert account.members(group) == set(arns.values())

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


def test_a_count_that_ec2_does_not_take_is_refused_before_anything_is_made(
    aws: LocalAws, tmp_path: Path
) -> None:
    run = Terraform.prepare(tmp_path, "local", endpoint=aws.endpoint, counts={"a": 0, "b": 2})
    with pytest.raises(TerraformFailed, match="count is a whole number from 1 to 1000"):
        run.plan()
    assert Account(aws.endpoint).reservations() == {}


def test_every_file_is_formatted() -> None:
    program, _ = terraform.find()
    run = Terraform(program, terraform.TERRAFORM, {**os.environ, "TF_CLI_CONFIG_FILE": os.devnull})
    assert run.run("fmt", "-check", "-recursive", codes=(0, 3)).stdout == ""
