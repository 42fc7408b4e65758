"""The payer of a shared reservation's unused slots: the owner requests, a consumer accepts or rejects.

    pending -> accepted -> revoked        pending -> rejected | cancelled | expired (after 12 hours)

Sources: EC2 User Guide, "Billing assignment for shared Amazon EC2 Capacity Reservations" and the pages below
it: only the most recent request of a reservation is kept; those cancelled, expired or revoked for 24 hours.
The payer that both accounts need is not simulated.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from local.aws.ec2 import checks, errors
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.records import BillingRequest
from local.aws.ec2.reservations import Ec2Reservation
from local.aws.ec2.world import AwsWorld

ANSWER_WITHIN = timedelta(hours=12)
SHOWN_FOR = timedelta(hours=24)
OVER = frozenset({"cancelled", "expired", "revoked"})
MESSAGES = {
    "pending": "The request has not been answered yet",
    "accepted": "The request was accepted",
    "rejected": "The request was rejected",
    "cancelled": "The request was cancelled by the owner",
    "revoked": "The owner took the billing back",
    "expired": "The request was not answered within 12 hours",
}


def associate(world: AwsWorld, reservation: Ec2Reservation, account_id: str, consumer: str | None) -> None:
    checks.require_owner(world.ledger, reservation, account_id)
    if not consumer or len(consumer) != 12 or not consumer.isdigit():
        raise errors.invalid(
            "UnusedReservationBillingOwnerId", consumer, "Expecting an account of 12 digits."
        )
    if consumer not in reservation.shared_with:
        raise errors.invalid(
            "UnusedReservationBillingOwnerId", consumer, f"{reservation.id} is not shared with this account."
        )
    now = world.billing.get(reservation.id)
    if now is not None and now.status in ("pending", "accepted"):
        raise Ec2Error(
            world.codes["billing-wrong-state"], f"A request for {reservation.id} is {now.status} already"
        )
    request = BillingRequest(
        reservation=reservation, consumer=consumer, status="pending", updated=world.ledger.now()
    )
    world.billing[reservation.id] = request

    def expire() -> None:
        if request.status == "pending":
            _become(world, request, "expired")

    world.ledger.after(ANSWER_WITHIN.total_seconds(), expire)


def disassociate(world: AwsWorld, reservation: Ec2Reservation, account_id: str, consumer: str | None) -> None:
    """The owner cancels a pending request, or revokes an accepted one."""
    checks.require_owner(world.ledger, reservation, account_id)
    request = _of(world, reservation, consumer, "pending", "accepted")
    _become(world, request, "cancelled" if request.status == "pending" else "revoked")


def answer(world: AwsWorld, reservation: Ec2Reservation, account_id: str, *, accepted: bool) -> None:
    request = _of(world, reservation, account_id, "pending")
    _become(world, request, "accepted" if accepted else "rejected")


def _of(world: AwsWorld, reservation: Ec2Reservation, consumer: str | None, *states: str) -> BillingRequest:
    request = world.billing.get(reservation.id)
    if request is None or request.consumer != consumer or request.status not in states:
        raise Ec2Error(
            world.codes["billing-wrong-state"],
            f"There is no {' or '.join(states)} request for {reservation.id} and account {consumer}",
        )
    return request


def _become(world: AwsWorld, request: BillingRequest, status: str) -> None:
    request.status, request.updated = status, world.ledger.now()
    request.reservation.billing_owner = request.consumer if status == "accepted" else None


def visible(world: AwsWorld, account_id: str, region: str, role: str) -> list[BillingRequest]:
    """The requests that an account sees in one of its roles."""
    now = world.ledger.now()
    return [
        request
        for request in world.billing.values()
        if request.reservation.region == region
        and (request.reservation.owner_id if role == "odcr-owner" else request.consumer) == account_id
        and not (request.status in OVER and now - request.updated >= SHOWN_FOR)
    ]


def describe(request: BillingRequest) -> dict[str, Any]:
    reservation = request.reservation
    return {
        "CapacityReservationId": reservation.id,
        "RequestedBy": reservation.owner_id,
        "UnusedReservationBillingOwnerId": request.consumer,
        "LastUpdateTime": request.updated,
        "Status": request.status,
        "StatusMessage": MESSAGES[request.status],
        "CapacityReservationInfo": {
            "InstanceType": reservation.instance_type,
            "AvailabilityZone": reservation.zone,
            "AvailabilityZoneId": reservation.zone_id,
            "Tenancy": reservation.tenancy,
        },
    }
