"""Evictions from nodes that end or reboot. The API server is asked first: the watch of pods may be late."""

from __future__ import annotations

from datetime import datetime

from broker.apis.core import Pod
from broker.controllers.claim_caches import BY_NODE
from broker.controllers.lifecycle import drain
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.errors import Conflict, NotFound, TooManyRequests


def remaining_pods(client: Client, pods: Cache[Pod], node: str, now: datetime) -> list[Pod]:
    """The pods that hold up the drain of a node.

    The cache may lack the newest pods: an empty result is confirmed by the API server. Raises ApiError.
    """
    if known := drain.remaining(pods.by(BY_NODE, node), now):
        return known
    listed, _ = client.list(Pod.KIND, field_selector=f"spec.nodeName={node}")
    return drain.remaining(map(Pod.decode, listed), now)


def evict(client: Client, pod: Pod, now: datetime) -> str:
    """Evicts a pod, unless another has its name by now, or a person has protected it.

    Returns why its disruption budget refuses; empty if it does not. Raises ApiError.
    """
    listed, _ = client.list(Pod.KIND, namespace=pod.namespace, field_selector=f"metadata.name={pod.name}")
    newest = next(map(Pod.decode, listed), None)
    if newest is None or newest.uid != pod.uid or newest.deleting or drain.kept(newest, now):
        return ""
    try:
        client.evict(pod.name, pod.namespace, uid=pod.uid)
    except (NotFound, Conflict):
        return ""
    except TooManyRequests as error:
        return error.message
    return ""
