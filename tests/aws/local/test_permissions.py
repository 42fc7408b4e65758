"""IAM's decisions on EC2's calls: UnauthorizedOperation without a permission, DryRunOperation with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.core.authorization import enable_iam_authentication

from tests.aws.local.kit import ONCE, REGION, TYPE, ZONE, Aws, refused, seen

WHEN = "2030-06-01T00:00:00Z"
CONSUMER = {"UnusedReservationBillingOwnerId": "222222222222"}
SPEC = {"InstanceType": TYPE, "InstancePlatform": "Linux/UNIX", "AvailabilityZone": ZONE}
SOURCE, ONE = "SourceCapacityReservationId", "CapacityReservationId"

# action -> what it is asked with, `odcr` standing for a reservation's id
ACTIONS: dict[str, dict[str, Any]] = {
    "CreateCapacityReservation": {**SPEC, "InstanceCount": 1},
    "ModifyCapacityReservation": {ONE: "odcr", "InstanceCount": 1},
    "CancelCapacityReservation": {ONE: "odcr"},
    "DescribeCapacityReservations": {},
    "GetCapacityReservationUsage": {ONE: "odcr"},
    "GetGroupsForCapacityReservation": {ONE: "odcr"},
    "CreateCapacityReservationBySplitting": {SOURCE: "odcr", "InstanceCount": 1},
    "MoveCapacityReservationInstances": {
        SOURCE: "odcr",
        "DestinationCapacityReservationId": "odcr",
        "InstanceCount": 1,
    },
    "DescribeCapacityBlockOfferings": {"InstanceType": TYPE, "CapacityDurationHours": 24},
    "PurchaseCapacityBlock": {"CapacityBlockOfferingId": "cb-0", "InstancePlatform": "Linux/UNIX"},
    "DescribeCapacityBlocks": {},
    "DescribeCapacityBlockStatus": {},
    "DescribeCapacityBlockExtensionOfferings": {ONE: "odcr", "CapacityBlockExtensionDurationHours": 24},
    "PurchaseCapacityBlockExtension": {ONE: "odcr", "CapacityBlockExtensionOfferingId": "cbe-0"},
    "DescribeCapacityBlockExtensionHistory": {},
    "CreateInterruptibleCapacityReservationAllocation": {ONE: "odcr", "InstanceCount": 1},
    "UpdateInterruptibleCapacityReservationAllocation": {ONE: "odcr", "TargetInstanceCount": 0},
    "CreateCapacityReservationFleet": {"InstanceTypeSpecifications": [SPEC], "TotalTargetCapacity": 1},
    "DescribeCapacityReservationFleets": {},
    "CancelCapacityReservationFleets": {"CapacityReservationFleetIds": ["crf-0"]},
    "AssociateCapacityReservationBillingOwner": {ONE: "odcr", **CONSUMER},
    "DisassociateCapacityReservationBillingOwner": {ONE: "odcr", **CONSUMER},
    "AcceptCapacityReservationBillingOwnership": {ONE: "odcr"},
    "RejectCapacityReservationBillingOwnership": {ONE: "odcr"},
    "DescribeCapacityReservationBillingRequests": {"Role": "odcr-owner"},
    "CreateCapacityReservationCancellationQuote": {ONE: "odcr"},
    "DescribeCapacityReservationCancellationQuotes": {},
    "CreateCapacityReservationDateChangeQuote": {ONE: "odcr", "NewStartDate": WHEN},
    "DescribeCapacityReservationDateChangeQuotes": {},
}


@pytest.fixture
def enforced() -> Iterator[None]:
    """From here on every call needs a permission; the server is in this process."""
    with enable_iam_authentication():
        yield


def user(aws: Aws, *allowed: str) -> Any:
    """EC2 for a new user who may do so much."""
    iam = aws.client("iam")
    iam.create_user(UserName="someone")
    key = iam.create_access_key(UserName="someone")["AccessKey"]
    if allowed:
        statement = {"Effect": "Allow", "Action": list(allowed), "Resource": "*"}
        policy = {"Version": "2012-10-17", "Statement": [statement]}
        iam.put_user_policy(UserName="someone", PolicyName="p", PolicyDocument=json.dumps(policy))
    session: Any = boto3.Session(
        aws_access_key_id=key["AccessKeyId"],
        aws_secret_access_key=key["SecretAccessKey"],
        region_name=REGION,
    )
    return session.client("ec2", endpoint_url=aws.endpoint, config=ONCE)


def call(client: Any, action: str, odcr: str, **more: Any) -> Any:
    asked = {name: odcr if value == "odcr" else value for name, value in ACTIONS[action].items()}
    method = next(m for m, name in client.meta.method_to_api_mapping.items() if name == action)
    return getattr(client, method)(**asked, **more)


def test_without_a_permission_every_action_is_refused_also_as_a_dry_run(
    aws: Aws, ec2: Any, request: pytest.FixtureRequest
) -> None:
    odcr = aws.reserve(ec2, 2)
    someone = user(aws, "ec2:DescribeRegions")
    request.getfixturevalue("enforced")
    for action in ACTIONS:
        for more in ({}, {"DryRun": True}):
            with refused("UnauthorizedOperation", status=403, text=f"ec2:{action}"):
                call(someone, action, odcr, **more)


def test_with_the_permission_a_dry_run_says_so_and_does_nothing(
    aws: Aws, ec2: Any, request: pytest.FixtureRequest
) -> None:
    odcr = aws.reserve(ec2, 2)
    before = seen(ec2, odcr)
    someone = user(aws, *(f"ec2:{action}" for action in ACTIONS))
    request.getfixturevalue("enforced")
    for action in ACTIONS:
        with refused("DryRunOperation", status=412):
            call(someone, action, odcr, DryRun=True)
    (only,) = call(someone, "DescribeCapacityReservations", odcr)["CapacityReservations"]
    assert only == before


def test_a_used_token_is_no_permission(aws: Aws, ec2: Any, request: pytest.FixtureRequest) -> None:
    asked = {**SPEC, "InstanceCount": 1, "ClientToken": "once"}
    ec2.create_capacity_reservation(**asked)
    someone = user(aws)
    request.getfixturevalue("enforced")
    with refused("UnauthorizedOperation", status=403):
        someone.create_capacity_reservation(**asked)


def test_a_key_that_nobody_has(aws: Aws, ec2: Any, enforced: None) -> None:
    with refused("AuthFailure", status=401):
        ec2.describe_capacity_reservations()
