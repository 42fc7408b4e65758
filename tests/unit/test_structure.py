"""The shape of the code: constructors with few parameters, and modules that can be read in one sitting."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PARAMETERS: Final = 8  # without `self`
LINES: Final = 420
# Why a longer module is one idea.
LONG_MODULES: Final = {
    "broker/settings.py": "the table of all options",
}


def modules() -> Iterator[tuple[str, str]]:
    for folder in ("broker", "providers", "local"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield file.relative_to(ROOT).as_posix(), file.read_text()


def parameters(constructor: ast.FunctionDef) -> int:
    arguments = constructor.args
    return len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]) - 1


def test_constructors_have_at_most_eight_parameters() -> None:
    wide = [
        f"{name}: {node.name} has {parameters(part)} parameters"
        for name, text in modules()
        if "def __init__(" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef) and part.name == "__init__" and parameters(part) > PARAMETERS
    ]
    assert not wide


def test_modules_are_short_unless_their_length_has_a_reason() -> None:
    lengths = {name: len(text.splitlines()) for name, text in modules()}
    long = {name for name, count in lengths.items() if count > LINES}
    assert long == LONG_MODULES.keys()
