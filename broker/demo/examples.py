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
    resolved = [Path(path).resolve() for path in paths]
    if not resolved or not all(path_ == folder or folder in path_.parents for path_ in resolved):
        return False
    files = [file for path_ in resolved for file in ([path_] if path_.is_file() else path_.glob("*.yaml"))]
    texts = [file.read_text(errors="replace") for file in files]
    return all(text.count(_CLASS) == text.count(_PROFILE) for text in texts)


@contextmanager
def example_account(settings: Settings) -> Iterator[tuple[Settings, Callable[[str], str]]]:
    """The account that the examples are written for, on this machine: settings for it, and a function
    that fills placeholders. It is gone at the end.
    """
    from broker.demo import account
    from broker.demo.stage import own_credentials
    from providers.local import LocalAws

    own_credentials()
    with LocalAws() as aws:
        ids = account.everything(aws.endpoint)
        own_settings = replace(
            settings,
            cluster_name=account.CLUSTER,
            region=account.REGION,
            aws_endpoint=aws.endpoint,
            aws_profile="",
        )
        yield own_settings, ids.fill
