"""The price of an instance, looked up in the known prices of its type.

Invariant: a price is that of the instance's own Region, platform, tenancy and purchase, or unknown. A Local
Zone has its own prices, which are not read. Spot prices are those of Linux on shared tenancy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from providers.model import PLAIN_OFFER, InstanceType, Odcr

_AVAILABILITY_ZONE: Final = re.compile(r"([a-z]+(?:-[a-z]+)+-\d+)[a-z]|([a-z]+\d+)-az\d+")
_ABBREVIATED: Final = re.compile("north|south|east|west|central|gov")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """What the price of an instance depends on."""

    instance_type: str
    zone: str
    platform: str = PLAIN_OFFER[0]
    tenancy: str = PLAIN_OFFER[1]
    spot: bool = False


def usd_hour(types: Mapping[str, InstanceType], product: Product) -> float | None:
    """US dollars an hour by the prices of these types; None if it is unknown."""
    type_, region = types.get(product.instance_type), region_code(product.zone)
    if type_ is None:
        return None
    if product.spot:
        plain = (product.platform, product.tenancy) == PLAIN_OFFER
        return type_.spot_prices.get(product.zone) if plain else None
    here = any(region and region_code(zone) == region for zone in type_.zones)
    return type_.price(product.platform, product.tenancy) if here else None


def slot_price(types: Mapping[str, InstanceType], odcr: Odcr) -> float | None:
    """US dollars that a slot costs by the hour, used or not; None if that is unknown. A block is prepaid."""
    if odcr.prepaid:
        return 0.0
    return usd_hour(types, product_of(odcr))


class Priced(Protocol):
    """An instance, a reservation, or a purchase."""

    @property
    def instance_type(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def platform(self) -> str: ...
    @property
    def tenancy(self) -> str: ...


def product_of(item: Priced) -> Product:
    """The On-Demand product of an instance, or of the slots of a reservation or of a purchase."""
    return Product(
        instance_type=item.instance_type, zone=item.zone, platform=item.platform, tenancy=item.tenancy
    )


@lru_cache(maxsize=1024)
def region_code(zone: str) -> str:
    """The Region of an availability zone's name or id, as in zone ids: `use1`; empty for a Local Zone, a
    Wavelength Zone, and no zone.
    """
    match = _AVAILABILITY_ZONE.fullmatch(zone)
    if match is None:
        return ""
    return match[2] or _ABBREVIATED.sub(lambda word: word[0][0], match[1]).replace("-", "")
