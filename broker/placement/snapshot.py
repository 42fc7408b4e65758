"""Nodes, claims in flight and pods at one moment.

Invariant: a snapshot never changes; `with_pod` and `without_pod` return another that shares everything else.
Pods are counted by namespace and labels, so that a selector is tested once for equal pods. Pods on nodes
outside the snapshot do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from broker.placement.model import FilterReason, HostPort, LabelGroupKey, NodeInfo, PodInfo, PodTerm
from broker.placement.selectors import Labels
from broker.placement.storage import Storage

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node with its pods, and the sums over them."""

    node: NodeInfo
    pods: tuple[PodInfo, ...] = ()
    requested: Mapping[str, int] = field(default_factory=dict)
    ports: frozenset[HostPort] = frozenset()

    def with_pod(self, pod: PodInfo) -> NodeState:
        requested = {**self.requested}
        for name, amount in pod.requests.items():
            requested[name] = requested.get(name, 0) + amount
        ports = self.ports.union(pod.ports) if pod.ports else self.ports
        return NodeState(self.node, (*self.pods, pod), requested, ports)

    def without_pod(self, pod: PodInfo) -> NodeState:
        """Raises ValueError if the node does not have the pod."""
        index = self.pods.index(pod)
        pods = self.pods[:index] + self.pods[index + 1 :]
        requested = {**self.requested}
        for name, amount in pod.requests.items():
            requested[name] -= amount
        ports = frozenset(port for other in pods for port in other.ports) if pod.ports else self.ports
        return NodeState(self.node, pods, requested, ports)


# Why a node cannot have a pod; empty if it can.
Check = Callable[[NodeState], tuple[FilterReason, ...]]

# How many pods of a sort each node has, by node.
Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PlacementSnapshot:
    """What filters read. `groups`, `repelling` and `claims` index the pods of `states`."""

    states: Mapping[str, NodeState] = field(default_factory=dict)
    groups: Mapping[LabelGroupKey, Counts] = field(default_factory=dict)
    # Pods by their required anti-affinity terms.
    repelling: Mapping[tuple[PodTerm, ...], Counts] = field(default_factory=dict)
    # Pods by the persistent volume claim that they use, as (namespace, name).
    claims: Mapping[tuple[str, str], Counts] = field(default_factory=dict)
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    storage: Storage = field(default_factory=Storage)

    @classmethod
    def of(
        cls,
        nodes: Iterable[NodeInfo],
        pods: Iterable[PodInfo] = (),
        *,
        namespaces: Mapping[str, Labels] | None = None,
        storage: Storage | None = None,
    ) -> PlacementSnapshot:
        """From nodes and bound pods. Pods without a node of the snapshot are left out."""
        states = {node.name: NodeState(node) for node in nodes}
        groups: dict[LabelGroupKey, dict[str, int]] = {}
        repelling: dict[tuple[PodTerm, ...], dict[str, int]] = {}
        claims: dict[tuple[str, str], dict[str, int]] = {}
        for pod in pods:
            name = pod.node_name
            state = states.get(name)
            if state is None:
                continue
            states[name] = state.with_pod(pod)
            _count(groups, pod.group, name)
            if pod.anti_affinity:
                _count(repelling, pod.anti_affinity, name)
            for claim in _claims(pod):
                _count(claims, claim, name)
        return cls(states, groups, repelling, claims, namespaces or {}, storage or Storage())

    def with_pod(self, pod: PodInfo, node: str) -> PlacementSnapshot:
        """With an assumed pod. Raises KeyError for an unknown node."""
        return self._changed(pod, node, self.states[node].with_pod(pod), 1)

    def without_pod(self, pod: PodInfo, node: str) -> PlacementSnapshot:
        """Without a pod that the node has. Raises KeyError or ValueError if it has not."""
        return self._changed(pod, node, self.states[node].without_pod(pod), -1)

    def with_node(self, node: NodeInfo) -> PlacementSnapshot:
        """With another node, such as a claim that was planned. Raises ValueError for a known name."""
        if node.name in self.states:
            raise ValueError(f"node {node.name!r} is in the snapshot")
        return replace(self, states={**self.states, node.name: NodeState(node)})

    def _changed(self, pod: PodInfo, node: str, state: NodeState, by: int) -> PlacementSnapshot:
        repelling, claims = self.repelling, self.claims
        if pod.anti_affinity:
            repelling = _shifted(repelling, pod.anti_affinity, node, by)
        for claim in _claims(pod):
            claims = _shifted(claims, claim, node, by)
        return PlacementSnapshot(
            {**self.states, node: state},
            _shifted(self.groups, pod.group, node, by),
            repelling,
            claims,
            self.namespaces,
            self.storage,
        )


def _claims(pod: PodInfo) -> Iterable[tuple[str, str]]:
    """Claims made for the pod are its own, so that no other pod can use them."""
    return ((pod.namespace, volume.claim) for volume in pod.volumes if not volume.ephemeral)


def _count(index: dict[K, dict[str, int]], key: K, node: str) -> None:
    counts = index.setdefault(key, {})
    counts[node] = counts.get(node, 0) + 1


def _shifted(index: Mapping[K, Counts], key: K, node: str, by: int) -> dict[K, Counts]:
    """The index with one count changed. Counts and entries of zero are removed."""
    shifted = {**index}
    counts = {**index.get(key, {})}
    counts[node] = counts.get(node, 0) + by
    if not counts[node]:
        del counts[node]
    if counts:
        shifted[key] = counts
    else:
        del shifted[key]
    return shifted
