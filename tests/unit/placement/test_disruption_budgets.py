"""The nodes of a pool that may be disrupted: percentages, reasons and windows, as Karpenter counts them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.apis.karpenter import Budget, NodePool
from broker.placement.disruption_budgets import UNLIMITED, BudgetLedger, PoolNodes, Reason, allowed
from broker.text import InvalidText

# A Monday.
NOON = datetime(2026, 11, 23, 12, 0, 30, tzinfo=UTC)


def budget(nodes: str, *reasons: str, schedule: str = "", duration: str = "") -> Budget:
    return Budget(nodes=nodes, reasons=reasons, schedule=schedule, duration=duration)


@pytest.mark.parametrize(
    ("budgets", "nodes", "reason", "expected"),
    [
        ([], 10, "Empty", UNLIMITED),
        ([budget("10%")], 0, "Empty", 0),
        ([budget("10%")], 1, "Empty", 1),  # rounded up
        ([budget("10%")], 10, "Empty", 1),
        ([budget("10%")], 11, "Empty", 2),
        ([budget("100%")], 7, "Empty", 7),
        ([budget("0%")], 7, "Empty", 0),
        ([budget("5")], 2, "Empty", 5),
        ([budget("5"), budget("3")], 20, "Empty", 3),
        ([budget("0", "Drifted"), budget("4")], 20, "Drifted", 0),
        ([budget("0", "Drifted"), budget("4")], 20, "Empty", 4),
        ([budget("0", "Drifted", "Empty")], 20, "Underutilized", UNLIMITED),
        # Working hours on weekdays.
        ([budget("0", schedule="0 9 * * mon-fri", duration="8h")], 20, "Empty", 0),
        ([budget("0", schedule="0 13 * * mon-fri", duration="8h")], 20, "Empty", UNLIMITED),
        ([budget("0", schedule="0 9 * * sat,sun", duration="48h")], 20, "Empty", 0),
        ([budget("0", schedule="0 11 * * *", duration="1h")], 20, "Empty", UNLIMITED),
        ([budget("0", schedule="@daily", duration="12h1m")], 20, "Empty", 0),
    ],
)
def test_the_strictest_active_budget_counts(
    budgets: list[Budget], nodes: int, reason: Reason, expected: int
) -> None:
    assert allowed(budgets, nodes, reason, NOON) == expected


def test_a_budget_that_cannot_be_read_is_named() -> None:
    wrong = [budget("5"), budget("3", "Empty", schedule="0 25 * * *", duration="1h")]
    with pytest.raises(InvalidText, match=r"spec.disruption.budgets\[1\]: hour of the schedule"):
        allowed(wrong, 10, "Drifted", NOON)


def test_disrupted_nodes_use_up_the_budget() -> None:
    ledger = BudgetLedger({"p": (budget("3"),)}, {"p": PoolNodes(total=10, disrupted=1)}, NOON)
    assert ledger.remaining("p", "Empty") == 2
    assert not ledger.take("p", "Empty", 3)
    assert ledger.take("p", "Empty", 2)
    assert ledger.remaining("p", "Drifted") == 0


def test_a_wrong_budget_allows_nothing_and_is_remembered() -> None:
    ledger = BudgetLedger({"p": (budget("3", schedule="x", duration="1h"),)}, {}, NOON)
    assert ledger.remaining("p", "Empty") == 0
    assert "spec.disruption.budgets[0]" in ledger.errors["p"]


@pytest.mark.parametrize(
    ("disruption", "remaining"),
    [({}, 3), ({"disruption": {}}, 3), ({"disruption": {"budgets": []}}, UNLIMITED)],
    ids=["without disruption", "without budgets", "empty list"],
)
def test_default_budget_is_karpenter_s_and_an_empty_list_limits_nothing(
    disruption: dict[str, Any], remaining: int
) -> None:
    pool = NodePool.decode({"metadata": {"name": "p"}, "spec": disruption})
    ledger = BudgetLedger({"p": pool.spec.disruption.budgets}, {"p": PoolNodes(total=25)}, NOON)
    assert ledger.remaining("p", "Empty") == remaining


@pytest.mark.covers("FUL-21")
def test_nodes_that_are_not_ready_do_not_hold_up_repair() -> None:
    nodes = PoolNodes(total=10, disrupted=4, leaving=1)
    ledger = BudgetLedger({"web": (budget("3"),)}, {"web": nodes}, NOON)
    assert (ledger.remaining("web", "Drifted"), ledger.remaining("web", "Unhealthy")) == (0, 2)
    assert ledger.take("web", "Unhealthy", 2) and not ledger.take("web", "Unhealthy")
