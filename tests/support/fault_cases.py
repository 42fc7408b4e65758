"""Reads the files of tests/cases/faults."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parents[1] / "cases" / "faults"


def case_text(case: str, file: str) -> str:
    """A file of a case, by its name without `.yaml`."""
    return (_FOLDER / case / f"{file}.yaml").read_text()
