"""Prints the installed distributions that a broker in a cluster does not need, one a line.

Needed is what pyproject.toml's own dependencies require, and what these require, on this machine.
`python runtime.py pyproject.toml`
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distributions, requires
from pathlib import Path

from packaging.requirements import Requirement


def needed(wanted: Iterable[str]) -> set[str]:
    """The requirements and all that they require, by name. Raises LookupError for one that is missing."""
    found: set[str] = set()
    todo = [(Requirement(text), "") for text in wanted]
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = normalized(requirement.name)
        for asked in ("", *requirement.extras):
            if (name, asked) in seen:
                continue
            seen.add((name, asked))
            try:
                todo += [(Requirement(text), asked) for text in requires(name) or ()]
            except PackageNotFoundError as error:
                raise LookupError(f"{requirement} is required and not installed") from error
        found.add(name)
    return found


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def unneeded(pyproject: Path) -> list[str]:
    kept = needed(tomllib.loads(pyproject.read_text())["project"]["dependencies"])
    return sorted({normalized(each.name) for each in distributions()} - kept)


if __name__ == "__main__":
    sys.stdout.write("".join(f"{name}\n" for name in unneeded(Path(sys.argv[1]))))
