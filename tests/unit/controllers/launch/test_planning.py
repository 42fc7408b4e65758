"""A plan's log line and metrics, for an on-call person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from broker.apis.karpenter import NodeClaim
from broker.capacity.entitlement import NO_ENTITLEMENTS, Entitlements
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, NodeClass, Plan, Selection
from broker.capacity.shortages import Shortages
from broker.controllers.launch.launch_pass import LaunchPass
from broker.controllers.launch.planning import Planner
from broker.controllers.snapshot import Snapshot
from broker.kube.cache import Cache
from broker.oncall.metrics import REGISTRY
from tests.support.clock import FakeClock
from tests.unit.capacity.builders import NOW, TYPES, claim, inventory, node_class, odcr


@pytest.fixture(autouse=True)
def _every_level() -> Iterator[None]:
    """All log levels, regardless of the level that another test has set for the process."""
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)


class AllSlots:
    """Any claim may take any slot."""

    def __init__(self, stock: Inventory) -> None:
        self._stock = stock

    def snapshot(self) -> Snapshot:
        return Snapshot(version=1, reservations={}, inventory=self._stock, _types=lambda: TYPES)

    def known(self) -> bool:
        return True

    def begin(self) -> bool:
        return True

    def exclusive(self) -> AbstractContextManager[None]:
        return nullcontext()

    def entitlements(self, *_: object) -> Entitlements:
        return NO_ENTITLEMENTS

    def planned(self, plan_: Plan) -> None:
        pass


def plan_and_log(seconds: float, claims: Sequence[Claim], stock: Inventory) -> tuple[Plan, Mapping[str, Any]]:
    launch_class: NodeClass = node_class(Selection(preference="open"), stock)
    unused: Any = None
    slots: Any = AllSlots(stock)
    planner = Planner(Cache(NodeClaim), slots, seconds=seconds, clock=FakeClock())
    work = LaunchPass(
        snapshot=unused,
        plans={launch_class.name: launch_class},
        waiting={waiting.uid: waiting for waiting in claims},
        objects={waiting.uid: unused for waiting in claims},
    )
    with capture_logs() as logs:
        plan = planner.plan(work, Shortages(), NOW)
    (line,) = logs
    return plan, line


def unproven() -> float:
    return REGISTRY.get_sample_value("capacity_broker_plan_not_proven_total", {"solver": "greedy"}) or 0.0


def test_an_optimal_plan_is_logged_with_its_solver() -> None:
    before = unproven()
    _, line = plan_and_log(5.0, [claim("c0"), claim("c1")], inventory(odcr("cr-1")))
    assert (line["event"], line["log_level"]) == ("planned", "info")
    assert (line["solver"], line["optimal"], line["gap"]) == ("min-cost flow", True, 0.0)
    assert (line["launches"], line["reserved"], line["waiting"]) == (2, 1, 0)
    assert unproven() == before
    assert REGISTRY.get_sample_value("capacity_broker_plan_gap") == 0.0


def test_a_plan_without_time_logs_a_warning_with_its_gap() -> None:
    stock = inventory(odcr("cr-1"), odcr("cr-2", "m5.2xlarge"))
    # The first takes the slot that the second needs, although it could use the other.
    claims = [
        claim("any", kinds=["reserved"], priority=1),
        claim("picky", kinds=["reserved"], types=["m5.xlarge"]),
    ]
    before = unproven()
    plan, line = plan_and_log(0.0, claims, stock)
    assert [assignment.claim.name for assignment in plan.assignments] == ["any"]
    assert (line["log_level"], line["solver"], line["optimal"], line["gap"]) == (
        "warning",
        "greedy",
        False,
        0.5,
    )
    assert "too many for 0 s" in line["note"]
    assert unproven() == before + 1
    assert REGISTRY.get_sample_value("capacity_broker_plan_gap") == 0.5
    plan_and_log(5.0, claims, stock)
    assert REGISTRY.get_sample_value("capacity_broker_plan_gap") == 0.0


@pytest.mark.covers("KRP-20")
def test_a_plan_without_time_respects_the_reservations() -> None:
    stock = inventory(odcr("cr-1", free=2), odcr("cr-2", free=3, total=3), debits={"cr-2": 1})
    claims = [claim(f"c{number}", kinds=["reserved"]) for number in range(6)]
    plan, _ = plan_and_log(0.0, claims, stock)
    assert len(plan.assignments) == 4
