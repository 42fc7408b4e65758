"""Applies examples, and makes the account that they are written for, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from broker.apis.crds import KIND as CRD
from broker.commands import manifests
from broker.kube.client import Client
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


def apply(client: Client, documents: Iterable[dict[str, Any]]) -> list[str]:
    """Applies documents of the broker's kinds; returns `kind/name` of each. Raises BadManifest, ApiError."""
    applied = []
    for document in documents:
        if document["kind"] == CRD.kind:
            kind = CRD
        elif model := manifests.KINDS.get((document.get("apiVersion", ""), document["kind"])):
            kind = model.KIND
        else:
            raise manifests.BadManifest(
                f"{document.get('apiVersion')}/{document['kind']}: not a kind of the broker's"
            )
        client.apply(kind, document)
        applied.append(f"{document['kind']}/{document['metadata']['name']}")
    return applied
