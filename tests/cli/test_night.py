"""`explain cluster` prints the night on one page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from broker.commands.explain.explanation import Explanation, explain
from broker.commands.explain.present import page, rendered
from broker.kube.clock import SystemClock
from local.kube import ApiServer, Cluster
from tests.support import night
from tests.unit.webpage.world import NOW

from .kit import run

HEADINGS = ("Broken", "Pods that wait", "Short now", "Claims that wait", "Next", "You can", "Cost")


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return night.cluster()


@pytest.fixture(scope="module")
def config(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ApiServer(cluster) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemClock, "now", lambda _: NOW)
        path = tmp_path_factory.mktemp("night") / "kubeconfig"
        path.write_text(server.kubeconfig())
        yield str(path)


@pytest.fixture(scope="module")
def lines(config: str) -> list[str]:
    result = run("explain", "cluster", "--kubeconfig", config)
    assert result.exit_code == 0, result.output
    return [line.rstrip() for line in result.stdout.splitlines()]


def part(lines: list[str], heading: str) -> list[str]:
    """The lines of a part, with its heading."""
    begin = next(n for n, line in enumerate(lines) if line.startswith(heading))
    return lines[begin : lines.index("", begin) if "" in lines[begin:] else None]


@pytest.mark.covers("ONC-06")
def test_the_night_is_at_most_50_lines_of_100_columns(lines: list[str]) -> None:
    assert "1 node is broken; 6 shortages, " in lines[0] and "3 pods wait; 5 claims wait" in " ".join(
        lines[:2]
    )
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100


@pytest.mark.covers("ONC-06")
def test_failures_are_first_and_have_their_severity_in_words(lines: list[str]) -> None:
    places = [next(n for n, line in enumerate(lines) if line.startswith(name)) for name in HEADINGS]
    assert places == sorted(places)
    words = [
        lines[place][len(name) :].split("  ")[0].strip() for place, name in zip(places, HEADINGS, strict=True)
    ]
    assert words[:4] == ["(critical)", "(warning)", "(warning)", "(warning)"]


@pytest.mark.covers("ONC-06")
def test_a_terminal_colours_the_severity(cluster: Cluster) -> None:
    console = Console(force_terminal=True, width=100, color_system="standard", highlight=False)
    with console.capture() as captured:
        console.print(rendered(explain(night.situation(cluster))))
    for word, colour in (("critical", 31), ("warning", 33)):
        assert re.search(rf"\x1b\[1;{colour}m \({word}\)", captured.get())


@pytest.mark.covers("ONC-06")
def test_zones_of_one_cause_are_one_row_and_a_machine_gets_each(lines: list[str], config: str) -> None:
    short = part(lines, "Short now")
    assert len(short) == 5
    (row,) = (line for line in short if line.startswith("on-demand p5.48xlarge"))
    assert row.startswith("on-demand p5.48xlarge in us-east-1a, 1b, 1c ")
    assert re.search(r"InsufficientInstanceCapacity +42m +in 3m$", row)
    waiting = part(lines, "Claims that wait")
    assert waiting[1].startswith("train-x7k2p and 3 more") and len(waiting) == 4
    document = json.loads(run("explain", "cluster", "--kubeconfig", config, "-o", "json").stdout)
    assert [len(document[key]) for key in ("short", "waiting", "tried")] == [6, 5, 6]


@pytest.mark.covers("ONC-06")
def test_times_are_relative_with_utc_in_the_first_line_and_for_machines(
    lines: list[str], config: str
) -> None:
    assert lines[0].startswith("the cluster, 2026-03-01 04:00:00 UTC: ")
    assert not any(re.search(r"\d\d:\d\d", line) for line in lines[2:])
    document = json.loads(run("explain", "cluster", "--kubeconfig", config, "-o", "json").stdout)
    assert document["short"][0]["since"] == "2026-03-01T03:18:00Z"


@pytest.mark.covers("ONC-06")
def test_no_word_and_no_command_is_broken(lines: list[str], config: str) -> None:
    document = json.loads(run("explain", "cluster", "--kubeconfig", config, "-o", "json").stdout)
    for row in document["do"]:
        assert any(line.startswith(f"  {row['command']}") for line in lines), row["command"]
    words = {word.strip(":,()") for line in lines for word in line.split()}
    names = {shortage.code for shortage in night.shortages()} | {night.CLAIMS[0], night.CLAIMS[4]}
    assert names | {"AcceleratedHardwareReady=False", "NvidiaXID48Error", "web/preview-6c9d4"} <= words


@pytest.mark.covers("ONC-06")
def test_a_command_longer_than_the_line_stays_whole(capsys: pytest.CaptureFixture[str]) -> None:
    command = f"kubectl describe node {'a' * 120} --show-events"
    parts = {"do": [{"command": command, "why": "its conditions"}]}
    page().print(rendered(Explanation(subject="s", headline="h", parts=parts, next=[])), crop=False)
    printed = capsys.readouterr().out.splitlines()
    assert f"  {command}" in printed and max(len(line) for line in printed if command not in line) <= 100


@pytest.mark.covers("ONC-06")
def test_a_column_without_values_is_dropped(lines: list[str], cluster: Cluster) -> None:
    console = Console(width=100, highlight=False)
    situation = night.situation(cluster)
    explanation = explain(situation)
    assert "CLASS" in part(lines, "Claims that wait")[0]
    rows = [dict(row) | {"class": ""} for row in explanation.shown["waiting"]]
    without = {**explanation.shown, "waiting": rows}
    with console.capture() as captured:
        console.print(rendered(replace(explanation, shown=without)))
    (heading,) = (line for line in captured.get().splitlines() if line.startswith("Claims that wait"))
    assert "CLASS" not in heading and "WHY" in heading


@pytest.mark.covers("ONC-06")
def test_a_limit_of_the_account_is_named_in_words(lines: list[str]) -> None:
    (advised,) = (line for line in part(lines, "You can") if "service-quotas" in line)
    assert advised.endswith("raise the limit of on-demand G vCPUs")
