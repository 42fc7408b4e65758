"""The version of this broker: of the installed package, or of the `pyproject.toml` beside it.

The image holds the packages without their installation, and `pyproject.toml` beside them.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

NAME = "capacity-broker"


@cache
def version() -> str:
    try:
        return installed(NAME)
    except PackageNotFoundError:
        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
        return str(project["project"]["version"])
