"""The commands of the pages: named tests run whole pages, and every verb, option and target exists."""

from __future__ import annotations

import ast
import re
import shlex
from fnmatch import fnmatch
from typing import Any, NamedTuple

import pytest
import typer
from typer.core import TyperGroup

from broker import cli
from tests.docs.blocks import ROOT
from tests.docs.commands import Command, commands


class Owner(NamedTuple):
    """A test that runs the blocks of a page from the page's text."""

    pages: str
    languages: tuple[str, ...]
    file: str
    test: str
    reads: str  # the part of the test's file that opens the page


MIGRATION = "tests/cluster/test_migration.py"
BOTH = ("sh", "console")
OWNERS = (
    Owner(
        "docs/contribute/embedded-api.md",
        ("console",),
        "tests/docs/test_examples.py",
        "test_kubectl_on_the_embedded_server_as_shown",
        'DOCS / "contribute/embedded-api.md"',
    ),
    Owner(
        "docs/contribute/local-aws.md",
        ("console",),
        "tests/docs/test_examples.py",
        "test_the_knobs_of_local_aws_as_shown",
        'DOCS / "contribute/local-aws.md"',
    ),
    Owner(
        "docs/operate/back-out.md", BOTH, MIGRATION, "test_backing_out", 'DOCS / "operate" / "back-out.md"'
    ),
    Owner(
        "docs/operate/from-karpenter.md",
        BOTH,
        MIGRATION,
        "test_from_karpenter_s_own_terms_and_back",
        'DOCS / "operate" / "from-karpenter.md"',
    ),
    Owner(
        "docs/operate/from-node-groups.md",
        BOTH,
        MIGRATION,
        "test_from_an_auto_scaling_group_that_targets_a_reservation",
        'DOCS / "operate" / "from-node-groups.md"',
    ),
    Owner(
        "docs/operate/take-over.md",
        BOTH,
        MIGRATION,
        "test_taking_over_karpenter_s_claims_and_back",
        'DOCS / "operate" / "take-over.md"',
    ),
    Owner(
        "docs/operate/operations.md",
        ("console",),
        "tests/docs/test_words.py",
        "test_readiness_names_what_the_broker_waits_for",
        'steps(DOCS / "operate/operations.md")',
    ),
    Owner(
        "docs/runbooks/capacity-*.md",
        ("console",),
        "tests/docs/test_runbooks.py",
        "test_commands_of_a_runbook_print_what_it_shows",
        'RUNBOOKS.glob("capacity-*.md")',
    ),
    Owner(
        "docs/use/quickstart-eks.md",
        ("sh",),
        "tests/peers/test_quickstart.py",
        "test_each_command_of_the_quick_start_leads_to_a_pod_in_a_reservation",
        'PAGE = DOCS / "use/quickstart-eks.md"',
    ),
)


def owner(command: Command) -> Owner | None:
    return next(
        (o for o in OWNERS if fnmatch(command.page, o.pages) and command.language in o.languages), None
    )


def plain(command: Command) -> str:
    """The command on one line, without its comment."""
    return re.sub(r"\s+# .*", "", command.text.replace("\\\n", " ")).removeprefix(".venv/bin/").strip()


FOUND = [*commands()]
BROKER = sorted({plain(c) for c in FOUND if plain(c).startswith("capacity-broker ")})
MAKE = sorted({plain(c) for c in FOUND if plain(c).startswith("make ")})


def test_pages_that_a_test_runs_are_read_by_that_test() -> None:
    assert {owner(command) for command in FOUND} >= {*OWNERS}
    for each in OWNERS:
        text = (ROOT / each.file).read_text()
        tests = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
        assert each.test in tests and each.reads in text, each


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
