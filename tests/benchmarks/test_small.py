"""Every benchmark runs at its small size and prints its figures, whatever their values."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT

# Figures of each benchmark that hold at any size. One of real time is only printed: the machine may be busy.
TOLD = {
    "launch": {"on-demand launches before the last reserved one", "mutating EC2 calls"},
    "storm": {"claims deleted and remade"},
    "steady": {"Kubernetes writes"},
    "restart": {"launches", "claims and nodes written again"},
    "reservations": {"  writes a reservation", "writes in 5 passes at rest"},
    "returning": {
        "hours on demand that an idle slot could have served",
        "passes above the budget of 10 %",
    },
    "absorb": {
        "restarts of instances that EC2 can count in the slot",
        "passes above the budget of 10 %",
    },
    "rollout": {
        "3 nodes: launches",
        "3 nodes: launches that EC2 refused",
        "3 nodes: slots empty at its end",
        "3 nodes: instances outside at its end",
        "3 nodes: most pods away at once",
    },
    "overlap": {"worlds that lose a slot", "worlds that lose a slot, with owners"},
    "starve": {"gangs launched within one hold", "plans that hold a slot after the window"},
    "packing": {"pods without a machine"},
    "placement": {"pods without a node", "oversubscribed nodes"},
    "startup": {"inventory: CPU time"},
    "forecast": {"Brier score"},
    "oncall": {"explain cluster", "overview"},
    "page": {"recording an attempt, CPU time of the caller"},
}
REAL_TIME = {"s", "ms", "us"}


@pytest.mark.parametrize("module", TOLD)
def test_benchmark_prints_its_figures(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", "--small", "-o", "json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["figure"]: row for row in json.loads(done.stdout)}
    assert TOLD[module] <= rows.keys()
    untimed = [rows[name] for name in TOLD[module] if rows[name]["unit"] not in REAL_TIME]
    assert {row["holds"] for row in untimed} <= {"yes", ""}
    assert any(row["baseline"] for row in rows.values())
