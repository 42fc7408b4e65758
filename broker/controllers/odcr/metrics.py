"""Purchases and their problems by CapacityReservation, shown after each pass over EC2's reservations."""

from __future__ import annotations

from typing import Final

from broker.oncall.metrics import GaugeTable, Rows
from broker.reservations.odcr_status import OdcrSnapshot

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
