"""Quota and usage of reservations for Prometheus, from the last pass when it is scraped.

Invariant: a series exists exactly as long as its reservation, since nothing is kept between two scrapes.
Amounts are in base units (cores, bytes, counts), so that allocated / total is the utilisation of each flavor
and resource. The state is a state-set, one series a state, of which exactly one is 1, as OpenMetrics has it
(https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md#stateset).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, get_args

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broker.oncall.metrics import REGISTRY
from broker.quota.lifecycle import State
from broker.quota.model import Amounts
from broker.quota.usage import Reserved

STATES: Final[tuple[State, ...]] = get_args(State)
AMOUNT: Final = ("namespace", "reservation", "flavor", "resource")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """State and amounts of one reservation."""

    state: State | None
    total: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)


class ReservationMetrics(Collector):
    """Collects the metrics of all reservations. `show` replaces all earlier values."""

    def __init__(self) -> None:
        self._shown: Mapping[Reserved, Shown] = {}
        self._unattributed: Mapping[tuple[str, str], int] = {}

    def show(
        self, shown: Mapping[Reserved, Shown], unattributed: Mapping[tuple[str, str], int] | None = None
    ) -> None:
        self._shown, self._unattributed = shown, unattributed or {}

    def collect(self) -> Iterator[Metric]:
        shown = self._shown
        total = GaugeMetricFamily(
            "capacity_reservation_total", "Nominal quota of a reservation.", labels=AMOUNT
        )
        used = GaugeMetricFamily(
            "capacity_reservation_allocated", "Quota in use, what is borrowed included.", labels=AMOUNT
        )
        state = GaugeMetricFamily(
            "capacity_reservation_lifecycle_state",
            "1 for the state that a reservation is in, 0 for the others.",
            labels=("namespace", "reservation", "state"),
        )
        for reserved, each in shown.items():
            who = [reserved.namespace, reserved.name]
            for key in {**each.total, **each.used}:
                for family, amounts in ((total, each.total), (used, each.used)):
                    value = amounts.get(key, 0)
                    family.add_metric(
                        [*who, key.flavor, key.resource], value / 1000 if key.resource == "cpu" else value
                    )
            for name in STATES if each.state else ():
                state.add_metric([*who, name], float(each.state == name))
        lost = GaugeMetricFamily(
            "capacity_reservation_unattributed",
            "Accelerators on nodes of no flavor, or of several alike, which count for no reservation.",
            labels=("resource", "why"),
        )
        for (resource, why), value in self._unattributed.items():
            lost.add_metric([resource, why], value)
        yield from (total, used, state, lost)

    def describe(self) -> Iterable[Metric]:
        return self.collect()


METRICS: Final = ReservationMetrics()
REGISTRY.register(METRICS)
