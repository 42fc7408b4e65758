"""Metrics of idle slots by reservation, reported together with its mirror.

Invariant: a reservation that is gone, or has no idle slot, leaves no cost and no time behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.oncall.metrics import GaugeTable
from broker.reservations.idle import cost_of_all
from broker.reservations.odcr_view import OdcrView
from providers.model import InstanceType

_LABELS = ("odcr", "instance_type", "zone")
_SLOTS = GaugeTable(
    "capacity_broker_idle_slots", "Free slots of an active EC2 capacity reservation.", _LABELS
)
_COST = GaugeTable(
    "capacity_broker_idle_cost_dollars_per_hour",
    "What the free slots of an active EC2 capacity reservation cost this account, at On-Demand price.",
    _LABELS,
)
_SINCE = GaugeTable(
    "capacity_broker_idle_since_timestamp_seconds",
    "Since when at least so many slots were seen free; none where no slot is.",
    _LABELS,
)
_ALL = GaugeTable(
    "capacity_broker_odcr_cost_dollars_per_hour",
    "On-Demand price of all slots of an active EC2 capacity reservation; 0 for a block, which is prepaid.",
    _LABELS,
)


def measure(views: Iterable[OdcrView], types: Mapping[str, InstanceType]) -> None:
    """Shows these reservations and no others."""
    slots: dict[tuple[str, ...], float] = {}
    cost: dict[tuple[str, ...], float] = {}
    began: dict[tuple[str, ...], float] = {}
    whole: dict[tuple[str, ...], float] = {}
    for view in views:
        odcr = view.odcr
        labels = (odcr.id, odcr.instance_type, odcr.zone)
        if odcr.active:
            slots[labels] = odcr.idle
            if (price := cost_of_all(odcr, types.get(odcr.instance_type))) is not None:
                whole[labels] = price
        if odcr.idle and view.cost is not None:
            cost[labels] = view.cost
        if view.since is not None:
            began[labels] = view.since.timestamp()
    for table, rows in ((_SLOTS, slots), (_COST, cost), (_SINCE, began), (_ALL, whole)):
        table.show(rows)
