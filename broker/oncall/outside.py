"""The instances that run on demand outside of reservations, and their price."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from broker.oncall.metrics import GaugeTable
from providers.model import Instance, InstanceType, Odcr
from providers.prices import product_of, usd_hour

Dollars = Mapping[tuple[str, ...], float]

_COST: Final = GaugeTable(
    "capacity_broker_outside_cost_dollars_per_hour",
    "On-Demand price of the cluster's instances outside of EC2 capacity reservations, without spot "
    "and unpriced ones; 0 for a type and zone with a reservation and no instance "
    "outside.",
    ("instance_type", "zone"),
)


def runs_outside(instance: Instance) -> bool:
    """Whether the instance is alive, on demand and in no reservation."""
    return instance.alive and instance.described and not (instance.reservation_id or instance.lifecycle)


def outside_cost(
    odcrs: Iterable[Odcr], instances: Iterable[Instance], types: Mapping[str, InstanceType]
) -> Dollars:
    """Dollars an hour by type and zone. An instance without a known price does not count."""
    dollars: dict[tuple[str, ...], float] = {
        (odcr.instance_type, odcr.zone): 0.0 for odcr in odcrs if odcr.active
    }
    for instance in filter(runs_outside, instances):
        place = instance.instance_type, instance.zone
        price = usd_hour(types, product_of(instance))
        if price is not None:
            dollars[place] = dollars.get(place, 0.0) + price
    return dollars


def follow(cost: Callable[[], Dollars]) -> None:
    """Shows the cost at each scrape, until the tables are cleared."""
    _COST.follow(cost)
