"""Metrics of idle slots by reservation, reported together with its mirror.

Invariant: a reservation that is gone, or has no idle slot, leaves no cost and no time behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from broker.oncall.metrics import GaugeTable
from broker.reservations.idle import cost_of_all, idle_cost
from providers.model import InstanceType, Odcr

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


def measure(
    odcrs: Iterable[Odcr],
    types: Mapping[str, InstanceType],
    since: Mapping[str, datetime | None],
    *,
    account: str,
) -> None:
    """Shows these reservations and no others. `since` is by reservation; costs are those of `account`."""
    slots: dict[tuple[str, ...], float] = {}
    cost: dict[tuple[str, ...], float] = {}
    began: dict[tuple[str, ...], float] = {}
    whole: dict[tuple[str, ...], float] = {}
    for odcr in odcrs:
        labels = (odcr.id, odcr.instance_type, odcr.zone)
        type_ = types.get(odcr.instance_type)
        if odcr.active:
            slots[labels] = odcr.idle
            if (price := cost_of_all(odcr, type_)) is not None:
                whole[labels] = price
        hourly = idle_cost(odcr, type_, account=account)
        if odcr.idle and hourly is not None:
            cost[labels] = hourly
        if (at := since.get(odcr.id)) is not None:
            began[labels] = at.timestamp()
    for table, rows in ((_SLOTS, slots), (_COST, cost), (_SINCE, began), (_ALL, whole)):
        table.show(rows)
