"""`capacity-broker plan -f examples/...`: each example is planned as it is, on the demo's account."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from broker import cli
from broker.commands.examples import are_examples, examples
from broker.settings import Settings
from local.demo.examples import example_account
from providers.aws.prices import shipped_types
from providers.prices import Product, usd_hour
from tests.docs.blocks import ROOT
from tests.docs.commands import commands
from tests.docs.owners import PLAN_TEST, owner, plain

from .kit import main, run

# Claims by the capacity type of their pool.
PLANNED = {
    "reservation-by-id.yaml": {"reserved": 2},
    "reservation-group.yaml": {"reserved": 2},
    "open-reservation.yaml": {"reserved": 2},
    "full-reservation.yaml": {
        "reserved": 1,
        "on-demand": 1,
    },  # the demo alone lets another user take the slot
    "no-reservation.yaml": {"on-demand": 2},
    "pods": {"reserved": 3, "on-demand": 2},
    "reservations/bought.yaml": {"reserved": 1},
    "reservations/borrowing.yaml": {"reserved": 4},
}
SHOWN = sorted({plain(command) for command in commands() if (by := owner(command)) and by.file == PLAN_TEST})
Account = tuple[Settings, Callable[[str], str]]
KEYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
)
# Objects that only others refer to, planned together with those; and room on nodes, which buys nothing.
PARTS = {"rooms", "nodepool-gpu.yaml", "reservations/flavors.yaml", "reservations/dedicated-cluster.yaml"}


@pytest.fixture(autouse=True)
def _offered() -> None:
    """In place of the package's: the settings are copied, so all of them are read."""


@pytest.fixture(scope="module")
def shared_account() -> Iterator[Account]:
    """The account, once for all commands of this module."""
    with pytest.MonkeyPatch.context() as patch:
        for name in KEYS:
            patch.setenv(name, "x")  # every change of the account is undone
        with example_account(Settings()) as example:
            yield example


@pytest.fixture
def account(shared_account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def here(settings: Settings) -> Iterator[Account]:
        example, fill = shared_account
        yield (
            replace(
                settings,
                cluster_name=example.cluster_name,
                region=example.region,
                aws_endpoint=example.aws_endpoint,
                aws_profile="",
            ),
            fill,
        )

    monkeypatch.setattr("local.demo.examples.example_account", here)


@pytest.mark.covers("USR-24")
def test_every_example_is_planned() -> None:
    there = list(examples().rglob("*.yaml"))
    covered = {examples() / name for name in (*PLANNED, *PARTS)}
    assert [path for path in there if not covered & {path, path.parent} - {examples()}] == []


@pytest.mark.covers("USR-24")
@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("name", PLANNED)
def test_an_example_is_planned_as_it_is(name: str) -> None:
    result = run("plan", "-f", str(examples() / name), "--plan-seconds", "60", "-o", "json")
    assert result.exit_code == 0, result.output
    counts: dict[str, int] = {}
    for row in json.loads(result.stdout):
        kind = row["pool"].partition(":")[0]
        counts[kind] = counts.get(kind, 0) + 1
    assert counts == PLANNED[name]


@pytest.mark.covers("USR-24")
@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("text", SHOWN)
def test_shown_plan_launches_every_claim(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = run(*shlex.split(text)[1:])
    assert result.exit_code == 0 and "Solved by" in result.output, result.output


@pytest.mark.covers("ONC-09")
@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("name", PLANNED)
def test_plan_shows_the_price_of_each_option_and_their_sum(name: str) -> None:
    given = ("plan", "-f", str(examples() / name), "--plan-seconds", "60")
    machine = run(*given, "-o", "json")
    rows = json.loads(machine.stdout)
    bought = [row["usd_hour"] for row in rows if row["capacity_type"] == "on-demand"]
    options = [option for row in rows for option in (row, *row["then"])]
    for option in options:
        _, type_, zone = option["pool"].split(":")[:3]
        paid = option["capacity_type"] == "reserved"
        listed = usd_hour(shipped_types(), Product(instance_type=type_, zone=zone))
        assert option["usd_hour"] == (0.0 if paid else listed), option
    first, *_, table = run(*given).stdout.partition("\n")
    if bought:
        count = "1 instance" if len(bought) == 1 else f"{len(bought)} instances"
        assert first.startswith(f"Buys {count} on demand for {sum(bought):.2f} $/h")
        assert f" {bought[0]:.2f}  " in table
    else:
        assert first.startswith("Buys nothing")
    assert ("reserved slots, which are paid for" in first) == ("reserved" in PLANNED[name])
    assert ("  paid  " in table) == ("reserved" in PLANNED[name])
    for option in options:
        assert option["capacity_type"] == "reserved" or f": {option['usd_hour']:.2f} $/h" in table
    assert first in machine.stderr


@pytest.mark.usefixtures("account")
def test_plan_of_an_example_reports_where_it_was_made() -> None:
    result = run("plan", "-f", str(examples() / "no-reservation.yaml"))
    source = (
        "planned from the files alone, in a copy of the demo's account on this machine; no cluster was read"
    )
    assert result.stderr.splitlines()[0] == source and result.stderr.count(source) == 1


def test_source_of_an_example_is_reported_before_the_account_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def start(_: object) -> None:
        seen.append(capsys.readouterr().err)
        raise ValueError("no account")

    monkeypatch.setattr(cli, "local", lambda _: start)
    assert main("plan", "-f", str(examples() / "no-reservation.yaml")) == 2
    assert "planned from the files alone" in seen[0]


@pytest.mark.usefixtures("account")
def test_example_without_claims_names_the_missing_objects(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("plan", "-f", str(examples() / "nodepool-gpu.yaml")) == 2
    assert "no NodeClaim (karpenter.sh/v1) and no pod to plan: add a file" in capsys.readouterr().err


def test_a_file_elsewhere_is_no_example(tmp_path: Path) -> None:
    assert are_examples([str(examples()), str(examples() / "pods")])
    assert not are_examples([str(examples()), str(tmp_path)])
    assert not are_examples(["-"])


def test_an_edited_example_is_planned_on_the_user_s_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.commands.examples.examples", lambda: tmp_path)
    path = tmp_path / "mine.yaml"
    text = (examples() / "reservation-by-id.yaml").read_text()
    path.write_text(text)
    assert are_examples([str(path)])
    path.write_text(text.replace("demo-node", "our-node"))
    assert not are_examples([str(path)])
