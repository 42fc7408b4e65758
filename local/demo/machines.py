"""Nodes without an instance: machines that were there before the demo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis.core import Node
from broker.kube.client import Client

Json = dict[str, Any]


def machine(name: str, room: Mapping[str, str], *, taints: tuple[Json, ...] = ()) -> Json:
    """A node that is ready and has this much room."""
    resources = {"pods": "110", **room}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": [*taints]},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def join(client: Client, node: Json) -> None:
    """Adds the node to the cluster. Raises ApiError."""
    client.create(Node.KIND, {key: node[key] for key in ("metadata", "spec")})
    client.patch(Node.KIND, node["metadata"]["name"], {"status": node["status"]}, subresource="status")
