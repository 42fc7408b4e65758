"""The manifests of the examples: what people read, plans and demos take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

# The classes of the examples have the profile of the example account, until an edit names another one.
_CLASS = "kind: EC2NodeClass\nmetadata"
_PROFILE = "instanceProfile: demo-node"
# What the distribution capacity-broker-local adds.
LOCAL: Final = "capacity_broker.local"


def examples() -> Path:
    """The examples of a checkout, or of an installed package."""
    here = Path(__file__).resolve()
    for place in (here.parents[2] / "examples", here.parents[1] / "examples"):
        if place.is_dir():
            return place
    raise FileNotFoundError("the examples folder is missing: run the demo from a checkout")


def are_examples(paths: Iterable[str]) -> bool:
    """Whether every path is the folder of the examples, or in it, and its classes are still the examples'."""
    try:
        folder = examples().resolve()
    except FileNotFoundError:
        return False
    resolved = [Path(path).resolve() for path in paths]
    if not resolved or not all(path_ == folder or folder in path_.parents for path_ in resolved):
        return False
    files = [file for path_ in resolved for file in ([path_] if path_.is_file() else path_.glob("*.yaml"))]
    texts = [file.read_text(errors="replace") for file in files]
    return all(text.count(_CLASS) == text.count(_PROFILE) for text in texts)


def local(name: str) -> Callable[..., Any] | None:
    """A part of capacity-broker-local, if that is installed."""
    return next((point.load() for point in entry_points(group=LOCAL, name=name)), None)
