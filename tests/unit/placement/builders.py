"""Nodes and pods for tables of filters, from Kubernetes' own fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.apis import core
from broker.placement.filters import Fits, fits, prepare
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.reading import node_info, pod_info
from broker.placement.snapshot import PlacementSnapshot
from broker.placement.storage import Storage

Json = dict[str, Any]
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
ROOM = {"cpu": "4", "memory": "8Gi", "pods": "110"}


def node(
    name: str = "n",
    *,
    labels: Mapping[str, str] | None = None,
    room: Mapping[str, str] | None = None,
    **spec: Any,
) -> NodeInfo:
    return node_info(
        core.Node.decode(
            {
                "metadata": {"name": name, "labels": {HOST: name, **(labels or {})}},
                "spec": spec,
                "status": {"allocatable": {**ROOM, **(room or {})}},
            }
        )
    )


def pod(
    name: str = "p",
    *,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    on: str = "",
    terminating: bool = False,
    requests: Mapping[str, str] | None = None,
    **spec: Any,
) -> PodInfo:
    """A pod, bound with `on`."""
    meta: Json = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": {**(labels or {})}}
    if terminating:
        meta["deletionTimestamp"] = "2026-11-01T12:00:00Z"
    containers = [{"name": "c", "resources": {"requests": {**(requests or {})}}}]
    body = {"containers": containers, "nodeName": on, **spec}
    return pod_info(core.Pod.decode({"metadata": meta, "spec": body}))


def world(
    nodes: Iterable[NodeInfo],
    pods: Iterable[PodInfo] = (),
    *,
    namespaces: Mapping[str, Mapping[str, str]] | None = None,
    storage: Storage | None = None,
) -> PlacementSnapshot:
    return PlacementSnapshot.of(nodes, pods, namespaces=namespaces, storage=storage)


def filters(candidate: PodInfo, name: str, snapshot: PlacementSnapshot) -> tuple[str, ...]:
    """Why one node cannot have the pod; empty if it can."""
    return prepare(candidate, snapshot).reasons(snapshot.states[name])


def texts(outcome: Fits, name: str = "n") -> list[str]:
    """The messages of a node, or of the pod as a whole."""
    return [*outcome.reasons.get(name, ())]


def on_one(candidate: PodInfo, target: NodeInfo, *pods: PodInfo) -> list[str]:
    """The messages of the only node; empty if the pod fits."""
    return texts(fits(candidate, world([target], pods)), target.name)


def required(kind: str, *terms: Json) -> Json:
    """An `affinity` with required terms between pods."""
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def node_affinity(*terms: Json) -> Json:
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    }
