"""The demo of a rollout over a full reservation, from its command: its picture and its figures."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

WIDTH = 100
SLOT = re.compile(r"slot +[1-4] +(o*d*k*\.*k*s*N+)")


@pytest.mark.covers("FUL-01", "FUL-03")
def test_picture_of_the_demo_shows_each_slot_go_from_an_old_node_to_a_new_one() -> None:
    command = [sys.executable, "-m", "broker.cli", "demo", "--rollout", "--once"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    _, _, rest = ended.stdout.partition("\nby broker:\n")
    picture = rest.split("\n\n")[0].splitlines()
    assert picture and max(map(len, picture)) <= WIDTH
    slots = [match[1] for line in picture if (match := SLOT.fullmatch(line))]
    assert len(slots) == 4 and len({len(row) for row in slots}) == 1, rest
    assert not [line for line in picture if line.startswith("on-demand")]
    away = [sum(row[column] not in "odN" for row in slots) for column in range(len(slots[0]))]
    assert max(away) <= 2, "the end of one slot and the begin of the next may be in one column"
    (pods,) = [line.split()[-1] for line in picture if line.startswith("pods away")]
    assert set(pods) == {"-", "1"} and pods[-1] == "-"
    for letter in "oN":
        assert re.search(rf"(^|   ){letter} \w+", rest, re.MULTILINE), f"{letter} is explained"
    figures = {
        name.strip(): value for name, value in re.findall(r"^(.+?)  +(\d+, \d+) *$", rest, re.MULTILINE)
    }
    assert len(figures) == 4
    assert figures["launches, and claims that ended without one"] == "4, 0"
    assert figures["slot-seconds empty, and slots empty at the end"].endswith(", 0")
    assert figures["instances outside at once, and instance-seconds"] == "0, 0"
    assert figures["pods away at once, and pod-seconds"].startswith("1, ")
    assert "`make rollout-demo` of a checkout plays the same with Karpenter" in ended.stdout
