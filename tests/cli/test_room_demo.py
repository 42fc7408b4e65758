"""The demo of room on nodes, from its command."""

from __future__ import annotations

import subprocess
import sys


def test_pods_come_back_to_their_room_and_borrowed_quota_to_its_owner() -> None:
    command = [sys.executable, "-m", "broker.cli", "demo", "--room", "--once"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    away, back, cache, before, _, _, after = ended.stdout.split("WAITS FOR")[1:]
    assert "2 Insufficient cpu" in away, "others may not have the kept room"
    assert back.count(" web-room ") == 2
    assert cache.count("-placeholder") == 1
    assert "borrows the other 2" in ended.stdout
    assert before.count("in-quota") == 1
    assert ended.stdout.count("Preempted by pod ") == 1, "one eviction is enough"
    assert "would exceed their total min" in after
