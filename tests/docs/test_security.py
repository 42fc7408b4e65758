"""The threat model names, for each of its lines, a test that is there."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.blocks import DOCS

ROOT = DOCS.parent
PAGE = (DOCS / "operate/security.md").read_text()
ROWS = [
    line
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| subject", "| source", "| gap"))
]
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@pytest.mark.covers("SAF-62")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:42])
def test_every_line_ends_with_a_test_that_is_there(row: str) -> None:
    last = row.strip("| ").rpartition("|")[2].strip()
    named = NAMED.fullmatch(last)
    assert named, f"no test in the last column: {last}"
    tests = {
        node.name
        for node in ast.walk(ast.parse((ROOT / named[1]).read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert tests and (named[2] is None or named[2] in tests), f"{named[1]} has no {named[2]}"


@pytest.mark.covers("SAF-62")
def test_the_page_has_rights_trust_and_gaps() -> None:
    parts = re.findall(r"^## (.+)$", PAGE, re.M)
    assert parts == ["Rights", "Trusted sources", "Gaps"]
    for _, name in NAMED.findall(PAGE.replace("\n", " ")):
        assert name == "" or name.startswith("test_")
