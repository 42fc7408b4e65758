"""The code blocks of a page, by language."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^( *)```([a-z]+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


class Step(NamedTuple):
    """A command of a console block, and its output."""

    command: str
    output: str


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The texts of the page's blocks in this language, without the indentation of the list they are in."""
    return [text for found, text in parts(page) if found == language]


def parts(page: Path) -> list[tuple[str, str]]:
    """Language and text of every block, in order."""
    return [
        (found[2], re.sub(f"^{found[1]}", "", found[3], flags=re.MULTILINE))
        for found in _FENCE.finditer(page.read_text())
    ]


def steps(page: Path) -> list[Step]:
    """Every command of the page's console blocks, in order."""
    return step_list(blocks(page, "console"))


def step_list(texts: Iterable[str]) -> list[Step]:
    """Every command of console blocks, in order."""
    found: list[Step] = []
    for block in texts:
        for line in block.splitlines(keepends=True):
            if line.startswith("$ "):
                found.append(Step(line[2:].rstrip("\n"), ""))
            else:
                found[-1] = found[-1]._replace(output=found[-1].output + line)
    return found


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", page.read_text())
