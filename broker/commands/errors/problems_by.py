"""The keys by which `errors` counts; apart, so that the command line imports no database."""

from __future__ import annotations

from enum import StrEnum


class GroupBy(StrEnum):
    """The key of a row."""

    POOL = "pool"
    CLASS = "class"
    CODE = "code"
