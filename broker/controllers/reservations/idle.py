"""Metrics of idle slots by reservation, reported together with its mirror.

Invariant: a reservation that is gone, or has no idle slot, leaves no cost and no time behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from prometheus_client import Gauge

from broker.oncall.metrics import REGISTRY
from broker.reservations.idle import idle_cost
from providers.model import InstanceType, Odcr

_LABELS = ["odcr", "instance_type", "zone"]
_SLOTS = Gauge(
    "capacity_broker_idle_slots",
    "Free slots of an active EC2 capacity reservation.",
    _LABELS,
    registry=REGISTRY,
)
_COST = Gauge(
    "capacity_broker_idle_cost_dollars_per_hour",
    "What the free slots of an active EC2 capacity reservation cost this account, at On-Demand price.",
    _LABELS,
    registry=REGISTRY,
)
_SINCE = Gauge(
    "capacity_broker_idle_since_timestamp_seconds",
    "Since when at least so many slots were seen free; none where no slot is.",
    _LABELS,
    registry=REGISTRY,
)


Labels = tuple[str, str, str]


class IdleMeter:
    """Remembers the reported series and removes stale ones one by one, so that no live series is missing
    between two reports.
    """

    def __init__(self) -> None:
        self._told: dict[Gauge, set[Labels]] = {_SLOTS: set(), _COST: set(), _SINCE: set()}

    def tell(
        self,
        odcrs: Iterable[Odcr],
        types: Mapping[str, InstanceType],
        since: Mapping[str, datetime | None],
        *,
        account: str,
    ) -> None:
        """`since` is by reservation; `account` is the one that the costs are counted for."""
        slots: dict[Labels, float] = {}
        cost: dict[Labels, float] = {}
        began: dict[Labels, float] = {}
        for odcr in odcrs:
            labels = (odcr.id, odcr.instance_type, odcr.zone)
            if odcr.state == "active":
                slots[labels] = odcr.idle
            hourly = idle_cost(odcr, types.get(odcr.instance_type), account=account)
            if odcr.idle and hourly is not None:
                cost[labels] = hourly
            if (at := since.get(odcr.id)) is not None:
                began[labels] = at.timestamp()
        for gauge, values in ((_SLOTS, slots), (_COST, cost), (_SINCE, began)):
            for labels, value in values.items():
                gauge.labels(*labels).set(value)
            for labels in self._told[gauge] - values.keys():
                gauge.remove(*labels)
            self._told[gauge] = set(values)
