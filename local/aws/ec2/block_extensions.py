"""Extending a Capacity Block: the same reservation, a later end.

The end moves when the extension is paid: within 12 hours and not later than 35 minutes before the block
ends, else the block ends as it would have. Source: EC2 User Guide, "Extend Capacity Blocks": active or
scheduled, from 56 days to an hour before the end, one unpaid extension at a time, 182 days in all.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from moto.ec2.utils import random_id

from local.aws.ec2 import block_market, checks, errors, life
from local.aws.ec2.blocks import Extension, ExtensionOffer
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.reservations import Ec2Reservation
from local.aws.ec2.world import AwsWorld

OFFER_ID = re.compile(r"^cbe-[0-9a-f]{8}(?:[0-9a-f]{9})?$")
EARLIEST, LATEST = timedelta(days=56), timedelta(hours=1)
LAST_PAYMENT = timedelta(minutes=35)
LONGEST = timedelta(days=182)


def offers(world: AwsWorld, reservation: Ec2Reservation, account_id: str, hours: Any) -> list[ExtensionOffer]:
    length = block_market.duration("CapacityBlockExtensionDurationHours", hours)
    _require_extensible(world, reservation, account_id)
    start, end = reservation.start_date, reservation.end_date
    assert start is not None and end is not None
    if end + length - start > LONGEST:
        raise errors.invalid(
            "CapacityBlockExtensionDurationHours", hours, "A Capacity Block is at most 182 days in all."
        )
    offer = ExtensionOffer(
        id=random_id(prefix="cbe"),
        reservation=reservation,
        hours=int(hours),
        start=end,
        end=end + length,
        fee=block_market.fee(reservation.instance_type, reservation.total, length),
    )
    world.blocks.extension_offers[offer.id] = offer
    return [offer]


def purchase(
    world: AwsWorld, reservation: Ec2Reservation, account_id: str, offer_id: str | None
) -> Extension:
    if not offer_id:
        raise errors.missing("CapacityBlockExtensionOfferingId")
    if not OFFER_ID.match(offer_id):
        raise Ec2Error("InvalidCapacityBlockOfferingIdMalformed", f"Invalid ID: '{offer_id}'")
    offer = world.blocks.extension_offers.get(offer_id)
    if offer is None or offer.reservation is not reservation:
        raise Ec2Error(
            "InvalidCapacityBlockOfferingIdNotFound",
            f"The extension offering '{offer_id}' of {reservation.id} was not found",
        )
    _require_extensible(world, reservation, account_id)
    if offer.start != reservation.end_date:
        raise Ec2Error(
            "InvalidCapacityBlockOfferingIdExpired",
            f"The extension offering '{offer_id}' is no longer available: the end of "
            f"{reservation.id} has moved",
        )
    extension = Extension(offer=offer, bought=world.ledger.now())
    world.blocks.extensions.append(extension)
    _bill(world, extension)
    return extension


def _require_extensible(world: AwsWorld, reservation: Ec2Reservation, account_id: str) -> None:
    checks.require_owner(world.ledger, reservation, account_id)
    if reservation.reservation_type != "capacity-block":
        raise errors.invalid("CapacityReservationId", reservation.id, "It is not a Capacity Block.")
    if reservation.state not in ("active", "scheduled") or reservation.end_date is None:
        raise Ec2Error(
            world.codes["extend-wrong-state"],
            f"{reservation.id} is {reservation.state}; a Capacity Block is extended while it is active or "
            "scheduled",
        )
    left = reservation.end_date - world.ledger.now()
    if not LATEST <= left <= EARLIEST:
        raise Ec2Error(
            world.codes["extend-wrong-state"],
            f"{reservation.id} ends in {left}; it can be extended from 56 days to 1 hour before its end",
        )
    if any(
        e.status == "payment-pending" and e.offer.reservation is reservation for e in world.blocks.extensions
    ):
        raise Ec2Error(
            world.codes["extend-wrong-state"], f"{reservation.id} has an extension that is not paid yet"
        )


def _bill(world: AwsWorld, extension: Extension) -> None:
    offer, ledger = extension.offer, world.ledger
    paid_at = extension.bought + timedelta(seconds=world.knobs.payment_s)
    deadline = min(extension.bought + block_market.PAYMENT_WINDOW, offer.start - LAST_PAYMENT)

    def paid() -> None:
        extension.status = "payment-succeeded"
        ledger.change(offer.reservation, end_date=offer.end)
        life.expire_at(world, offer.reservation)

    def failed() -> None:
        extension.status = "payment-failed"

    if paid_at < deadline:
        ledger.schedule(paid_at, paid)
    else:
        ledger.schedule(deadline, failed)
