"""Embedded API servers that serve custom resources: a process reads and checks their definitions once."""

from __future__ import annotations

from functools import cache
from typing import Any

from broker.apis.crds import KIND as CRD
from broker.apis.crds import load
from broker.apis.meta import Kind
from broker.kube.client import Client
from local.in_process import InProcessTransport
from local.kube import Cluster


def defined(*files: str, **options: Any) -> Cluster:
    """A new one, with the definitions of these files of `crds/`, all by default."""
    return Cluster(definitions_of=_once(files), **options)


def group_definition(kind: Kind, version: str = "") -> dict[str, Any]:
    """The definition of a kind of pods' groups, as an API server of this version has it."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes"}
    names = {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()}
    served = {"name": version or kind.version, "served": True, "storage": True, "schema": schema}
    return {
        "metadata": {"name": kind.resource, "annotations": approved},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {**names, "listKind": f"{kind.kind}List"},
            "versions": [served],
        },
    }


@cache
def _once(files: tuple[str, ...]) -> Cluster:
    cluster = Cluster()
    client = Client(InProcessTransport(cluster))
    for definition in load(*files):
        client.create(CRD, definition)
    return cluster
