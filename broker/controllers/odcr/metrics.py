"""The room's metrics: purchases and problems by CapacityReservation, idle slots and costs by ODCR."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from broker.oncall.metrics import GaugeTable, Rows
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.odcr_view import OdcrView
from providers.model import InstanceType
from providers.prices import slot_price

_FLAVOR: Final = ("namespace", "reservation", "flavor")
_WANTED: Final = GaugeTable(
    "capacity_broker_reservation_instances_wanted",
    "EC2 instances that the quota of a CapacityReservation needs.",
    _FLAVOR,
)
_OBTAINED: Final = GaugeTable(
    "capacity_broker_reservation_instances_obtained",
    "EC2 instances that are reserved for a CapacityReservation and usable now.",
    _FLAVOR,
)
_PROBLEMS: Final = GaugeTable(
    "capacity_broker_reservation_problems",
    "1 for each problem with the EC2 reservations of a CapacityReservation, by reason.",
    ("namespace", "reservation", "reason"),
)


def show(odcrs: OdcrSnapshot) -> None:
    """Shows the reservations of this pass and no others."""
    statuses = odcrs.statuses.items()
    flavors = [
        (reserved, flavor, count) for reserved, status in statuses for flavor, count in status.flavors.items()
    ]
    wanted: Rows = {(r.namespace, r.name, flavor): count.wanted for r, flavor, count in flavors}
    obtained: Rows = {(r.namespace, r.name, flavor): count.obtained for r, flavor, count in flavors}
    _WANTED.show(wanted)
    _OBTAINED.show(obtained)
    _PROBLEMS.show(
        {(r.namespace, r.name, problem.reason): 1.0 for r, status in statuses for problem in status.problems}
    )


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
    "Since when at least that many slots were seen free; no value if no slot is free.",
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
            if (price := slot_price(types, odcr)) is not None:
                whole[labels] = odcr.total * price
        if odcr.idle and view.cost is not None:
            cost[labels] = view.cost
        if view.since is not None:
            began[labels] = view.since.timestamp()
    for table, rows in ((_SLOTS, slots), (_COST, cost), (_SINCE, began), (_ALL, whole)):
        table.show(rows)
