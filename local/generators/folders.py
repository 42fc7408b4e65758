"""A checked-in folder of generated files: writes it, and names the files that differ from the models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def drift(folder: Path, texts: Mapping[str, str], suffix: str) -> list[str]:
    """The differences of the folder's files from the expected texts by name, one line each."""
    lines = [
        f"{name}: is not generated from any model" for name in _present(folder, suffix) if name not in texts
    ]
    for name, text in texts.items():
        path = folder / name
        if not path.exists():
            lines.append(f"{name}: is missing")
        elif path.read_text() != text:
            lines.append(f"{name}: differs from the models")
    return lines


def write(folder: Path, texts: Mapping[str, str], suffix: str) -> None:
    """Replaces the folder's files of this suffix."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _present(folder, suffix):
        (folder / name).unlink()
    for name, text in texts.items():
        (folder / name).write_text(text)


def run(
    module: str,
    arguments: list[str],
    *,
    folder: Path,
    shown: str,
    files: Callable[[], Mapping[str, str]],
    suffix: str,
) -> int:
    """The command `python -m MODULE [--check]`; returns its exit code. `shown`: the folder in messages."""
    if arguments not in ([], ["--check"]):
        print(f"usage: python -m {module} [--check]; got {arguments}", file=sys.stderr)  # noqa: T201
        return 2
    if not arguments:
        write(folder, files(), suffix)
        return 0
    problems = drift(folder, files(), suffix)
    for problem in problems:
        print(f"{shown}/{problem}; run python -m {module}", file=sys.stderr)  # noqa: T201
    return 1 if problems else 0


def _present(folder: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*{suffix}"))
