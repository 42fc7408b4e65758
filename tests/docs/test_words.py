"""Named things exist: files, commands, packages, reasons, checks."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import urllib.error
import urllib.request
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer

from broker.apis import karpenter_aws_kubelet
from broker.app import Broker
from broker.cli import app
from broker.kube.client import Client
from broker.kube.lease import RENEW, Elector
from broker.oncall.http import HttpServer
from broker.scheduler import Scheduler
from broker.settings import Settings
from local.in_process import InProcessTransport
from local.kube import Cluster
from providers.aws import errors
from tests.docs.blocks import DOCS, ROOT, blocks, pages, steps
from tests.support.clock import FakeClock

SPEC = DOCS / "reference/capacity-reservation-spec.md"
FILE = re.compile(r"`((?:broker|providers|deploy|tests|terraform|crds|examples|docs)/[\w./-]*)`")
BY_PAGE = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)


@BY_PAGE
def test_named_files_exist(page: Path) -> None:
    assert [name for name in FILE.findall(page.read_text()) if not (ROOT / name).exists()] == []


@BY_PAGE
def test_commands_and_their_options_are_there(page: Path) -> None:
    lines = [
        line
        for language in ("sh", "console")
        for block in blocks(page, language)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    for line in lines:
        words = shlex.split(line.removeprefix("$ "), comments=True) if "capacity-broker" in line else []
        if words[:1] != ["capacity-broker"]:
            continue
        command: Any = typer.main.get_command(app)
        rest = list(
            takewhile(lambda word: word not in ("|", ">"), words[1:])
        )  # not the program that reads its output
        while hasattr(command, "commands"):
            assert rest and rest[0] in command.commands, line
            command, rest = command.commands[rest[0]], rest[1:]
        known = {
            name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)
        }
        assert [word for word in rest if word.startswith("-") and word not in known] == [], line


def test_every_room_is_shown() -> None:
    page_text = (DOCS / "contribute/architecture.md").read_text()
    rooms = [
        f"`{p.relative_to(ROOT)}/`"
        for top in ("broker", "providers", "local")
        for p in (ROOT / top).iterdir()
        if (p / "__init__.py").exists()
    ]
    assert len(rooms) > 8
    assert [room for room in rooms if room not in page_text] == []


def broker() -> Broker:
    """A broker that is built and not started."""
    absent: Any = Mock()
    return Broker(Client(InProcessTransport(Cluster())), absent, Settings(), clock=FakeClock())


def test_every_loop_is_shown() -> None:
    text = (DOCS / "contribute/architecture.md").read_text()
    shown = re.findall(r"^\| ([a-z, -]+) \| (?:one|two|four)", text, re.MULTILINE)
    scheduler = Scheduler(Client(InProcessTransport(Cluster())), Settings(), clock=FakeClock())
    loops = [*broker().loops, *scheduler.loops]
    assert sorted(", ".join(shown).split(", ")) == sorted(loop.name for loop in loops)


# Words in the code that look like reasons and are none: kinds, operators, statuses, outcomes, families.
WORDS = """
True False Unknown Normal Warning Valid Ready Available LimitExceeded Resolved Mirrored Not NotRequired
Exists DoesNotExist Equal In NotIn Gt Gte Lt Lte Mi Gi Ti NoSchedule NoExecute PreferNoSchedule Failed
Succeeded PodScheduled Binding Running Deployment ReplicaSet AdmissionCheck
Unschedulable CreateCapacityReservation
CapacityReservationsReady EC2NodeClass NodeClaim DaemonSet Node Windows Custom Bottlerocket Outpost
Adopted Launched Refused Skipped Spilled NoInstances SpilledToOnDemand
"""
NO_REASONS = frozenset(WORDS.split())


def reasons() -> dict[str, str]:
    """Every CamelCase word that conditions, misfits and events may give as their reason, with its file."""
    top = ROOT / "broker"
    files = [path for room in ("controllers", "capacity") for path in (top / room).rglob("*.py")]
    files += [top / "kube" / "manager.py", top / "kube" / "refusals.py", top / "placement" / "claims.py"]
    files += [ROOT / "providers" / "odcr_states.py", ROOT / "providers" / "errors.py"]
    return {
        node.value: file.name
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"[A-Z][a-zA-Z0-9]*[a-z][a-zA-Z0-9]*", node.value)
        and node.value not in NO_REASONS
        and node.value not in errors.TABLE
    }


@pytest.mark.covers("KRP-24")
def test_every_reason_is_explained_and_every_explained_reason_is_given() -> None:
    docs_text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    given = reasons()
    assert [f"{word} ({file})" for word, file in given.items() if f"`{word}`" not in docs_text] == []
    tables_ = re.findall(r"^\| (`[A-Z][^|]*) \|", SPEC.read_text(), re.MULTILINE)
    explained = {word for cell in tables_ for word in re.findall(r"`([A-Z]\w+)`", cell)}
    conditions = {"CapacityReservationSpecValid", "ReservationsResolved", "Launchable", "CapacityReservation"}
    conditions |= {
        "ReservationsAdvised",
        "ReservationsDescribed",
        "ReservedAllowed",
        "CapacityReservationSpecServed",
    }
    assert len(explained) > 40
    given_elsewhere = {"Launched", karpenter_aws_kubelet.INVALID, karpenter_aws_kubelet.EXPRESSION}
    assert explained - conditions - set(given) - set(errors.TABLE) - given_elsewhere == set()


def test_readiness_names_the_reads_that_the_broker_waits_for() -> None:
    checks = dict(broker().ready())
    page_text = (DOCS / "operate/operations.md").read_text()
    assert [name for name in checks if f"`{name}`" not in page_text] == []
    (step_,) = [step for step in steps(DOCS / "operate/operations.md") if "/readyz" in step.command]
    checks |= dict.fromkeys(set(checks) - {"ec2-reservations"}, True)
    assert step_.output == _served(checks)


def _served(checks: dict[str, bool]) -> str:
    server = HttpServer(host="127.0.0.1", port=0, ready=lambda: checks, registries=[])
    server.start()
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{server.url}/readyz", timeout=10)
        assert refused.value.code == 503
        return refused.value.read().decode()
    finally:
        server.close()


def test_the_numbers_of_the_lease() -> None:
    duration = inspect.signature(Elector).parameters["duration"].default
    page_text = (DOCS / "operate/operations.md").read_text()
    assert f"{duration:g} s, renewed every {RENEW:g} s" in page_text
