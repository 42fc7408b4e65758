"""Kubernetes' published documents, as `build.py` writes them: the served resources and the Go types."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import orjson


@cache
def load(name: str) -> Any:
    return orjson.loads((files(__package__) / name).read_bytes())
