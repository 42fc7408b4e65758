"""Offering and selling Capacity Blocks.

    payment-pending -> scheduled -> active -> expired     payment-pending -> payment-failed (after 12 hours)

Each zone that has the instance type offers one block, from the first 11:30 UTC (the start and end of blocks)
after the earliest requested start. A zone's capacity for blocks is the pool of capacity type
`capacity-block`, without limit unless the control plane sets one. Blocks that don't overlap share it.
Offerings that are scripted through the control plane are listed first. An offering is gone when it is
bought, when its time is over, or when its capacity is taken.

Sources: EC2 API reference, DescribeCapacityBlockOfferings and PurchaseCapacityBlock; EC2 User Guide,
"Capacity Blocks for ML" (durations, 64 instances a block and 256 in all, eight weeks ahead).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, time, timedelta
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.utils import random_id

from local.aws.clock import aware
from local.aws.ec2 import changes, errors, life, prices, zones
from local.aws.ec2.blocks import Block, Offer
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.reservations import ENDED, Ec2Reservation, PoolKey
from local.aws.ec2.world import AwsWorld

OFFER_ID = re.compile(r"^cb-[0-9a-f]{8}(?:[0-9a-f]{9})?$")
MOST_IN_A_BLOCK = 64
MOST_IN_ALL = 256
AHEAD = timedelta(weeks=8)
SOONEST = timedelta(minutes=30)
TURN = time(11, 30)  # UTC
PAYMENT_WINDOW = timedelta(hours=12)
BLOCK = "capacity-block"


# ---- offering


def offers(world: AwsWorld, backend: zones.HasZones, params: Mapping[str, Any]) -> list[Offer]:
    now = world.ledger.now()
    length = duration("CapacityDurationHours", params.get("CapacityDurationHours"))
    types, count = _types(params), _count(params)
    earliest = aware(params["StartDateRange"]) if params.get("StartDateRange") else None
    latest = aware(params["EndDateRange"]) if params.get("EndDateRange") else None
    if latest is not None and latest <= (earliest or now):
        raise errors.invalid("EndDateRange", latest.isoformat(), "It has to be after StartDateRange.")
    ultraserver = params.get("UltraserverType")
    candidates = [
        offer
        for offer in world.blocks.scripted
        if (offer.account, offer.region) == (backend.account_id, backend.region_name)
        and (offer.ultraserver_type == ultraserver if ultraserver else offer.instance_type in types)
        and (
            int(params.get("UltraserverCount") or 1) == offer.ultraservers
            if ultraserver
            else offer.count == count
        )
        and timedelta() <= length - (offer.end - offer.start) < timedelta(days=1)
    ]
    if not ultraserver:
        candidates += _regular(world, backend, types, count, max(earliest or now, now + SOONEST), length)
    listed = [
        offer
        for offer in candidates
        if (earliest is None or offer.start >= earliest)
        and (latest is None or offer.end <= latest)
        and _is_free(world, offer)
    ]
    world.blocks.offers.update({offer.id: offer for offer in listed})
    return listed


def duration(parameter: str, value: Any) -> timedelta:
    """Whole days up to 14, whole weeks up to 26."""
    if value is None:
        raise errors.missing(parameter)
    days, odd_hours = divmod(int(value), 24)
    if odd_hours or days < 1 or (days > 14 and days % 7) or days > 182:
        raise errors.invalid(
            parameter, value, "It is in hours: whole days up to 14 days, then whole weeks up to 182 days."
        )
    return timedelta(days=days)


def _types(params: Mapping[str, Any]) -> list[str]:
    preferred = [entry["InstanceType"] for entry in params.get("InstanceTypePreferences") or []]
    if params.get("UltraserverType"):
        return []
    if params.get("InstanceType") and preferred:
        raise errors.combination("InstanceType and InstanceTypePreferences can't be specified together")
    if not params.get("InstanceType") and not preferred:
        raise errors.missing("InstanceType")
    return preferred or [str(params["InstanceType"])]


def _count(params: Mapping[str, Any]) -> int:
    count = int(params.get("InstanceCount") or 1)
    if not 1 <= count <= MOST_IN_A_BLOCK:
        raise errors.invalid("InstanceCount", count, f"Expecting a number from 1 to {MOST_IN_A_BLOCK}.")
    return count


def _regular(
    world: AwsWorld,
    backend: zones.HasZones,
    types: list[str],
    count: int,
    earliest: datetime,
    length: timedelta,
) -> Iterator[Offer]:
    start = earliest.replace(hour=TURN.hour, minute=TURN.minute, second=0, microsecond=0)
    if start < earliest:
        start += timedelta(days=1)
    if start > world.ledger.now() + AHEAD:
        return
    offered = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(backend.region_name, [])
    by_name = zones.by_name(backend)
    for instance_type in types:
        if BLOCK not in INSTANCE_TYPES.get(instance_type, {}).get("SupportedUsageClasses", []):
            continue  # nothing to offer
        for zone in sorted(o["Location"] for o in offered if o["InstanceType"] == instance_type):
            yield Offer(
                id=random_id(prefix="cb"),
                account=backend.account_id,
                region=backend.region_name,
                instance_type=instance_type,
                zone=zone,
                zone_id=by_name[zone].zone_id,
                count=count,
                start=start,
                end=start + length,
                fee=fee(instance_type, count, length),
            )


def fee(instance_type: str, count: int, length: timedelta) -> float:
    return prices.per_hour(instance_type) * count * (length / timedelta(hours=1))


def _is_free(world: AwsWorld, offer: Offer) -> bool:
    limit = world.ledger.limit_of(PoolKey(BLOCK, offer.instance_type, offer.zone))
    if limit is None:
        return True
    taken = sum(
        r.total
        for r in world.ledger.same_shape(offer.instance_type, offer.zone)
        if _holds(r) and r.start_date and r.end_date and r.start_date < offer.end and offer.start < r.end_date
    )
    return taken + offer.count <= limit


def _holds(reservation: Ec2Reservation) -> bool:
    return reservation.reservation_type == BLOCK and reservation.state not in ENDED


# ---- selling


def purchase(world: AwsWorld, backend: zones.HasZones, params: Mapping[str, Any]) -> Block:
    offer = _offer(world, backend, params.get("CapacityBlockOfferingId"))
    if params.get("InstancePlatform") is None:
        raise errors.missing("InstancePlatform")
    scope = world.ledger.in_scope(backend.account_id, backend.region_name).values()
    own = sum(r.total for r in scope if _holds(r) and r.owner_id == backend.account_id)
    if own + offer.count > MOST_IN_ALL:
        raise Ec2Error(
            world.codes["blocks-limit"],
            f"{own} instances are in your Capacity Blocks; with these {offer.count} there would be more than "
            f"{MOST_IN_ALL}",
        )
    block_id = random_id(prefix="cb")
    parts = offer.ultraservers or 1
    reservations = [
        changes.create(
            world,
            backend,
            {
                "InstanceType": offer.instance_type,
                "InstancePlatform": params["InstancePlatform"],
                "AvailabilityZone": offer.zone,
                "InstanceCount": offer.count // parts,
                "InstanceMatchCriteria": "targeted",
                "StartDate": offer.start,
                "EndDate": offer.end,
                "EndDateType": "limited",
            },
            reservation_type=BLOCK,
            state="payment-pending",
            capacity_block_id=block_id,
            ultraserver_type=offer.ultraserver_type,
        )
        for _ in range(parts)
    ]
    block = Block(
        id=block_id,
        reservations=reservations,
        created=world.ledger.now(),
        ultraserver_type=offer.ultraserver_type,
    )
    world.blocks.bought[block.id] = block
    del world.blocks.offers[offer.id]
    world.blocks.scripted = [other for other in world.blocks.scripted if other.id != offer.id]
    _bill(world, block)
    return block


def _offer(world: AwsWorld, backend: zones.HasZones, offer_id: str | None) -> Offer:
    if not offer_id:
        raise errors.missing("CapacityBlockOfferingId")
    if not OFFER_ID.match(offer_id):
        raise Ec2Error("InvalidCapacityBlockOfferingIdMalformed", f"Invalid ID: '{offer_id}'")
    offer = world.blocks.offers.get(offer_id)
    if offer is None or (offer.account, offer.region) != (backend.account_id, backend.region_name):
        raise Ec2Error(
            "InvalidCapacityBlockOfferingIdNotFound",
            f"The Capacity Block offering '{offer_id}' was not found",
        )
    if offer.end <= world.ledger.now() or not _is_free(world, offer):
        raise Ec2Error(
            "InvalidCapacityBlockOfferingIdExpired",
            f"The Capacity Block offering '{offer_id}' is no longer available",
        )
    return offer


def _bill(world: AwsWorld, block: Block) -> None:
    ledger = world.ledger
    paid_after = timedelta(seconds=world.knobs.payment_s)

    def paid() -> None:
        for reservation in block.reservations:
            start = reservation.start_date
            if start is None or start <= ledger.now():
                life.activate_now(world, reservation)
            else:
                ledger.change(reservation, state="scheduled")
                life.activate_at(world, reservation, start)

    def failed() -> None:
        for reservation in block.reservations:
            ledger.change(reservation, state="payment-failed")

    if paid_after < PAYMENT_WINDOW:
        ledger.after(world.knobs.payment_s, paid)
    else:
        ledger.after(PAYMENT_WINDOW.total_seconds(), failed)
