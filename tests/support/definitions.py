"""Embedded API servers that serve custom resources: a process reads and checks their definitions once."""

from __future__ import annotations

from functools import cache
from typing import Any

from broker.apis.crds import KIND as CRD
from broker.apis.crds import load
from broker.apiserver import Cluster
from broker.kube.client import Client
from broker.kube.transports import InProcessTransport


def defined(*files: str, **options: Any) -> Cluster:
    """A new one, with the definitions of these files of `crds/`, all by default."""
    return Cluster(definitions_of=_once(files), **options)


@cache
def _once(files: tuple[str, ...]) -> Cluster:
    cluster = Cluster()
    client = Client(InProcessTransport(cluster))
    for definition in load(*files):
        client.create(CRD, definition)
    return cluster
