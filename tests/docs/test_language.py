"""Plain English: the measures hold in every package, class names are unique, the glossary is short."""

from __future__ import annotations

import ast
from collections import defaultdict

import pytest

from tests.docs.blocks import DOCS, ROOT
from tests.docs.language import CODE_ROOTS, LIMITS, empty_names, files_by_package, measure, texts

FILES = files_by_package()


@pytest.mark.parametrize("package", sorted(FILES))
def test_the_measures_of_plain_english_hold(package: str) -> None:
    assert measure(texts(FILES[package])).above(LIMITS) == []


def test_the_measures_count_as_described() -> None:
    long_sentence = " ".join(["word"] * 31) + "."
    assert measure(["Nobody said what.", long_sentence]) == pytest.approx(
        (1000 / 34, 1000 / 34, 1000 / 34, 50)
    )
    assert measure(["```\nwhat\n```", "| `what` | what |"]).what == 500


@pytest.mark.parametrize("root", CODE_ROOTS)
def test_locals_are_named_after_their_content(root: str) -> None:
    assert [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / root).rglob("*.py"))
        for line, name in empty_names(path.read_text())
    ] == []


def test_empty_names_are_found_wherever_a_name_is_bound() -> None:
    lines = (
        "def f(one):",
        "    for each in one:",
        "        if found := each:",
        "            said = [made for made in found]",
    )
    source = "\n".join(lines)
    assert {name for _, name in empty_names(source)} == {"one", "each", "found", "said", "made"}


def test_class_names_are_unique() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for top in ("broker", "providers", "local"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    modules[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


def test_the_glossary_is_short() -> None:
    glossary = DOCS / "glossary.md"
    assert len(glossary.read_text().splitlines()) < 25
