"""The first line of a plan."""

from __future__ import annotations

import pytest

from broker.commands.inventory.prices import shown_price
from broker.commands.plan.bill import summary


def _row(capacity_type: str = "", usd_hour: float | None = None, *, runs: bool = False) -> dict[str, object]:
    return {
        "capacity_type": capacity_type,
        "usd_hour": usd_hour,
        "launches": bool(capacity_type),
        "runs": runs,
    }


SLOT, WAITS, RUNS = _row("reserved", 0.0), _row(), _row(runs=True)


@pytest.mark.covers("ONC-09")
@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([SLOT], "Buys nothing; 1 claim in reserved slots, which are paid for"),
        ([_row("on-demand", 1.5)], "Buys 1 instance on demand for 1.50 $/h"),
        (
            [_row("spot", 0.25), _row("on-demand", 1.5), _row("on-demand", 2.0)],
            "Buys 2 instances on demand for 3.50 $/h and 1 instance as spot for 0.25 $/h, in all 3.75 $/h",
        ),
        (
            [_row("on-demand", 1.5), _row("on-demand", None)],
            "Buys 2 instances on demand for 1.50 $/h and 1 without a price",
        ),
        ([WAITS, RUNS], "Buys nothing; 1 claim with an instance already; 1 claim without an instance"),
    ],
)
def test_first_line_says_what_is_bought(rows: list[dict[str, object]], line: str) -> None:
    assert summary(rows) == line


@pytest.mark.parametrize(
    ("prices", "shown"),
    [
        ([0.5, 0.25], "0.25-0.50"),
        ([0.5, None, None], "0.50, 2 unknown"),
        ([None, None], "unknown"),
    ],
)
def test_like_options_show_how_many_have_no_price(prices: list[float | None], shown: str) -> None:
    assert shown_price("on-demand", prices) == shown
    assert shown_price("reserved", prices) == "paid"
