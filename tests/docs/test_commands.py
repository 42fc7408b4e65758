"""Every command of the pages is run by a test or has a reason; every verb, option and target exists."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from broker import cli
from tests.docs.blocks import ROOT, pages
from tests.docs.commands import commands
from tests.docs.owners import CI_TEST, NOT_RUN, OWNERS, owner, plain

PROGRAM = re.compile(r"(\$ |(aws|capacity-broker|curl|docker|helm|jq|kubectl|make|terraform) [a-z-])")
COMMANDS = [*commands()]
BROKER = sorted({plain(c) for c in COMMANDS if plain(c).startswith("capacity-broker ")})
MAKE = sorted({plain(c) for c in COMMANDS if plain(c).startswith("make ")})


@pytest.mark.covers("USR-24")
def test_every_command_is_run_by_a_test_or_has_a_reason() -> None:
    reasons = Counter(
        pattern for command in COMMANDS for pattern in NOT_RUN if fnmatchcase(plain(command), pattern)
    )
    assert {*reasons} == {*NOT_RUN}, "a reason without a command"
    without = [command for command in COMMANDS if not owner(command)]
    assert sum(reasons.values()) == len(without), [f"{command.page}: {plain(command)}" for command in without]


@pytest.mark.covers("USR-24")
@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_only_sh_and_console_blocks_have_commands(page: Path) -> None:
    language, wrong = "", []
    for line in page.read_text().splitlines():
        if fence := re.match(r" *```([a-z]*)$", line):
            language = (fence[1] or "text") if not language else ""
        elif language not in ("", "sh", "console") and PROGRAM.match(line.strip()):
            wrong.append(line)
    assert wrong == []


@pytest.mark.covers("USR-24")
def test_pages_that_a_test_runs_are_read_by_that_test() -> None:
    assert {owner(command) for command in COMMANDS} >= {*OWNERS}
    for owner_ in OWNERS:
        text = (ROOT / owner_.file).read_text()
        tests = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
        assert owner_.test in tests and owner_.reads in text, owner_


@pytest.mark.covers("USR-24")
def test_ci_runs_shown_targets() -> None:
    lines = (ROOT / ".ci/run").read_text()
    shown = {plain(command) for command in COMMANDS if (by := owner(command)) and by.file == CI_TEST}
    assert len(shown) > 2
    assert [
        text for text in shown if not re.search(rf"^(simulate\(\) {{ )?{text}\b", lines, re.MULTILINE)
    ] == []


@pytest.mark.parametrize("text", BROKER)
def test_verbs_and_options_of_a_shown_command_exist(text: str) -> None:
    arguments = shlex.split(re.split(r"[|>]", text)[0])[1:]
    group: Any = typer.main.get_command(cli.app)
    while arguments:
        _name, command, arguments = group.resolve_command(group.context_class(group), arguments)
        if not isinstance(command, TyperGroup):
            command.make_context(text, arguments)  # which rejects an unknown option or a missing argument
            return
        group = command
    raise AssertionError(f"{text} names no verb")


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {text.split()[1] for text in MAKE} <= targets
