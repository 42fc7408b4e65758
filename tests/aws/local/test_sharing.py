"""Reservations shared between accounts through RAM, and the payer of their unused slots."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.aws.local.kit import ONCE, OTHER_ACCOUNT, REGION, Aws, instances, places, refused, run, seen, to_id

WHEN = datetime(2030, 1, 1, tzinfo=UTC)
OWNER = "123456789012"
THIRD = "333333333333"


@pytest.fixture(autouse=True)
def stopped_clock(aws: Aws) -> None:
    aws.control.freeze(WHEN)


def as_account(aws: Aws, account: str, service: str = "ec2") -> Any:
    """A client of another account, through a role of it."""
    role = aws.client("sts").assume_role(RoleArn=f"arn:aws:iam::{account}:role/x", RoleSessionName="test")
    keys = role["Credentials"]
    session: Any = boto3.Session(
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
        region_name=REGION,
    )
    return session.client(service, endpoint_url=aws.endpoint, config=ONCE)


def arn(reservation_id: str, account: str = OWNER) -> str:
    return f"arn:aws:ec2:{REGION}:{account}:capacity-reservation/{reservation_id}"


def share(aws: Aws, *reservation_ids: str, to: tuple[str, ...] = (OTHER_ACCOUNT,)) -> str:
    reply = aws.client("ram").create_resource_share(
        name="pool",
        resourceArns=[arn(reservation_id) for reservation_id in reservation_ids],
        principals=list(to),
    )
    return str(reply["resourceShare"]["resourceShareArn"])


def visible(ec2: Any) -> list[str]:
    reservations = ec2.describe_capacity_reservations()["CapacityReservations"]
    return [reservation["CapacityReservationId"] for reservation in reservations]


def test_a_shared_reservation_is_seen_and_used_but_not_changed_by_the_other_account(
    aws: Aws, ec2: Any
) -> None:
    reservation_id, own = aws.reserve(ec2, 2), aws.reserve(ec2)
    other = as_account(aws, OTHER_ACCOUNT)
    assert visible(other) == []
    share(aws, reservation_id)
    assert visible(other) == [reservation_id]
    assert own in visible(ec2)
    assert seen(other, reservation_id)["OwnerId"] == OWNER
    assert places(run(other, specification=to_id(reservation_id))) == [reservation_id]
    with refused("OperationNotPermitted", text=OWNER):
        other.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    usage = ec2.get_capacity_reservation_usage(CapacityReservationId=reservation_id)["InstanceUsages"]
    assert usage == [{"AccountId": OTHER_ACCOUNT, "UsedInstanceCount": 1}]
    shares = as_account(aws, OTHER_ACCOUNT, "ram").get_resource_shares(resourceOwner="OTHER-ACCOUNTS")
    assert [entry["name"] for entry in shares["resourceShares"]] == ["pool"]


def test_instances_of_an_unshared_reservation_run_on_outside(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2, 2)
    share_arn, ram = share(aws, reservation_id), aws.client("ram")
    other = as_account(aws, OTHER_ACCOUNT)
    (inside,) = run(other, specification=to_id(reservation_id))
    ram.delete_resource_share(resourceShareArn=share_arn)
    assert visible(other) == []
    assert places(instances(other, [inside["InstanceId"]])) == [None]
    assert seen(ec2, reservation_id)["AvailableInstanceCount"] == 2


def test_shares_gain_and_lose_reservations_and_accounts(aws: Aws, ec2: Any) -> None:
    first, second = aws.reserve(ec2), aws.reserve(ec2)
    ram, share_arn = aws.client("ram"), share(aws, first)
    other, third = as_account(aws, OTHER_ACCOUNT), as_account(aws, THIRD)
    added = ram.associate_resource_share(
        resourceShareArn=share_arn, resourceArns=[arn(second)], principals=[f"arn:aws:iam::{THIRD}:root"]
    )["resourceShareAssociations"]
    assert [(entry["associationType"], entry["status"]) for entry in added] == [
        ("RESOURCE", "ASSOCIATED"),
        ("PRINCIPAL", "ASSOCIATED"),
    ]
    assert visible(other) == visible(third) == [first, second]
    ram.disassociate_resource_share(resourceShareArn=share_arn, principals=[OTHER_ACCOUNT])
    ram.disassociate_resource_share(resourceShareArn=share_arn, resourceArns=[arn(first)])
    assert (visible(other), visible(third)) == ([], [second])


def test_two_shares_and_the_control_plane_do_not_undo_each_other(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2)
    aws.control.set_reservation(reservation_id, shared_with=[THIRD])
    first, _ = share(aws, reservation_id), share(aws, reservation_id)
    aws.client("ram").delete_resource_share(resourceShareArn=first)
    assert visible(as_account(aws, OTHER_ACCOUNT)) == visible(as_account(aws, THIRD)) == [reservation_id]


def test_invalid_shares_are_refused(aws: Aws, ec2: Any) -> None:
    dedicated = aws.reserve(ec2, Tenancy="dedicated")
    for wrong, code in [(dedicated, "InvalidParameterException"), ("cr-0", "UnknownResourceException")]:
        with pytest.raises(ClientError) as info:
            share(aws, wrong)
        assert info.value.response["Error"]["Code"] == code
    lent = aws.reserve(ec2)
    share(aws, lent)
    ram = as_account(aws, OTHER_ACCOUNT, "ram")
    with pytest.raises(ClientError, match="could not be found in your account"):
        ram.create_resource_share(name="again", resourceArns=[arn(lent)], principals=[THIRD])


# ---- billing


def request_billing(ec2: Any, reservation_id: str, account: str = OTHER_ACCOUNT, **more: Any) -> None:
    ec2.associate_capacity_reservation_billing_owner(
        CapacityReservationId=reservation_id, UnusedReservationBillingOwnerId=account, **more
    )


def status(ec2: Any, role: str = "odcr-owner", **more: Any) -> list[str]:
    answer = ec2.describe_capacity_reservation_billing_requests(Role=role, **more)
    return [request["Status"] for request in answer["CapacityReservationBillingRequests"]]


def test_a_consumer_accepts_to_pay_and_the_owner_takes_it_back(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2)
    share(aws, reservation_id)
    other = as_account(aws, OTHER_ACCOUNT)
    request_billing(ec2, reservation_id)
    assert status(ec2) == status(other, "unused-reservation-billing-owner") == ["pending"]
    assert status(other) == []
    other.accept_capacity_reservation_billing_ownership(CapacityReservationId=reservation_id)
    (request,) = ec2.describe_capacity_reservation_billing_requests(Role="odcr-owner")[
        "CapacityReservationBillingRequests"
    ]
    assert (request["Status"], request["RequestedBy"]) == ("accepted", OWNER)
    assert request["CapacityReservationInfo"]["InstanceType"] == "m5.large"
    assert seen(ec2, reservation_id)["UnusedReservationBillingOwnerId"] == OTHER_ACCOUNT
    with refused("IncorrectState", text="accepted already"):
        request_billing(ec2, reservation_id)
    ec2.disassociate_capacity_reservation_billing_owner(
        CapacityReservationId=reservation_id, UnusedReservationBillingOwnerId=OTHER_ACCOUNT
    )
    assert status(ec2) == ["revoked"]
    assert "UnusedReservationBillingOwnerId" not in seen(ec2, reservation_id)
    aws.control.advance(86400)
    assert status(ec2) == []


def test_requests_are_rejected_cancelled_or_expire(aws: Aws, ec2: Any) -> None:
    ids = [aws.reserve(ec2) for _ in range(3)]
    share(aws, *ids)
    other = as_account(aws, OTHER_ACCOUNT)
    for reservation_id in ids:
        request_billing(ec2, reservation_id)
    other.reject_capacity_reservation_billing_ownership(CapacityReservationId=ids[0])
    ec2.disassociate_capacity_reservation_billing_owner(
        CapacityReservationId=ids[1], UnusedReservationBillingOwnerId=OTHER_ACCOUNT
    )
    aws.control.advance(12 * 3600)
    assert status(ec2) == ["rejected", "cancelled", "expired"]
    assert status(ec2, CapacityReservationIds=[ids[2]]) == ["expired"]
    assert status(ec2, Filters=[{"Name": "status", "Values": ["rejected"]}]) == ["rejected"]
    page = ec2.describe_capacity_reservation_billing_requests(Role="odcr-owner", MaxResults=2)
    assert status(ec2, NextToken=page["NextToken"]) == ["expired"]


def test_billing_that_is_refused(aws: Aws, ec2: Any) -> None:
    reservation_id = aws.reserve(ec2)
    with refused("InvalidParameterValue", text="not shared"):
        request_billing(ec2, reservation_id)
    share(aws, reservation_id)
    other = as_account(aws, OTHER_ACCOUNT)
    with refused("OperationNotPermitted"):
        request_billing(other, reservation_id, THIRD)
    with refused("IncorrectState", text="no pending request"):
        other.accept_capacity_reservation_billing_ownership(CapacityReservationId=reservation_id)
    with refused("DryRunOperation", status=412):
        request_billing(ec2, reservation_id, DryRun=True)
    with refused("DryRunOperation", status=412):
        other.accept_capacity_reservation_billing_ownership(CapacityReservationId=reservation_id, DryRun=True)
    with refused("DryRunOperation", status=412):
        status(ec2, DryRun=True)
    with refused("InvalidParameterValue", text="odcr-owner"):
        status(ec2, "me")
    with refused("InvalidParameterValue", text="requested-by"):
        status(ec2, Filters=[{"Name": "requested-by", "Values": [OWNER]}])


def test_share_shows_its_tags_and_permissions(aws: Aws, ec2: Any) -> None:
    ram = aws.client("ram")
    share_arn = ram.create_resource_share(name="pool", tags=[{"key": "team", "value": "ml"}])[
        "resourceShare"
    ]["resourceShareArn"]

    def tags() -> list[dict[str, str]]:
        (shown,) = ram.get_resource_shares(resourceOwner="SELF")["resourceShares"]
        return list(shown["tags"])

    def kinds() -> list[str]:
        listed = ram.list_resource_share_permissions(resourceShareArn=share_arn)["permissions"]
        return [permission["resourceType"] for permission in listed]

    assert tags() == [{"key": "team", "value": "ml"}]
    ram.tag_resource(resourceShareArn=share_arn, tags=[{"key": "team", "value": "web"}])
    assert tags() == [{"key": "team", "value": "web"}]
    ram.untag_resource(resourceShareArn=share_arn, tagKeys=["team", "other"])
    assert tags() == []
    assert kinds() == []
    ram.associate_resource_share(resourceShareArn=share_arn, resourceArns=[arn(aws.reserve(ec2))])
    assert kinds() == ["ec2:CapacityReservation"]
