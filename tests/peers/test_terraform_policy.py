"""The broker's policy allows every call that the broker makes, and none that makes or ends a reservation."""

import ast
import re
from collections.abc import Iterator

import boto3

from tests.peers.terraform import TERRAFORM

REPOSITORY = TERRAFORM.parent
SERVICES = {
    "ec2": "ec2",
    "groups": "resource-groups",
    "ssm": "ssm",
    "iam": "iam",
    "sqs": "sqs",
    "pricing": "pricing",
}


def allowed() -> set[str]:
    text = (TERRAFORM / "modules" / "broker-iam" / "actions.tf").read_text()
    return set(re.findall(r'"([a-z0-9-]+:[A-Za-z*]+)"', text))


# Operations that another's permission covers (Service Authorization Reference, Amazon SQS).
COVERED = {"sqs:DeleteMessageBatch": "sqs:DeleteMessage"}


def calls() -> Iterator[tuple[str, str]]:
    """What is called on a client anywhere in the AWS provider, as permission and place."""
    operations = {
        name: boto3.Session().client(service, region_name="us-east-1").meta.method_to_api_mapping  # type: ignore[call-overload]
        for name, service in SERVICES.items()
    }
    for path in sorted((REPOSITORY / "providers" / "aws").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)):
                continue
            service = node.value.attr
            if service in operations and node.attr in operations[service]:
                permission = f"{SERVICES[service]}:{operations[service][node.attr]}"
                yield COVERED.get(permission, permission), f"{path.name}:{node.lineno}"


def test_every_call_of_the_provider_is_allowed() -> None:
    made = dict(calls())
    assert "ec2:CreateFleet" in made, "the calls are found where they are made"
    missing = {permission: place for permission, place in made.items() if permission not in allowed()}
    assert not missing


def test_what_calls_imply_is_allowed() -> None:
    # CreateFleet runs instances as its caller, tags them, and gives them the node role.
    assert {"ec2:RunInstances", "ec2:CreateTags", "iam:PassRole"} <= allowed()


def test_no_reservation_can_be_made_changed_or_ended() -> None:
    changing = re.compile(
        r":(Create|Modify|Cancel|Purchase|Move|Accept|Associate)\w*(CapacityReservation|CapacityBlock)"
    )
    assert [permission for permission in allowed() if changing.search(permission) or "*" in permission] == []


def test_every_permission_is_used_in_the_policy() -> None:
    policy = (TERRAFORM / "modules" / "broker-iam" / "policy.tf").read_text()
    lists = re.findall(
        r"^    (\w+) +?= \[", (TERRAFORM / "modules" / "broker-iam" / "actions.tf").read_text(), re.M
    )
    assert lists
    assert [name for name in lists if f"local.actions.{name}" not in policy] == []
