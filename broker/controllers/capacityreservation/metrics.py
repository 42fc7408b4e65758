"""Quota and usage of reservations for Prometheus, from the last pass when it is scraped.

Invariant: a series exists exactly as long as its reservation, since every pass replaces all rows.
Amounts are in base units (cores, bytes, counts), so that allocated / total is the utilisation of each flavor
and resource. The state is a state-set, one series a state, of which exactly one is 1, as OpenMetrics has it
(https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md#stateset).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, get_args

from broker.oncall.metrics import GaugeTable
from broker.quota.lifecycle import State
from broker.quota.model import Amounts
from broker.quota.usage import ReservationKey

STATES: Final[tuple[State, ...]] = get_args(State)
AMOUNT: Final = ("namespace", "reservation", "flavor", "resource")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationMetrics:
    """State and amounts of one reservation."""

    state: State | None
    total: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)


_TOTAL: Final = GaugeTable("capacity_reservation_total", "Nominal quota of a reservation.", AMOUNT)
_USED: Final = GaugeTable("capacity_reservation_allocated", "Quota in use, including borrowed quota.", AMOUNT)
_STATE: Final = GaugeTable(
    "capacity_reservation_lifecycle_state",
    "1 for the state that a reservation is in, 0 for the others.",
    ("namespace", "reservation", "state"),
)
_UNATTRIBUTED: Final = GaugeTable(
    "capacity_reservation_unattributed",
    "Accelerators on nodes that match no flavor, or several alike. They count for no reservation.",
    ("resource", "why"),
)
TABLES: Final = (_TOTAL, _USED, _STATE, _UNATTRIBUTED)


def show(
    shown: Mapping[ReservationKey, ReservationMetrics],
    unattributed: Mapping[tuple[str, str], int] | None = None,
) -> None:
    """Shows these reservations and no others."""
    total: dict[tuple[str, ...], float] = {}
    used: dict[tuple[str, ...], float] = {}
    states: dict[tuple[str, ...], float] = {}
    for reserved, metrics in shown.items():
        reservation = (reserved.namespace, reserved.name)
        for key in {**metrics.total, **metrics.used}:
            for rows, amounts in ((total, metrics.total), (used, metrics.used)):
                value = amounts.get(key, 0)
                rows[(*reservation, key.flavor, key.resource)] = (
                    value / 1000 if key.resource == "cpu" else value
                )
        for name in STATES if metrics.state else ():
            states[(*reservation, name)] = float(metrics.state == name)
    _TOTAL.show(total)
    _USED.show(used)
    _STATE.show(states)
    _UNATTRIBUTED.show({labels: float(count) for labels, count in (unattributed or {}).items()})
