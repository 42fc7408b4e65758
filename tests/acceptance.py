"""Lists the acceptance statements in tests/statements/ that no test covers.

A test covers a statement by `@pytest.mark.covers("KRP-17")`. `python -m tests.acceptance KRP` narrows to a
prefix; `--strict KRP-01 ...` fails if one of the named statements has no test, or a mark names no statement.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

STATEMENTS = Path(__file__).parent / "statements"
LINE = re.compile(r"^- ([A-Z]+-\d+)(.*)$")


def statements() -> dict[str, str]:
    """Statement id to its text, in the order of the files."""
    texts: dict[str, str] = {}
    for file in sorted(STATEMENTS.glob("*.md")):
        for line in file.read_text().splitlines():
            if match := LINE.match(line):
                texts[match[1]] = match[2].strip()
    return texts


class Collector:
    """Reads the marks of every collected test, parametrised ones too."""

    def __init__(self) -> None:
        self.covered: dict[str, set[str]] = defaultdict(set)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("covers"):
                for statement in mark.args:
                    self.covered[statement].add(item.nodeid.split("[")[0])


def main(arguments: list[str]) -> int:
    strict = "--strict" in arguments
    prefixes = [a for a in arguments if not a.startswith("--")]
    collector = Collector()
    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main(["--collect-only", "-qq", "-p", "no:xdist", "tests"], plugins=[collector])
    if code:
        print("The tests could not be collected: run pytest --collect-only to see why.")
        return 2
    known = statements()
    misnamed = [w for w in prefixes if not any(s == w or s.startswith(f"{w}-") for s in known)]
    unknown = sorted(set(collector.covered) - set(known))
    chosen = [s for s in known if not prefixes or any(s == w or s.startswith(f"{w}-") for w in prefixes)]
    open_ = [s for s in chosen if s not in collector.covered]
    for statement in open_:
        print(f"{statement:<8} {known[statement][:110]}")
    print(
        f"{len(chosen) - len(open_)} of {len(chosen)} statements are covered by tests, {len(open_)} are not."
    )
    for mark in unknown:
        print(f"A test covers {mark}, which no statement has.")
    for name in misnamed:
        print(f"No statement is named {name}.")
    return 1 if unknown or misnamed or (strict and open_) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
