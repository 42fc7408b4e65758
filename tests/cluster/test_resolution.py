"""The reservations that a class selects, and the class's status about them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter_aws import EC2NodeClass
from tests.cluster.account import ACCOUNT, A, B, C
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack

RESOLVED = names.RESERVATIONS_RESOLVED


def listed(stack: Stack, name: str = "gpu") -> dict[str, dict[str, Any]]:
    """The class's status.capacityReservations by id, as the API server serves them."""
    status = stack.client.get(EC2NodeClass.KIND, name).get("status", {})
    return {row["id"]: row for row in status.get("capacityReservations", [])}


def misfits(stack: Stack, name: str = "gpu") -> dict[str, dict[str, Any]]:
    status = stack.client.get(EC2NodeClass.KIND, name).get("status", {})
    return {row["id"]: row for row in status.get("capacityReservationMisfits", [])}


@pytest.mark.covers("KRP-05", "KRP-09")
@pytest.mark.both_servers
def test_a_class_shows_the_reservation_that_it_names(stack: Stack) -> None:
    end = (datetime.now(UTC) + timedelta(days=7)).replace(microsecond=0)
    odcr = stack.aws.odcr("p5.48xlarge", B, 3, EndDateType="limited", EndDate=end)
    stack.aws.rival(odcr)
    stack.start()
    stack.node_class(id_=odcr)
    condition = stack.until_class(RESOLVED, "True", reason="ReservationsFound")
    assert condition.message == "1 usable with 2 of 3 slots free"
    assert listed(stack)[odcr] == {
        "id": odcr,
        "availabilityZone": B,
        "instanceType": "p5.48xlarge",
        "instanceMatchCriteria": "targeted",
        "ownerID": ACCOUNT,
        "reservationType": "default",
        "interruptible": False,
        "state": "active",
        "totalInstanceCount": 3,
        "availableInstanceCount": 2,
        "endTime": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


@pytest.mark.covers("KRP-05")
@pytest.mark.parametrize("criteria", ["open", "targeted"])
def test_an_id_means_that_reservation_whatever_its_match_criteria(stack: Stack, criteria: str) -> None:
    odcr = stack.aws.odcr(criteria=criteria)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim()
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == odcr


@pytest.mark.covers("KRP-05")
def test_a_cancelled_reservation_is_named_with_its_state(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=odcr)
    stack.start()
    stack.node_class(id_=odcr)
    condition = stack.until_class(RESOLVED, "False", reason="ReservationCancelled")
    assert odcr in condition.message and "cancelled" in condition.message
    assert "InvalidCapacityReservationState" in condition.message
    assert misfits(stack)[odcr]["code"] == "InvalidCapacityReservationState"


@pytest.mark.covers("KRP-05")
def test_a_reservation_shared_with_others_only_is_not_found(stack: Stack) -> None:
    foreign = stack.control.reservation(
        account="999999999999",
        InstanceType="m5.large",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=A,
        InstanceCount=1,
    )["CapacityReservationId"]
    stack.start()
    stack.node_class(id_=foreign)
    condition = stack.until_class(RESOLVED, "False", reason="ReservationNotFound")
    assert f"{foreign} was not found, or is not shared with account {ACCOUNT}" in condition.message
    assert "InvalidCapacityReservationId.NotFound" in condition.message


@pytest.mark.covers("KRP-05", "KRP-09")
def test_a_reservation_that_another_account_shares_is_used(stack: Stack) -> None:
    shared = stack.control.reservation(
        InstanceType="m5.large",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=A,
        InstanceCount=1,
        owner_id="999999999999",
        shared_with=[ACCOUNT],
    )["CapacityReservationId"]
    stack.start()
    stack.node_class(id_=shared)
    stack.until_class(RESOLVED, "True")
    assert listed(stack)[shared]["ownerID"] == "999999999999"
    stack.claim()
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == shared


@pytest.mark.covers("KRP-06")
def test_a_member_that_joins_the_group_later_is_used_without_touching_a_manifest(stack: Stack) -> None:
    first, second = stack.aws.odcr(), stack.aws.odcr("m5.xlarge", B)
    arn = stack.aws.group(first)
    stack.node_class(group=arn)
    stack.start()
    stack.claims(2, types=("m5.large", "m5.xlarge"))

    def launched_status(name: str) -> str:
        condition = stack.claim_condition(name)
        return condition.status if condition else ""

    stack.until(
        lambda: {launched_status("c-0"), launched_status("c-1")} == {"True", "Unknown"},
        "one launched, one waits",
    )
    before = stack.get(EC2NodeClass, "gpu").metadata.generation
    stack.aws.join("team", second)
    stack.until_launched("c-0", "c-1")
    assert sorted(map(stack.reservation_of, ("c-0", "c-1"))) == sorted([first, second])
    assert {*listed(stack)} == {first, second}
    assert stack.get(EC2NodeClass, "gpu").metadata.generation == before


@pytest.mark.covers("KRP-06")
def test_a_claim_waits_for_a_new_class_s_group_instead_of_leaving_it(stack: Stack) -> None:
    """A class that names a group that has not been read yet: its claims do not fall back before it is
    read."""
    stack.start(poll_seconds=600.0)
    stack.until(lambda: stack.calls("DescribeCapacityReservations"), "first description")
    odcr = stack.aws.odcr()
    arn = stack.aws.group(odcr)
    stack.wait_for_ec2()
    stack.node_class(group=arn)
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == odcr


@pytest.mark.covers("KRP-05")
def test_a_claim_waits_for_a_reservation_made_after_the_last_description(stack: Stack) -> None:
    stack.start(poll_seconds=600.0)
    stack.until(lambda: stack.calls("DescribeCapacityReservations"), "first description")
    odcr = stack.aws.odcr()
    stack.wait_for_ec2()
    stack.node_class(id_=odcr)
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == odcr


@pytest.mark.covers("KRP-07")
def test_open_means_every_open_reservation_and_no_targeted_one(stack: Stack) -> None:
    opens = {stack.aws.odcr(criteria="open"), stack.aws.odcr("m5.xlarge", C, criteria="open")}
    stack.aws.odcr()
    stack.start()
    stack.node_class(preference="open")
    stack.until_class(RESOLVED, "True")
    assert {*listed(stack)} == opens
    assert not misfits(stack)


@pytest.mark.covers("KRP-07")
def test_none_uses_no_reservation_though_an_open_one_is_free(stack: Stack) -> None:
    odcr = stack.aws.odcr(criteria="open")
    stack.start()
    stack.node_class(preference="none")
    stack.until_class(RESOLVED, "True", reason="NotRequested")
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == ""
    assert stack.aws.free(odcr) == 1
    assert not listed(stack)


@pytest.mark.covers("KRP-08", "KRP-09")
def test_unfit_reservation_is_listed_with_its_id_and_reason(stack: Stack) -> None:
    aws = stack.aws
    fit = aws.odcr()
    windows = aws.odcr(platform="Windows")
    dedicated = aws.odcr(Tenancy="dedicated")
    elsewhere = aws.odcr(zone=C)
    placed = aws.odcr(
        PlacementGroupArn=f"arn:aws:ec2:us-east-1:{ACCOUNT}:placement-group/rack", kind="m5.xlarge"
    )
    arn = aws.group(fit, windows, dedicated, elsewhere)
    stack.start()
    stack.node_class(group=arn, zones=(A, B))
    condition = stack.until_class(RESOLVED, "True")
    assert {*listed(stack)} == {fit}
    assert {id_: row["reason"] for id_, row in misfits(stack).items()} == {
        windows: "PlatformMismatch",
        dedicated: "TenancyMismatch",
        elsewhere: "ZoneMismatch",
    }
    for id_, row in misfits(stack).items():
        assert id_ in row["message"] and id_ in condition.message
    assert C in misfits(stack)[elsewhere]["message"] and A in misfits(stack)[elsewhere]["message"]
    stack.node_class("placed", id_=placed)
    stack.until_class(RESOLVED, "False", name="placed", reason="PlacementGroupMismatch")


@pytest.mark.covers("KRP-08")
def test_a_reservation_that_is_about_to_start_is_shown_as_pending(stack: Stack) -> None:
    block = stack.aws.capacity_block(starts=timedelta(days=10), ends=timedelta(days=11), state="scheduled")
    stack.start()
    stack.node_class(id_=block)
    condition = stack.until_class(RESOLVED, "False", reason="ReservationsPending")
    assert block in condition.message and "scheduled" in condition.message
    assert listed(stack)[block]["state"] == "pending"


@pytest.mark.covers("KRP-08")
def test_a_reservation_past_its_end_is_not_offered(stack: Stack) -> None:
    end = datetime.now(UTC) + timedelta(hours=2)
    odcr = stack.aws.odcr(EndDateType="limited", EndDate=end)
    stack.start()
    stack.node_class(id_=odcr)
    stack.until_class(RESOLVED, "True")
    stack.advance(3 * 3600)
    condition = stack.until_class(RESOLVED, "False", reason="ReservationExpired")
    assert odcr in condition.message
    stack.claim(capacity=(RESERVED,))
    assert odcr in stack.until_waiting("c-0", "NoUsableReservation").message
    assert not stack.aws.instances()


@pytest.mark.covers("KRP-09")
def test_counts_follow_ec2(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    stack.start()
    stack.node_class(id_=odcr)
    stack.until_class(RESOLVED, "True")
    stack.aws.rival(odcr, 2)
    stack.until(lambda: listed(stack)[odcr]["availableInstanceCount"] == 0, "no slot free in the status")
    stack.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr, InstanceCount=5)
    stack.until(lambda: listed(stack)[odcr]["totalInstanceCount"] == 5, "the new total in the status")
    assert listed(stack)[odcr]["availableInstanceCount"] == 3


@pytest.mark.covers("KRP-09")
def test_karpenter_s_own_entries_and_conditions_stay(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr, capacityReservationSelectorTerms=[{"id": "cr-0123456789abcdef0"}])
    stack.edit(
        EC2NodeClass,
        "gpu",
        {
            "status": {
                "conditions": [
                    {
                        "type": "CapacityReservationsReady",
                        "status": "True",
                        "reason": "CapacityReservationsReady",
                        "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                ],
                "capacityReservations": [
                    {
                        "id": "cr-0123456789abcdef0",
                        "availabilityZone": A,
                        "instanceType": "m5.large",
                        "instanceMatchCriteria": "targeted",
                        "ownerID": ACCOUNT,
                        "reservationType": "default",
                        "state": "active",
                    }
                ],
            }
        },
        subresource="status",
    )
    stack.start()
    # Karpenter rewrites that list each minute, and launches into the listed reservations: it is left alone.
    assert odcr in stack.until_class(RESOLVED, "True").message
    assert {*listed(stack)} == {"cr-0123456789abcdef0"}
    kept = stack.class_condition("CapacityReservationsReady")
    assert kept is not None and (kept.status, kept.reason) == ("True", "CapacityReservationsReady")
