"""Without reservations, the machines are not read, and no metric of earlier reservations stays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from broker.controllers.capacityreservation.controller import ReservationController
from broker.controllers.capacityreservation.facts import JointFacts, JointFactsBuilder
from broker.controllers.capacityreservation.metrics import TABLES, ReservationMetrics, show
from broker.kube.client import Client
from broker.quota.usage import ReservationKey
from broker.reservations.spec import Reservation
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.clock import FakeClock
from tests.support.dependencies import dependencies


class UnusedBuilder(JointFactsBuilder):
    """Fails when facts are built."""

    def __init__(self) -> None:
        self.alive: Collection[str] | None = None

    def build(self, reservations: Sequence[Reservation], now: datetime, moment: float) -> JointFacts:
        raise AssertionError("no facts are needed")

    def forget(self, alive: Collection[str]) -> None:
        self.alive = alive


def test_without_reservations_no_facts_are_built_and_old_metrics_are_removed() -> None:
    client, clock, builder = Client(InProcessTransport(Cluster())), FakeClock(), UnusedBuilder()
    controller = ReservationController(dependencies(client, clock), builder)
    show(
        {ReservationKey("team", "gpu"): ReservationMetrics(state="Active")},
        {("nvidia.com/gpu", "no flavor"): 8},
    )
    assert controller.run() is None
    assert not [sample for table in TABLES for family in table.collect() for sample in family.samples]
    assert builder.alive is not None and not builder.alive
