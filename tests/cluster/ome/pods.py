"""Pods of teams that draw from reservations: their NodePools, namespaces and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.apis import names
from broker.apis.core import Event, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.kueue import Namespace
from local.demo.scheduling import schedule
from tests.cluster import objects
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.ome.bought import P5
from tests.cluster.ome.reserved import GPU
from tests.cluster.stack import Stack


def namespace(stack: Stack, name: str, **annotations: str) -> None:
    stack.client.create(Namespace.KIND, {"metadata": {"name": name, "annotations": annotations}})


def gpu_pool(
    stack: Stack,
    name: str = "gpus",
    *,
    draws: str = "",
    capacity: tuple[str, ...] = (RESERVED,),
    types: tuple[str, ...] = (P5,),
) -> None:
    """A NodePool of whole GPU instances, which keeps its nodes."""
    body = objects.node_pool(name, node_class="gpu")
    template = body["spec"]["template"]
    template["metadata"] = {"annotations": {names.DRAWS_FROM: draws} if draws else {}}
    template["spec"]["requirements"] = [
        {"key": names.CAPACITY_TYPE, "operator": "In", "values": [*capacity]},
        *([{"key": names.INSTANCE_TYPE, "operator": "In", "values": [*types]}] if types else []),
    ]
    stack.client.create(NodePool.KIND, body)


def gpu_pod(
    stack: Stack,
    name: str,
    *,
    space: str = "default",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    gpus: int = 8,
    **spec: Any,
) -> None:
    """A pod that takes GPUs, marked as unschedulable if no node has room."""
    container = {
        "name": "main",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": {GPU: str(gpus)}, "limits": {GPU: str(gpus)}},
    }
    body = objects.pod(name, labels=labels, containers=[container], **spec)
    body["metadata"] |= {"namespace": space, "annotations": dict(annotations or {})}
    stack.client.create(Pod.KIND, body)
    schedule(stack.client)


def claims_for(stack: Stack, pod: str) -> list[NodeClaim]:
    """The claims that were made for a pod, by `namespace/name`."""
    return [
        claim for claim in stack.all(NodeClaim) if pod in claim.annotations.get(names.PODS, "").split(",")
    ]


def claim_for(stack: Stack, pod: str) -> NodeClaim:
    """The claim that is made for a pod."""
    (claim,) = stack.until(lambda: claims_for(stack, pod), f"a claim for {pod}")
    return claim


def events_of(stack: Stack, pod: str) -> Mapping[str, Event]:
    """The events of a pod, by reason; the last of each."""
    space, _, name = pod.partition("/")
    items = [Event.decode(raw) for raw in stack.client.list(Event.KIND)[0]]
    return {
        event.reason: event
        for event in items
        if (event.involved_object.kind, event.involved_object.namespace, event.involved_object.name)
        == ("Pod", space, name)
    }


def until_pod_event(stack: Stack, pod: str, reason: str) -> str:
    """The message of the pod's event."""

    def published() -> Event | None:
        schedule(stack.client)
        return events_of(stack, pod).get(reason)

    event = stack.until(published, f"event {reason} on {pod}")
    assert event is not None
    return event.message


__all__ = [
    "ON_DEMAND",
    "RESERVED",
    "claim_for",
    "claims_for",
    "events_of",
    "gpu_pod",
    "gpu_pool",
    "namespace",
    "until_pod_event",
]
