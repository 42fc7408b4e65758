"""The broker's policy allows the broker's calls and nothing else; reservations change only if enabled."""

import ast
import re
from collections.abc import Iterator

import boto3
import pytest

from tests.aws import iam
from tests.peers.terraform import TERRAFORM

REPOSITORY = TERRAFORM.parent
MODULE = TERRAFORM / "modules" / "broker-iam"
SERVICES = {
    "ec2": "ec2",
    "eks": "eks",
    "groups": "resource-groups",
    "ssm": "ssm",
    "iam": "iam",
    "sqs": "sqs",
    "pricing": "pricing",
}
# Operations that another's permission covers (Service Authorization Reference, Amazon SQS).
COVERED = {"sqs:DeleteMessageBatch": "sqs:DeleteMessage"}
# Permissions that AWS requires on the way of a call (Service Authorization Reference, dependent actions).
IMPLIED = {
    "ec2:RunInstances": "ec2:CreateFleet",  # launches as its caller
    "ec2:CreateTags": "ec2:CreateFleet",
    "iam:PassRole": "ec2:CreateFleet",  # the node role
    "iam:TagInstanceProfile": "iam:CreateInstanceProfile",
    "resource-groups:Tag": "resource-groups:CreateGroup",
    **dict.fromkeys(iam.MEMBERS, "resource-groups:ListGroupResources"),
}
# `capacity-broker uninstall` runs with its user's own rights.
UNINSTALL = "leftovers.py"
PERMISSION = re.compile(r'"([a-z0-9-]+:[A-Za-z*]+)"')


def lists() -> tuple[str, str]:
    """actions.tf: the actions that are always allowed, and those that only manage_reservations adds."""
    always, _, managing = (MODULE / "actions.tf").read_text().partition("  managing = {")
    return always, managing


def allowed() -> set[str]:
    return {permission for part in lists() for permission in PERMISSION.findall(part)}


def calls() -> Iterator[tuple[str, str]]:
    """The calls of a running broker on a client in the AWS provider, as permission and place."""
    operations = {
        name: boto3.Session().client(service, region_name="us-east-1").meta.method_to_api_mapping  # type: ignore[call-overload]
        for name, service in SERVICES.items()
    }
    modules = sorted((REPOSITORY / "providers" / "aws").rglob("*.py"))
    assert UNINSTALL in {path.name for path in modules}
    for path in (module for module in modules if module.name != UNINSTALL):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)):
                continue
            service = node.value.attr
            if service in operations and node.attr in operations[service]:
                permission = f"{SERVICES[service]}:{operations[service][node.attr]}"
                yield COVERED.get(permission, permission), f"{path.name}:{node.lineno}"


@pytest.mark.covers("CAP-12", "SAF-21")
def test_allowed_actions_are_the_called_actions() -> None:
    called = dict(calls())
    assert {"ec2:CreateFleet", "ec2:CreateCapacityReservation"} <= set(called), "calls are found where made"
    assert set(IMPLIED.values()) <= set(called)
    assert allowed() == set(called) | set(IMPLIED)


def test_reservations_and_groups_are_changed_with_manage_reservations_only() -> None:
    always, managing = (set(PERMISSION.findall(part)) for part in lists())
    assert not [
        permission
        for permission in always
        if re.search(r":(?!Describe)\w*(CapacityReservation$|Capacity(Block|Fleet))", permission)
    ]
    assert {permission for permission in always if permission.startswith("resource-groups:")} == {
        "resource-groups:GetTags",
        "resource-groups:ListGroupResources",
    }
    assert not always & managing
    assert not [
        permission for permission in always | managing if "*" in permission or "Purchase" in permission
    ]


def test_every_permission_is_used_in_the_policy() -> None:
    policy = (MODULE / "policy.tf").read_text()
    for local, part in zip(("actions", "managing"), lists(), strict=True):
        names = re.findall(r"^    (\w+) +?= \[", part, re.M)
        assert names
        assert [name for name in names if f"local.{local}.{name}" not in policy] == []
