"""IAM's decisions on EC2's calls: UnauthorizedOperation without a permission, DryRunOperation with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import boto3
import pytest
from moto.core.authorization import enable_iam_authentication

from local.aws.iam.operators import BadPolicy
from local.aws.iam.policies import UnknownOperator, allows
from tests.aws.iam import MEMBERS
from tests.aws.local.kit import (
    ONCE,
    ONLY,
    REGION,
    TYPE,
    ZONE,
    Aws,
    fleet,
    launched,
    pool,
    refused,
    seen,
    template,
    to_id,
)

WHEN = "2030-06-01T00:00:00Z"
CONSUMER = {"UnusedReservationBillingOwnerId": "222222222222"}
SPEC = {"InstanceType": TYPE, "InstancePlatform": "Linux/UNIX", "AvailabilityZone": ZONE}
SOURCE, ONE = "SourceCapacityReservationId", "CapacityReservationId"

# action -> its parameters, `odcr` means a reservation's id
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
    """EC2 for a new user with these permissions."""
    return by(aws, *([{"Effect": "Allow", "Action": list(allowed), "Resource": "*"}] if allowed else []))


def by(aws: Aws, *statements: Mapping[str, Any], service: str = "ec2", name: str = "someone") -> Any:
    """A service's client for a new user with these statements."""
    iam = aws.client("iam")
    iam.create_user(UserName=name)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    if statements:
        policy = {"Version": "2012-10-17", "Statement": list(statements)}
        iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=json.dumps(policy))
    session: Any = boto3.Session(
        aws_access_key_id=key["AccessKeyId"],
        aws_secret_access_key=key["SecretAccessKey"],
        region_name=REGION,
    )
    return session.client(service, endpoint_url=aws.endpoint, config=ONCE)


def allow(action: str | list[str], resource: str | list[str], **condition: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, "Condition": condition}


def call(client: Any, action: str, odcr: str, **more: Any) -> Any:
    parameters = {name: odcr if value == "odcr" else value for name, value in ACTIONS[action].items()}
    method = next(m for m, name in client.meta.method_to_api_mapping.items() if name == action)
    return getattr(client, method)(**parameters, **more)


def test_without_a_permission_every_action_is_refused_also_as_a_dry_run(
    aws: Aws, ec2: Any, request: pytest.FixtureRequest
) -> None:
    odcr = aws.reserve(ec2, 2)
    caller = user(aws, "ec2:DescribeRegions")
    request.getfixturevalue("enforced")
    for action in ACTIONS:
        for more in ({}, {"DryRun": True}):
            with refused("UnauthorizedOperation", status=403, text=f"ec2:{action}"):
                call(caller, action, odcr, **more)


def test_permitted_dry_run_succeeds_and_does_nothing(
    aws: Aws, ec2: Any, request: pytest.FixtureRequest
) -> None:
    odcr = aws.reserve(ec2, 2)
    before = seen(ec2, odcr)
    caller = user(aws, *(f"ec2:{action}" for action in ACTIONS))
    request.getfixturevalue("enforced")
    for action in ACTIONS:
        with refused("DryRunOperation", status=412):
            call(caller, action, odcr, DryRun=True)
    (only,) = call(caller, "DescribeCapacityReservations", odcr)["CapacityReservations"]
    assert only == before


def test_a_used_token_is_no_permission(aws: Aws, ec2: Any, request: pytest.FixtureRequest) -> None:
    parameters = {**SPEC, "InstanceCount": 1, "ClientToken": "once"}
    ec2.create_capacity_reservation(**parameters)
    caller = user(aws)
    request.getfixturevalue("enforced")
    with refused("UnauthorizedOperation", status=403):
        caller.create_capacity_reservation(**parameters)


def test_unknown_key(aws: Aws, ec2: Any, enforced: None) -> None:
    with refused("AuthFailure", status=401):
        ec2.describe_capacity_reservations()


ARN = f"arn:aws:ec2:{REGION}:123456789012"
TEAM = {"Key": "team", "Value": "a"}
CANCEL, DENIED = "ec2:CancelCapacityReservation", "AccessDeniedException"


@pytest.mark.parametrize(
    ("condition", "may"),
    [
        ({}, True),
        ({"StringEquals": {"aws:RequestedRegion": REGION}}, True),
        ({"StringEquals": {"aws:RequestedRegion": "eu-west-1"}}, False),
        ({"StringEquals": {"aws:ResourceTag/team": ["b", "a"], "aws:requestedregion": REGION}}, True),
        ({"StringEquals": {"aws:ResourceTag/team": "b"}}, False),
        ({"StringEquals": {"aws:ResourceTag/owner": "a"}}, False),
        ({"StringNotEquals": {"aws:ResourceTag/team": "a"}}, False),
        ({"StringNotEquals": {"aws:ResourceTag/owner": "a"}}, True),
        ({"StringEqualsIfExists": {"aws:ResourceTag/owner": "a"}}, True),
        ({"StringLike": {"aws:ResourceTag/team": "?"}}, True),
        ({"StringLike": {"aws:ResourceTag/team": "b*"}}, False),
        ({"Null": {"aws:ResourceTag/owner": "true"}}, True),
        ({"Null": {"aws:ResourceTag/team": True}}, False),
        ({"ForAllValues:StringLike": {"aws:TagKeys": "x/*"}}, False),
        ({"ForAllValues:StringLike": {"aws:TagKeys": ["x/*", "y"]}}, True),
        ({"ForAllValues:StringNotEquals": {"aws:TagKeys": "y"}}, False),
        ({"ForAllValues:StringEquals": {"aws:Nothing": "y"}}, True),
        ({"ForAnyValue:StringEquals": {"aws:TagKeys": "y"}}, True),
        ({"ForAnyValue:StringEquals": {"aws:Nothing": "y"}}, False),
    ],
)
def test_conditions_apply_to_the_request_and_to_the_resource(condition: Mapping[str, Any], may: bool) -> None:
    context = {"aws:RequestedRegion": [REGION], "aws:ResourceTag/team": ["a"], "aws:TagKeys": ["x/1", "y"]}
    statement = allow("ec2:cancel*", f"{ARN}:capacity-reservation/*", **condition)
    decision = allows([{"Statement": statement}], CANCEL, f"{ARN}:capacity-reservation/cr-1", context)
    assert decision == (may, False)


AT = {"aws:CurrentTime": ["2026-11-21T12:00:00Z"], "aws:EpochTime": ["1795262400"]}
CONTEXT = {**AT, "x:Count": ["8"], "x:Many": ["1", "20"], "x:Word": ["many"], "aws:SourceIp": ["10.1.2.3"]}


@pytest.mark.parametrize(
    ("operator", "key", "expected", "may"),
    [
        ("NumericEquals", "x:Count", "8", True),
        ("NumericEquals", "x:Count", 8, True),
        ("NumericEquals", "x:Count", "8.0", True),
        ("NumericEquals", "x:Count", ["7", "9"], False),
        ("NumericNotEquals", "x:Count", ["7", "9"], True),
        ("NumericNotEquals", "x:Count", ["7", "8"], False),
        ("NumericNotEquals", "x:Nothing", "8", True),
        ("NumericLessThan", "x:Count", "8", False),
        ("NumericLessThan", "x:Count", "10", True),
        ("NumericLessThanEquals", "x:Count", "8", True),
        ("NumericLessThanEquals", "x:Count", "7.5", False),
        ("NumericGreaterThan", "x:Count", "8", False),
        ("NumericGreaterThan", "x:Count", "-1", True),
        ("NumericGreaterThanEquals", "x:Count", "8", True),
        ("NumericLessThanEquals", "x:Nothing", "8", False),
        ("NumericLessThanEqualsIfExists", "x:Nothing", "8", True),
        ("NumericLessThanEqualsIfExists", "x:Count", "7", False),
        ("NumericLessThan", "x:Word", "8", False),
        ("NumericNotEquals", "x:Word", "8", True),
        ("ForAllValues:NumericLessThan", "x:Many", "20", False),
        ("ForAllValues:NumericLessThanEquals", "x:Many", "20", True),
        ("ForAnyValue:NumericLessThan", "x:Many", "20", True),
        ("ForAnyValue:NumericGreaterThan", "x:Many", "20", False),
        ("ForAnyValue:NumericNotEquals", "x:Nothing", "20", False),
        ("DateLessThan", "aws:CurrentTime", "2026-11-21T12:00:01Z", True),
        ("DateLessThan", "aws:CurrentTime", "2026-11-21T12:00:00Z", False),
        ("DateLessThanEquals", "aws:CurrentTime", "2026-11-21T14:00:00+02:00", True),
        ("DateGreaterThan", "aws:CurrentTime", "2026-11-21T14:00:00+02:00", False),
        ("DateGreaterThan", "aws:CurrentTime", "2026-11-21", True),
        ("DateGreaterThan", "aws:CurrentTime", "2026-11", True),
        ("DateGreaterThan", "aws:CurrentTime", "2027", False),
        ("DateGreaterThanEquals", "aws:EpochTime", "2026-11-21T12:00:00Z", True),
        ("DateEquals", "aws:CurrentTime", "1795262400", True),
        ("DateNotEquals", "aws:CurrentTime", "1795262400", False),
        ("DateLessThan", "x:Nothing", "2027-01-01T00:00:00Z", False),
        ("DateLessThanIfExists", "x:Nothing", "2027-01-01T00:00:00Z", True),
        ("DateLessThan", "x:Word", "2027-01-01T00:00:00Z", False),
        ("BinaryEquals", "x:Word", "bWFueQ==", False),
        ("IpAddress", "aws:SourceIp", ["192.168.0.0/16", "10.1.0.0/16"], True),
        ("IpAddress", "aws:SourceIp", "10.1.2.4", False),
        ("NotIpAddress", "aws:SourceIp", "10.0.0.0/8", False),
        ("NotIpAddress", "aws:SourceIp", "2001:db8::/32", True),
    ],
)
def test_numbers_times_and_addresses_are_compared_as_such(
    operator: str, key: str, expected: Any, may: bool
) -> None:
    statement = allow("ec2:*", "*", **{operator: {key: expected}})
    assert allows([{"Statement": statement}], "ec2:CreateFleet", "*", CONTEXT) == (may, False)


@pytest.mark.parametrize(
    ("operator", "value"),
    [("NumericLessThan", "eight"), ("DateLessThan", "soon"), ("IpAddress", "10/a"), ("BinaryEquals", "%")],
)
def test_policy_value_of_a_wrong_type_grants_nothing(operator: str, value: str) -> None:
    statement = allow("ec2:*", "*", **{operator: {"x:Count": value}})
    with pytest.raises(BadPolicy, match=re.escape(value)):
        allows([{"Statement": statement}], "ec2:CreateFleet", "*", CONTEXT)


def test_unknown_condition_grants_nothing() -> None:
    statement = allow("ec2:*", "*", DateBefore={"aws:CurrentTime": "2030-01-01T00:00:00Z"})
    with pytest.raises(UnknownOperator, match="DateBefore"):
        allows([{"Statement": statement}], "ec2:CreateFleet", "*", {})


def test_permission_ends_when_the_accounts_clock_passes_its_time(
    aws: Aws, ec2: Any, request: pytest.FixtureRequest
) -> None:
    odcr = aws.reserve(ec2, 2)
    until = aws.control.now() + timedelta(hours=1)
    caller = by(aws, allow(CANCEL, "*", DateLessThan={"aws:CurrentTime": until.isoformat()}))
    request.getfixturevalue("enforced")
    with refused("DryRunOperation", status=412):
        caller.cancel_capacity_reservation(CapacityReservationId=odcr, DryRun=True)
    aws.control.advance(3601)
    with refused("UnauthorizedOperation", status=403):
        caller.cancel_capacity_reservation(CapacityReservationId=odcr, DryRun=True)


def test_a_statement_is_about_its_resources_and_a_deny_wins(
    aws: Aws, ec2: Any, request: pytest.FixtureRequest
) -> None:
    named, unnamed, denied = (aws.reserve(ec2, 2) for _ in range(3))
    ec2.create_tags(Resources=[denied], Tags=[TEAM])
    move = "ec2:MoveCapacityReservationInstances"
    caller = by(
        aws,
        allow([CANCEL, move], [f"{ARN}:capacity-reservation/{id_}" for id_ in (named, denied)]),
        {
            "Effect": "Deny",
            "Action": CANCEL,
            "Resource": "*",
            "Condition": {"StringEquals": {"aws:ResourceTag/team": "a"}},
        },
    )
    request.getfixturevalue("enforced")
    with refused("DryRunOperation", status=412):
        caller.cancel_capacity_reservation(CapacityReservationId=named, DryRun=True)
    with refused("UnauthorizedOperation", status=403, text=f"resource: {ARN}:capacity-reservation/{unnamed}"):
        caller.cancel_capacity_reservation(CapacityReservationId=unnamed, DryRun=True)
    with refused("UnauthorizedOperation", status=403, text="explicit deny"):
        caller.cancel_capacity_reservation(CapacityReservationId=denied, DryRun=True)
    parameters = {"SourceCapacityReservationId": named, "InstanceCount": 1}
    caller.move_capacity_reservation_instances(DestinationCapacityReservationId=denied, **parameters)
    with refused("UnauthorizedOperation", status=403, text=unnamed):
        caller.move_capacity_reservation_instances(DestinationCapacityReservationId=unnamed, **parameters)


def test_tagging_a_new_resource_needs_its_own_permission(aws: Aws, request: pytest.FixtureRequest) -> None:
    reserve = "ec2:CreateCapacityReservation"
    everything = f"{ARN}:capacity-reservation/*"
    keys = {"ForAllValues:StringEquals": {"aws:TagKeys": ["note"]}, "Null": {"aws:TagKeys": "false"}}
    caller = by(
        aws,
        allow(reserve, everything, StringEquals={"aws:RequestTag/team": "a"}),
        allow("ec2:CreateTags", everything, StringEquals={"ec2:CreateAction": "CreateCapacityReservation"}),
        allow(["ec2:CreateTags", "ec2:DeleteTags"], everything, **keys),
    )
    request.getfixturevalue("enforced")
    parameters = {**SPEC, "InstanceCount": 1}
    with refused("UnauthorizedOperation", status=403, text=reserve):
        caller.create_capacity_reservation(**parameters)
    tags = [{"ResourceType": "capacity-reservation", "Tags": [TEAM]}]
    odcr = caller.create_capacity_reservation(**parameters, TagSpecifications=tags)["CapacityReservation"]
    ids = [odcr["CapacityReservationId"]]
    caller.create_tags(Resources=ids, Tags=[{"Key": "note", "Value": "x"}])
    for wrong in ([TEAM], [{"Key": "note", "Value": "x"}, TEAM]):
        with refused("UnauthorizedOperation", status=403, text="ec2:CreateTags"):
            caller.create_tags(Resources=ids, Tags=wrong)
    with refused("UnauthorizedOperation", status=403, text="ec2:DeleteTags"):
        caller.delete_tags(Resources=ids)


USED = ("image", "subnet", "security-group", "capacity-reservation", "launch-template")
MADE = ("instance", "volume", "network-interface", "fleet")


def test_fleet_needs_permission_for_every_resource_it_uses_and_creates(
    aws: Aws, ec2: Any, request: pytest.FixtureRequest
) -> None:
    odcr = aws.reserve(ec2, 1)
    iam: Any = aws.client("iam")
    iam.create_role(RoleName="node", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="node")
    iam.add_role_to_instance_profile(InstanceProfileName="node", RoleName="node")
    group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    zone = [{"Name": "availability-zone", "Values": [ZONE]}]
    subnet = ec2.describe_subnets(Filters=zone)["Subnets"][0]["SubnetId"]
    template_id = template(
        ec2,
        SecurityGroupIds=[group],
        IamInstanceProfile={"Name": "node"},
        CapacityReservationSpecification=to_id(odcr, **ONLY),
    )

    def without(lacking: str) -> Any:
        """A user with all permissions but one."""
        kinds = [kind for kind in (*USED, *MADE) if kind != lacking]
        launch = [action for action in ("ec2:CreateFleet", "ec2:RunInstances") if action != lacking]
        statements = (
            allow(launch, [f"arn:aws:ec2:{REGION}:*:{kind}/*" for kind in kinds]),
            allow("ec2:CreateTags", "*", StringEquals={"ec2:CreateAction": "CreateFleet"}),
            allow("iam:PassRole", "*", StringEquals={"iam:PassedToService": "ec2.amazonaws.com"}),
        )
        kept = [statement for statement in statements if statement["Action"] != lacking]
        return by(aws, *kept, name=f"without-{lacking.replace(':', '-')}")

    one_thing = (*USED, *MADE, "ec2:RunInstances", "ec2:CreateTags", "iam:PassRole")
    users = {lacking: without(lacking) for lacking in (*one_thing, "nothing")}
    request.getfixturevalue("enforced")
    override = {"InstanceType": TYPE, "SubnetId": subnet}
    tags = [{"ResourceType": "instance", "Tags": [TEAM]}]
    for lacking in one_thing:
        with refused("UnauthorizedOperation", status=403, text=lacking):
            fleet(users[lacking], pool(template_id, override), TagSpecifications=tags)
    assert len(launched(fleet(users["nothing"], pool(template_id, override), TagSpecifications=tags))) == 1


def test_groups_queues_and_parameters_are_resources_too(aws: Aws, request: pytest.FixtureRequest) -> None:
    for name in ("mine", "theirs"):
        aws.group(name)
        aws.client("sqs").create_queue(QueueName=name)
    own_arns = [
        f"arn:aws:{rest}" for rest in (f"resource-groups:{REGION}:*:group/mine", f"sqs:{REGION}:*:mine")
    ]
    published = f"arn:aws:ssm:{REGION}::parameter/aws/service/*"
    statements = [
        allow(["resource-groups:GetGroup", "sqs:GetQueueUrl"], own_arns),
        allow("ssm:GetParameters", published),
    ]
    groups, sqs, ssm = (
        by(aws, *statements, service=service, name=service) for service in ("resource-groups", "sqs", "ssm")
    )
    request.getfixturevalue("enforced")
    groups.get_group(Group="mine")
    sqs.get_queue_url(QueueName="mine")
    ssm.get_parameters(Names=["/aws/service/x"])
    with refused(DENIED, status=403, text="group/theirs"):
        groups.get_group(Group="theirs")
    with refused(DENIED, status=403, text="theirs"):
        sqs.get_queue_url(QueueName="theirs")
    with refused(DENIED, status=403, text="parameter/secret"):
        ssm.get_parameters(Names=["/aws/service/x", "/secret"])


@pytest.mark.covers("SAF-21")
@pytest.mark.parametrize("lacking", ["", *MEMBERS])
def test_members_of_a_group_are_listed_with_the_rights_that_aws_names(
    aws: Aws, request: pytest.FixtureRequest, lacking: str
) -> None:
    aws.group("mine")
    actions = [action for action in ("resource-groups:ListGroupResources", *MEMBERS) if action != lacking]
    groups = by(aws, allow(actions, "*"), service="resource-groups")
    request.getfixturevalue("enforced")
    if not lacking:
        assert groups.list_group_resources(Group="mine")["Resources"] == []
        return
    with refused(DENIED, status=403, text=lacking):
        groups.list_group_resources(Group="mine")
