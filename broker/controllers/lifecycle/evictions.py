"""Evictions from nodes that end or reboot. The API server is asked first: the watch of pods may be late."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pydantic import ValidationError

from broker.apis.core import Pod
from broker.controllers.claim_caches import BY_NODE
from broker.controllers.lifecycle import drain
from broker.controllers.newest import newest, pods_on
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.errors import Conflict, EvictionRefused, NotFound
from broker.placement.disruption_pods import owned_by


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
