"""Every relative link in every Markdown file resolves, with its anchor."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT

PARTS = ("use", "operate", "reference", "contribute", "runbooks")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`[^`\n]*`")


def markdown_files() -> list[Path]:
    """Every Markdown file that git tracks."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "*.md"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).exists()]


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", markdown_files(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_and_anchor_resolves(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(INLINE.sub("code", FENCE.sub("", page.read_text()))):
        if "://" in target or target.startswith("mailto:"):
            continue
        linked = page.parent / target if target else page
        if not linked.exists() or (anchor and anchor not in slugs(linked)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def test_the_index_links_every_page() -> None:
    index = DOCS / "README.md"
    linked = {(DOCS / target).resolve() for target, _ in LINK.findall(index.read_text())}
    pages = {page for page in DOCS.rglob("*.md") if page != index}
    assert pages - linked == set()
    assert {page.relative_to(DOCS).parts[0] for page in pages if page.parent != DOCS} == set(PARTS)
