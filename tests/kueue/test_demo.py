"""The demo of Kueue, from its command."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.covers("USR-27")
def test_a_job_is_admitted_once_its_reserved_instance_is_there() -> None:
    command = [sys.executable, "-m", "tests.kueue.demo", "--once"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first, second = ended.stdout.split("CHECK OF THE BROKER")[1:]
    assert (first.count("  admitted  "), first.count("  waits  ")) == (1, 1)
    assert second.count("  admitted  ") == 2
