"""The demo of two teams, from its command."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.covers("CAP-09")
def test_the_owner_gets_its_slot_and_the_work_of_the_borrower_goes_on() -> None:
    command = [sys.executable, "-m", "broker.cli", "demo", "--teams", "--once"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    before, after = result.stdout.split("WHICH IS")[1:]
    assert before.count("borrowed from vision") == 2
    assert after.count("borrowed from vision") == 1
    assert "on-demand" in after
    assert "InCohortReclamation" in before
    assert "preemptor path: /ml/vision--gpus; preemptee path: /ml/speech--gpus\n" in before, "on one line"
