"""Where the examples are: every demo applies those that people read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from broker.settings import Settings

# The classes of the examples have the profile of the demo's account, until an edit names another one.
_CLASS = "kind: EC2NodeClass\nmetadata"
_PROFILE = "instanceProfile: demo-node"


def examples() -> Path:
    """The examples of a checkout, or of an installed package."""
    here = Path(__file__).resolve()
    for place in (here.parents[2] / "examples", here.parents[1] / "examples"):
        if place.is_dir():
            return place
    raise FileNotFoundError("the examples folder is missing: run the demo from a checkout")


def are_examples(paths: Iterable[str]) -> bool:
    """Whether every path is the folder of the examples, or in it, and its classes are still the demo's."""
    try:
        folder = examples().resolve()
    except FileNotFoundError:
        return False
    found = [Path(path).resolve() for path in paths]
    if not found or not all(each == folder or folder in each.parents for each in found):
        return False
    files = [file for each in found for file in ([each] if each.is_file() else each.glob("*.yaml"))]
    texts = [file.read_text() for file in files]
    return all(text.count(_CLASS) == text.count(_PROFILE) for text in texts)


@contextmanager
def example_account(settings: Settings) -> Iterator[tuple[Settings, Callable[[str], str]]]:
    """The account that the examples are written for, on this machine: settings for it, and a function
    that fills placeholders. It is gone at the end.
    """
    from broker.demo import world
    from broker.demo.stage import own_credentials
    from providers.local import LocalAws

    own_credentials()
    with LocalAws() as aws:
        made = world.everything(aws.endpoint)
        mine = replace(
            settings,
            cluster_name=world.CLUSTER,
            region=world.REGION,
            aws_endpoint=aws.endpoint,
            aws_profile="",
        )
        yield mine, made.fill
