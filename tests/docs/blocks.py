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
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The texts of the page's blocks in this language, without the indentation of the list they are in."""
    return [text for block_language, text in parts(page) if block_language == language]


def parts(page: Path) -> list[tuple[str, str]]:
    """Language and text of every block, in order."""
    return [
        (match[2], re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE))
        for match in _FENCE.finditer(page.read_text())
    ]


def steps(page: Path) -> list[Step]:
    """Every command of the page's console blocks, in order."""
    return step_list(blocks(page, "console"))


def step_list(texts: Iterable[str]) -> list[Step]:
    """Every command of console blocks, in order."""
    steps_: list[Step] = []
    for block in texts:
        for line in block.splitlines(keepends=True):
            if line.startswith("$ "):
                steps_.append(Step(line[2:].rstrip("\n"), ""))
            else:
                steps_[-1] = steps_[-1]._replace(output=steps_[-1].output + line)
    return steps_


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", page.read_text())
