"""Where the examples are: every demo applies those that people read."""

from __future__ import annotations

from pathlib import Path


def examples() -> Path:
    """The examples of a checkout, or of an installed package."""
    here = Path(__file__).resolve()
    for place in (here.parents[2] / "examples", here.parents[1] / "examples"):
        if place.is_dir():
            return place
    raise FileNotFoundError("the examples folder is missing: run the demo from a checkout")
