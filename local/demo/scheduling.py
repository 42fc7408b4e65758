"""Simulates kube-scheduler: binds pods to ready nodes by its filters, and marks the others Unschedulable.

A nominated pod comes before others, and has its node if it fits there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.kueue import Namespace
from broker.apis.meta import condition
from broker.apis.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.errors import ApiError
from broker.placement.filters import fits
from broker.placement.message import message
from broker.placement.reading import namespace_labels, node_info, pod_info, takes_room
from broker.placement.snapshot import PlacementSnapshot
from broker.placement.storage import Storage
from local.demo.simulated import Simulated

EVERY: Final = 0.2


class KubeScheduler(Simulated):
    """Binds the pods of all schedulers `but` those that others serve, by one thread."""

    def __init__(self, client: Client, *, clock: Clock, but: Collection[str]) -> None:
        super().__init__("kube-scheduler", clock=clock, every=EVERY)
        self._client, self._but = client, but

    def step(self) -> None:
        schedule(self._client, but=self._but, storage=_storage(self._client))


def schedule(client: Client, *, but: Collection[str] = (), storage: Storage | None = None) -> None:
    """One look at all pods. Those of the schedulers `but` are left to them. Without `storage`, no pod has
    volumes that decide.
    """
    nodes = [Node.decode(item) for item in client.list(Node.KIND)[0]]
    # After the nodes: a pod is nominated before its node takes pods.
    pods = [Pod.decode(item) for item in client.list(Pod.KIND)[0]]
    pods.sort(key=lambda pod: not pod.status.nominated_node_name)
    ready = [
        n
        for n in nodes
        if not n.deleting and (c := condition(n.status.conditions, names.READY)) and c.status == "True"
    ]
    spaces = namespace_labels(Namespace.decode(item) for item in client.list(Namespace.KIND)[0])
    snapshot = PlacementSnapshot.of(
        map(node_info, ready),
        [pod_info(pod) for pod in pods if takes_room(pod)],
        namespaces=spaces,
        storage=storage,
    )
    for pod in pods:
        over = pod.status.phase in ("Succeeded", "Failed")
        elsewhere = pod.spec.node_name or pod.spec.scheduler_name in but
        if elsewhere or pod.deleting or over or pod.spec.scheduling_gates:
            continue
        info = pod_info(pod)
        fit = fits(info, snapshot)
        if fit.nodes:
            nominated = pod.status.nominated_node_name
            node = nominated if nominated in fit.nodes else fit.nodes[0]
            snapshot = snapshot.with_pod(info, node)
            bind(client, pod, node)
            continue
        known = condition(pod.status.conditions, "PodScheduled")
        if known is None or known.reason != "Unschedulable":
            _unschedulable(client, pod, message(fit))


def _storage(client: Client) -> Storage:
    return Storage.of(
        claims=map(PersistentVolumeClaim.decode, client.list(PersistentVolumeClaim.KIND)[0]),
        volumes=map(PersistentVolume.decode, client.list(PersistentVolume.KIND)[0]),
        classes=map(StorageClass.decode, client.list(StorageClass.KIND)[0]),
    )


def bind(client: Client, pod: Pod, node: str) -> None:
    body = {"metadata": {"name": pod.name}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/binding"
    try:
        client.raw("POST", path, {}, {"apiVersion": "v1", "kind": "Binding", **body})
    except ApiError:
        return  # the next look tries it again


def _unschedulable(client: Client, pod: Pod, why: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    client.patch(
        Pod.KIND,
        pod.name,
        {"status": {"conditions": [condition]}},
        namespace=pod.namespace,
        subresource="status",
    )
