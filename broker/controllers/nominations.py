"""The node at which a waiting pod is expected: `status.nominatedNodeName`.

A node that joins is nominated for the pods that it was made for, before its first taint is removed.
kube-scheduler then keeps its room from other pods of their priority, and tries this node first for them
(KEP-5278, on by default since Kubernetes 1.35). Why: otherwise a pod that fits any machine may take one that
was made for a pod that fits no other, and that pod needs one machine more.

Invariant: a nomination to a node that ends, or that has no room for the pod any more, is removed by the next
run of provisioning. kube-scheduler nominates a node too, when it evicts other pods there; such a pod needs no
machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import structlog

from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, pods_of
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.errors import ApiError, Unavailable

_log = structlog.get_logger("nominations")


def write_nomination(client: Client, pod: Pod, node: str | None) -> None:
    """Sets the pod's node, or removes it. Raises ApiError."""
    body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
    client.patch(Pod.KIND, pod.name, body, namespace=pod.namespace, subresource="status")


def try_nomination(client: Client, pod: Pod, node: str | None) -> None:
    """Writes the nomination if the pod still waits, else logs the refusal. Raises Unavailable."""
    try:
        write_nomination(client, pod, node)
    except Unavailable:
        raise
    except ApiError as error:
        _log.info("nomination not written", pod=pod.key, node=node or "", error=str(error))


def nominate(
    client: Client, pods: Cache[Pod], claim: NodeClaim, node: str, *, others: Collection[str]
) -> None:
    """Nominates the node for those of the claim's pods that wait. Raises Unavailable.

    `others`: schedulers that remove nominations that are not their own. A refused write costs order, not
    correctness: the pod is placed without it.
    """
    for pod in filter(None, map(pods.find, pods_of(claim))):
        waits = pod.waits and not pod.status.nominated_node_name
        if waits and pod.spec.scheduler_name not in others:
            try_nomination(client, pod, node)


def preempting(
    pods: Collection[Pod], nodes: Iterable[Node], claims: Iterable[NodeClaim], unread: Collection[str] = ()
) -> frozenset[str]:
    """The keys of pods for which kube-scheduler evicts others: pods end on their node, or it exists and was
    not made for them.

    `pods`: all that exist. `unread`: the names of Nodes that exist and are left out of the cache.
    """
    nominated = {pod.key: pod.status.nominated_node_name for pod in pods if pod.status.nominated_node_name}
    if not nominated:
        return frozenset()
    pods_by_instance = {claim.instance_id: pods_of(claim) for claim in claims if claim.instance_id}
    pods_by_node = {node.name: pods_by_instance.get(node.instance_id, ()) for node in nodes}
    ending = [pod.spec.node_name for pod in pods if pod.deleting]
    pods_by_node |= dict.fromkeys((*unread, *ending), ())
    return frozenset(
        key for key, node in nominated.items() if node in pods_by_node and key not in pods_by_node[node]
    )
