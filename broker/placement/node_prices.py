"""The products of nodes, claims and slots, by which their prices are looked up, and what pods pay of them.

EC2's description of the instance or of its reservation decides platform and tenancy; without one, its labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from providers.model import PLAIN_OFFER, Instance, InstanceType
from providers.prices import Product, usd_hour

# The price of a node, or of a claim with an instance, in US dollars an hour; None if it is unknown.
Price = Callable[[Node | NodeClaim], float | None]
Cost = tuple[float, int]  # US dollars an hour, and the number of parts that have no known price
PLATFORMS: Final[Mapping[str, str]] = {"": PLAIN_OFFER[0], "linux": PLAIN_OFFER[0], "windows": "Windows"}
_PURCHASES: Final[Mapping[str, bool]] = {  # whether it is spot
    "on-demand": False,
    "reserved": False,
    "spot": True,
    "ON_DEMAND": False,
    "SPOT": True,
}
_OF_BLOCKS: Final[Mapping[str, str]] = {
    names.RESERVATION_TYPE: "capacity-block",
    names.EKS_CAPACITY_TYPE: "CAPACITY_BLOCK",
}


class Described(Protocol):
    """EC2's description of an instance, or of a reservation of such instances."""

    @property
    def platform(self) -> str: ...
    @property
    def tenancy(self) -> str: ...


def labelled_product(labels: Mapping[str, str], described: Described | None = None) -> Product | None:
    """The product of an instance with these labels; None if its purchase is not known."""
    kind = labels.get(names.CAPACITY_TYPE) or labels.get(names.EKS_CAPACITY_TYPE, "")
    if kind not in _PURCHASES:
        return None
    platform = described.platform if described is not None else ""
    tenancy = described.tenancy if described is not None else ""
    return Product(
        instance_type=labels.get(names.INSTANCE_TYPE, ""),
        zone=labels.get(names.ZONE, ""),
        platform=platform or PLATFORMS.get(labels.get(names.OS, ""), ""),
        tenancy=tenancy or labels.get(names.INSTANCE_TENANCY) or PLAIN_OFFER[1],
        spot=_PURCHASES[kind],
    )


def node_price(
    types: Mapping[str, InstanceType],
    reservations: Mapping[str, Described],
    instances: Mapping[str, Instance],
    item: Node | NodeClaim,
) -> float | None:
    """The price of the instance; None if it is unknown. `reservations` and `instances` are by id.

    One in a block costs nothing by the hour: the block is prepaid.
    """
    if any(item.labels.get(key) == value for key, value in _OF_BLOCKS.items()):
        return 0.0
    instance = instances.get(item.instance_id)
    held = reservations.get(item.labels.get(names.RESERVATION_ID, ""))
    product = labelled_product(item.labels, instance if instance and instance.described else held)
    return usd_hour(types, product) if product is not None else None


def total(prices: Iterable[float | None]) -> Cost:
    """The sum of the known prices, and the number of unknown ones."""
    listed = [*prices]
    return sum(price for price in listed if price is not None), listed.count(None)


def divided(
    usd_hour: float | None, requests: Mapping[str, Mapping[str, int]], allocatable: Mapping[str, int]
) -> tuple[dict[str, float | None], float]:
    """What each pod pays of its node's price, and the rest, which none pays. `requests`: of all its pods.

    A pod pays its share of the resource of which it requests most. Shares that together are more than the
    node are reduced in proportion.
    """
    if usd_hour is None:
        return dict.fromkeys(requests), 0.0
    shares = {pod: _largest_share(amounts, allocatable) for pod, amounts in requests.items()}
    together = math.fsum(shares.values())
    price = usd_hour / max(1.0, together)
    return {pod: price * share for pod, share in shares.items()}, usd_hour * max(0.0, 1.0 - together)


def _largest_share(requests: Mapping[str, int], allocatable: Mapping[str, int]) -> float:
    shares = (amount / allocatable[name] for name, amount in requests.items() if allocatable.get(name))
    return min(1.0, max(shares, default=0.0))
