"""The account that the examples are written for, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from broker.settings import Settings


@contextmanager
def example_account(settings: Settings) -> Iterator[tuple[Settings, Callable[[str], str]]]:
    """Settings for the account, and a function that fills placeholders. It is gone at the end."""
    from local.aws import LocalAws
    from local.demo import account
    from local.demo.stage import own_credentials

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
