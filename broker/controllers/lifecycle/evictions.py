"""Keeps new pods off nodes that end or reboot, and evicts those on them.

The API server is asked before an eviction: the watch of pods may be late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from broker.apis.core import Node, Pod
from broker.controllers.claim_caches import BY_NODE
from broker.controllers.lifecycle import drain
from broker.controllers.newest import newest, pods_on
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.errors import Conflict, EvictionRefused, NotFound
from broker.placement.disruption_pods import NO_SCHEDULE, owned_by

NO_LABELS: Final[Mapping[str, str]] = {}


def remaining_pods(
    client: Client, pods: Cache[Pod], node: str, now: datetime, *, daemon_sets: bool = True
) -> list[Pod]:
    """The pods that hold up the drain of a node; those of DaemonSets count only with `daemon_sets`.

    The cache may lack the newest pods: an empty result is confirmed by the API server. Raises ApiError.
    """

    def waiting(pods_there: Iterable[Pod]) -> list[Pod]:
        remaining = drain.remaining(pods_there, now)
        return [pod for pod in remaining if daemon_sets or not owned_by(pod, "DaemonSet")]

    return waiting(pods.by(BY_NODE, node)) or waiting(pods_on(client, node))


def evict(client: Client, pod: Pod, now: datetime, until: datetime | None = None) -> str:
    """Evicts a pod, unless another has its name by now, or a person has protected it.

    `until`: when the drain ends in any case. Returns why it is refused; empty if it is not. Raises ApiError.
    """
    try:
        current = newest(client, Pod, pod.name, namespace=pod.namespace)
    except ValidationError:
        return "the pod cannot be read"
    if current is None or current.uid != pod.uid or current.deleting or drain.kept(current, now, until):
        return ""
    try:
        client.evict(pod.name, pod.namespace, uid=pod.uid)
    except (NotFound, Conflict):
        return ""
    except EvictionRefused as error:
        return error.message
    return ""


def close(
    client: Client, nodes: Cache[Node], node: Node | None, key: str, *, labels: Mapping[str, str] = NO_LABELS
) -> None:
    """Keeps new pods off the node, if it exists, and sets labels that it lacks. Raises ApiError."""
    if node is None:
        return
    closed = any((taint.key, taint.effect) == (key, NO_SCHEDULE) for taint in node.spec.taints)
    if not closed or not labels.keys() <= node.labels.keys():
        _write(client, nodes, node, [*_others(node, key), {"key": key, "effect": NO_SCHEDULE}], labels)


def reopen(client: Client, nodes: Cache[Node], node: Node | None, key: str) -> None:
    """Undoes `close`, as the node is now. Raises ApiError."""
    newest = None if node is None else nodes.get(node.name) or node
    if newest is not None and any(taint.key == key for taint in newest.spec.taints):
        _write(client, nodes, newest, _others(newest, key), NO_LABELS)


def _others(node: Node, key: str) -> list[dict[str, Any]]:
    return [taint.wire() for taint in node.spec.taints if taint.key != key]


def _write(
    client: Client,
    nodes: Cache[Node],
    node: Node,
    taints: list[dict[str, Any]],
    labels: Mapping[str, str],
) -> None:
    metadata = {"resourceVersion": node.metadata.resource_version}
    body = {"metadata": {**metadata, "labels": labels} if labels else metadata, "spec": {"taints": taints}}
    nodes.observe(client.patch(Node.KIND, node.name, body))
