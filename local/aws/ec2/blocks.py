"""Capacity Blocks as EC2 keeps them: offerings, blocks and extensions.

Invariant: a block has no state and no dates of its own; they are its reservations', so they can't disagree.

Source: EC2 API reference, CapacityBlock, CapacityBlockOffering, CapacityBlockExtension.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from local.aws.ec2.reservations import Ec2Reservation

CURRENCY = "USD"
ZONE_TYPE = "availability-zone"


@dataclass(frozen=True, kw_only=True)
class Offer:
    id: str
    account: str
    region: str
    instance_type: str
    zone: str
    zone_id: str
    count: int
    start: datetime
    end: datetime
    fee: float
    ultraserver_type: str | None = None
    ultraservers: int = 0


@dataclass(frozen=True, kw_only=True)
class ExtensionOffer:
    id: str
    reservation: Ec2Reservation
    hours: int
    start: datetime
    end: datetime
    fee: float


@dataclass(kw_only=True)
class Extension:
    offer: ExtensionOffer
    bought: datetime
    status: str = "payment-pending"


@dataclass(eq=False, kw_only=True)
class Block:
    id: str
    reservations: list[Ec2Reservation]
    created: datetime
    ultraserver_type: str | None = None

    @property
    def first(self) -> Ec2Reservation:
        return self.reservations[0]


@dataclass
class Blocks:
    """All that EC2 remembers of them, for every account."""

    offers: dict[str, Offer] = field(default_factory=dict)
    scripted: list[Offer] = field(default_factory=list)
    bought: dict[str, Block] = field(default_factory=dict)
    extension_offers: dict[str, ExtensionOffer] = field(default_factory=dict)
    extensions: list[Extension] = field(default_factory=list)


def hours_and_minutes(length: timedelta) -> tuple[int, int]:
    minutes = int(length.total_seconds() // 60)
    return minutes // 60, minutes % 60


def describe_offer(offer: Offer) -> dict[str, Any]:
    hours, minutes = hours_and_minutes(offer.end - offer.start)
    segment = {
        "InstanceType": offer.instance_type,
        "AvailabilityZone": offer.zone,
        "InstanceCount": offer.count,
        "StartDate": offer.start,
        "EndDate": offer.end,
        "CapacityBlockDurationHours": hours,
        "CapacityBlockDurationMinutes": minutes,
        "UpfrontFee": f"{offer.fee:.4f}",
        "CurrencyCode": CURRENCY,
        "ZoneType": ZONE_TYPE,
    }
    shown = {
        **segment,
        "CapacityBlockOfferingId": offer.id,
        "Tenancy": "default",
        "CapacityBlockOfferingSegments": [{**segment, "AvailabilityZoneId": offer.zone_id}],
    }
    if offer.ultraserver_type:
        shown |= {"UltraserverType": offer.ultraserver_type, "UltraserverCount": offer.ultraservers}
    return shown


def describe_block(block: Block, tags: list[dict[str, str]]) -> dict[str, Any]:
    first = block.first
    return {
        "CapacityBlockId": block.id,
        "UltraserverType": block.ultraserver_type,
        "AvailabilityZone": first.zone,
        "AvailabilityZoneId": first.zone_id,
        "CapacityReservationIds": [reservation.id for reservation in block.reservations],
        "StartDate": first.start_date,
        "EndDate": first.end_date,
        "CreateDate": block.created,
        "State": first.state,
        "Tags": tags,
    }


def describe_status(block: Block) -> dict[str, Any]:
    statuses = [
        {
            "CapacityReservationId": reservation.id,
            "TotalCapacity": reservation.total,
            "TotalAvailableCapacity": reservation.available,
            "TotalUnavailableCapacity": reservation.total - reservation.available,
        }
        for reservation in block.reservations
    ]
    sums = ("TotalCapacity", "TotalAvailableCapacity", "TotalUnavailableCapacity")
    return {
        "CapacityBlockId": block.id,
        "InterconnectStatus": "ok",
        **{name: sum(int(str(entry[name])) for entry in statuses) for name in sums},
        "CapacityReservationStatuses": statuses,
    }


def describe_extension_offer(offer: ExtensionOffer) -> dict[str, Any]:
    return {
        **_extension(offer),
        "StartDate": offer.reservation.start_date,
        "Tenancy": offer.reservation.tenancy,
    }


def describe_extension(extension: Extension) -> dict[str, Any]:
    return {
        **_extension(extension.offer),
        "CapacityReservationId": extension.offer.reservation.id,
        "CapacityBlockExtensionStatus": extension.status,
        "CapacityBlockExtensionPurchaseDate": extension.bought,
    }


def _extension(offer: ExtensionOffer) -> dict[str, Any]:
    reservation = offer.reservation
    return {
        "CapacityBlockExtensionOfferingId": offer.id,
        "InstanceType": reservation.instance_type,
        "InstanceCount": reservation.total,
        "AvailabilityZone": reservation.zone,
        "AvailabilityZoneId": reservation.zone_id,
        "CapacityBlockExtensionStartDate": offer.start,
        "CapacityBlockExtensionEndDate": offer.end,
        "CapacityBlockExtensionDurationHours": offer.hours,
        "UpfrontFee": f"{offer.fee:.4f}",
        "CurrencyCode": CURRENCY,
        "ZoneType": ZONE_TYPE,
    }
