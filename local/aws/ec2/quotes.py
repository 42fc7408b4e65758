"""Quotes for changes that a commitment forbids without one: to cancel, or to start later.

A quote is good for 24 hours and once. Cancelled within its commitment, a reservation gives its capacity back
at once, is `cancelling` while the charges go on and `cancelled` at the commitment's end. A start can be put
off by 30 days in all, and not in the last hour before it.

Sources: EC2 API reference, CreateCapacityReservationCancellationQuote, CancelCapacityReservation,
CreateCapacityReservationDateChangeQuote, ModifyCapacityReservation. How the charge of a reservation that has
not started grows is not documented: here it is the whole commitment.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from moto.ec2.utils import random_id

from local.aws.clock import aware
from local.aws.ec2 import checks, errors, future
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.records import Kind, ReservationQuote
from local.aws.ec2.reservations import Ec2Reservation
from local.aws.ec2.world import AwsWorld

VALID = timedelta(hours=24)
LAST_HOUR = timedelta(hours=1)
LATEST = timedelta(days=30)  # after the first requested start
WIND_DOWN = "commitment-wind-down"


def for_cancellation(world: AwsWorld, reservation: Ec2Reservation, account_id: str) -> ReservationQuote:
    checks.require_owner(world.ledger, reservation, account_id)
    if not future.is_committed(world.ledger, reservation):
        raise Ec2Error(
            world.codes["quote-not-needed"],
            f"{reservation.id} is {reservation.state} and not within a commitment: it needs no quote",
        )
    return _store(world, reservation, "cancellation", world.ledger.now() + VALID, None)


def for_date_change(
    world: AwsWorld, reservation: Ec2Reservation, account_id: str, new_start: Any
) -> ReservationQuote:
    checks.require_owner(world.ledger, reservation, account_id)
    start, now = reservation.start_date, world.ledger.now()
    if reservation.state != "scheduled" or start is None:
        raise Ec2Error(
            world.codes["modify-wrong-state"], f"{reservation.id} is {reservation.state}, not scheduled"
        )
    requested, first = aware(new_start), reservation.original_start or start
    if not start < requested <= first + LATEST:
        raise errors.invalid(
            "NewStartDate",
            requested.isoformat(),
            f"It has to be after {start.isoformat()} and at most 30 days after {first.isoformat()}.",
        )
    if now > start - LAST_HOUR:
        raise Ec2Error(world.codes["modify-wrong-state"], f"{reservation.id} starts in less than an hour")
    return _store(world, reservation, "date-change", min(now + VALID, start - LAST_HOUR), requested)


def _store(
    world: AwsWorld, reservation: Ec2Reservation, kind: Kind, expires: datetime, new_start: datetime | None
) -> ReservationQuote:
    quote = ReservationQuote(
        id=random_id(prefix="crcq" if kind == "cancellation" else "crmq"),
        kind=kind,
        reservation=reservation,
        created=world.ledger.now(),
        expires=expires,
        state_then=reservation.state,
        start_then=reservation.start_date,
        new_start=new_start,
    )
    world.quotes[quote.id] = quote
    return quote


def _take(world: AwsWorld, kind: Kind, quote_id: str, reservation: Ec2Reservation) -> ReservationQuote:
    quote = world.quotes.get(quote_id)
    if quote is None or quote.kind != kind or quote.reservation is not reservation:
        raise Ec2Error(world.codes["quote-unknown"], f"There is no quote {quote_id} for {reservation.id}")
    if quote.state(world.ledger.now()) != "active":
        raise Ec2Error(world.codes["quote-expired"], f"The quote {quote_id} is not active any more")
    quote.used = True
    return quote


def wind_down(world: AwsWorld, reservation: Ec2Reservation, params: Mapping[str, Any]) -> None:
    """Cancel within the commitment, which takes a quote and the charges."""
    ledger, until = world.ledger, reservation.committed_until
    assert until is not None
    if not params.get("QuoteId") or params.get("ApplyCancellationCharges") != WIND_DOWN:
        raise Ec2Error(
            ledger.codes["cancel-wrong-state"],
            f"The capacity reservation {reservation.id} is committed until {until.isoformat()}: to cancel "
            f"it takes a cancellation quote and ApplyCancellationCharges {WIND_DOWN}",
        )
    _take(world, "cancellation", params["QuoteId"], reservation)
    ledger.change(reservation, state="cancelling")
    ledger.schedule(until, lambda: ledger.change(reservation, state="cancelled"))


def accept_date_change(world: AwsWorld, reservation: Ec2Reservation, params: Mapping[str, Any]) -> None:
    if not params.get("QuoteId"):
        raise errors.missing("QuoteId")
    if params.get("AcceptModificationTerms") is not True:
        raise errors.combination("A quote is applied with AcceptModificationTerms true")
    if reservation.state != "scheduled":
        raise Ec2Error(
            world.codes["modify-wrong-state"], f"{reservation.id} is {reservation.state}, not scheduled"
        )
    start_date = params.get("StartDate")
    offered = world.quotes.get(params["QuoteId"])
    if start_date and offered is not None and offered.new_start != aware(start_date):
        raise errors.invalid("StartDate", aware(start_date).isoformat(), "It is not the quote's.")
    quote = _take(world, "date-change", params["QuoteId"], reservation)
    world.ledger.change(
        reservation,
        original_start=reservation.original_start or reservation.start_date,
        start_date=quote.new_start,
        adjusted=True,
    )
    future.deliver_at(world, reservation)


def describe(quote: ReservationQuote, now: datetime, tags: list[dict[str, str]]) -> dict[str, Any]:
    """The API's shape of a quote, which differs by kind in all but four fields."""
    reservation = quote.reservation
    shown: dict[str, Any] = {
        "CapacityReservationId": reservation.id,
        "CreateTime": quote.created,
        "ExpirationTime": quote.expires,
        "QuoteState": quote.state(now),
        "Tags": tags,
    }
    until = reservation.committed_until
    if quote.kind == "cancellation":
        assert until is not None
        hours = max(0, round((until - quote.created) / timedelta(hours=1)))
        return shown | {
            "CapacityReservationCancellationQuoteId": quote.id,
            "CurrentConfiguration": {
                "InstanceCount": reservation.total,
                "ReservationState": quote.state_then,
            },
            "CancellationTerms": [
                {
                    "CancellationType": WIND_DOWN,
                    "ReservationState": "cancelling",
                    "CommittedInstanceCount": reservation.committed,
                    "ChargeCommitmentDurationHours": hours,
                    "ChargeEndDate": until,
                }
            ],
        }
    assert quote.new_start is not None and reservation.commitment is not None
    return shown | {
        "CapacityReservationModificationQuoteId": quote.id,
        "CurrentConfiguration": {
            "InstanceCount": reservation.total,
            "ReservationState": quote.state_then,
            "StartDate": quote.start_then,
            "OriginalStartDate": reservation.original_start or quote.start_then,
        },
        "ModificationTerms": {
            "ReservationUpdate": {
                "NewStartDate": quote.new_start,
                "NewCommitmentEndDate": quote.new_start + reservation.commitment,
                "NewCommitmentDuration": int(reservation.commitment.total_seconds()),
            }
        },
    }
