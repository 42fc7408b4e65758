"""Nodes, claims in flight and pods at one moment.

Invariant: a snapshot never changes; methods such as `with_pod` return another that shares everything else.
Pods are counted by namespace and labels, so that a selector is tested once for equal pods. Pods on nodes
outside the snapshot do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from broker.apis.units import add
from broker.placement.model import HostPort, LabelGroupKey, NodeInfo, PodInfo, PodTerm
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
    # Pods as the node counts them.
    places: int = 0

    def with_pod(self, pod: PodInfo) -> NodeState:
        requested = {**self.requested}
        add(requested, pod.requests)
        ports = self.ports.union(pod.ports) if pod.ports else self.ports
        return NodeState(self.node, (*self.pods, pod), requested, ports, self.places + pod.places)

    def without_pod(self, pod: PodInfo) -> NodeState:
        """Raises ValueError if the node does not have the pod."""
        index = self.pods.index(pod)
        pods = self.pods[:index] + self.pods[index + 1 :]
        requested = {**self.requested}
        for name, amount in pod.requests.items():
            requested[name] -= amount
        ports = frozenset(port for other in pods for port in other.ports) if pod.ports else self.ports
        return NodeState(self.node, pods, requested, ports, self.places - pod.places)


# Why a node cannot have a pod, in kube-scheduler's words; empty if it can.
Check = Callable[[NodeState], tuple[str, ...]]

# How many pods of a sort each node has, by node.
Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PlacementSnapshot:
    """The input of filters. `groups`, `repelling` and `claims` index the pods of `states`."""

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
        """Builds it from nodes and bound pods. Pods without a node of the snapshot are left out."""
        states = {node.name: NodeState(node) for node in nodes}
        empty = cls(states, namespaces=namespaces or {}, storage=storage or Storage())
        return empty.with_changes(come=pods)

    def with_changes(
        self,
        *,
        nodes: Iterable[NodeInfo] = (),
        gone: Iterable[PodInfo] = (),
        come: Iterable[PodInfo] = (),
    ) -> PlacementSnapshot:
        """With these nodes as they are now, without the pods `gone`, then with those that `come`.

        Each pod is on the node that it names, and does not count without it. The indexes are copied once,
        however many pods change. Raises ValueError for a pod that its node does not have.
        """
        states = {**self.states}
        for node in nodes:
            state = states.get(node.name)
            states[node.name] = NodeState(node) if state is None else replace(state, node=node)
        changes = ((pod, pod.node_name, by) for pods, by in ((gone, -1), (come, 1)) for pod in pods)
        return self._shifted(states, (change for change in changes if change[1] in states))

    def with_pod(self, pod: PodInfo, node: str) -> PlacementSnapshot:
        """Adds an assumed pod. Raises KeyError for an unknown node."""
        return self._shifted({**self.states}, ((pod, node, 1),))

    def without_pod(self, pod: PodInfo, node: str) -> PlacementSnapshot:
        """Without a pod that the node has. Raises KeyError or ValueError if it has not."""
        return self._shifted({**self.states}, ((pod, node, -1),))

    def with_node(self, node: NodeInfo) -> PlacementSnapshot:
        """Adds another node, such as a claim that was planned. Raises ValueError for a known name."""
        if node.name in self.states:
            raise ValueError(f"node {node.name!r} is in the snapshot")
        return replace(self, states={**self.states, node.name: NodeState(node)})

    def without_nodes(self, names: Collection[str]) -> PlacementSnapshot:
        """Without these nodes and their pods, assumed ones too."""
        return replace(
            self,
            states={name: state for name, state in self.states.items() if name not in names},
            groups=_without(self.groups, names),
            repelling=_without(self.repelling, names),
            claims=_without(self.claims, names),
        )

    def _shifted(
        self, states: dict[str, NodeState], changes: Iterable[tuple[PodInfo, str, int]]
    ) -> PlacementSnapshot:
        """With these states, and pods that come (1) to their nodes or go (-1)."""
        groups, repelling, claims = _Shifts(self.groups), _Shifts(self.repelling), _Shifts(self.claims)
        for pod, node, by in changes:
            states[node] = states[node].with_pod(pod) if by > 0 else states[node].without_pod(pod)
            groups.shift(pod.group, node, by)
            if pod.anti_affinity:
                repelling.shift(pod.anti_affinity, node, by)
            for claim in _claims(pod):
                claims.shift(claim, node, by)
        return PlacementSnapshot(
            states, groups.shifted(), repelling.shifted(), claims.shifted(), self.namespaces, self.storage
        )


def _claims(pod: PodInfo) -> Iterable[tuple[str, str]]:
    """Claims made for the pod are its own, so that no other pod can use them."""
    return ((pod.namespace, volume.claim) for volume in pod.volumes if not volume.ephemeral)


class _Shifts(Generic[K]):
    """An index with counts that change, while those of the original stay."""

    def __init__(self, index: Mapping[K, Counts]) -> None:
        self._index = index
        self._copied: dict[K, dict[str, int]] = {}

    def shift(self, key: K, node: str, by: int) -> None:
        counts = self._copied.get(key)
        if counts is None:
            counts = self._copied[key] = {**self._index.get(key, {})}
        counts[node] = counts.get(node, 0) + by
        if not counts[node]:
            del counts[node]

    def shifted(self) -> Mapping[K, Counts]:
        """The index now; it is copied only if a count changed. Counts and entries of zero are removed."""
        if not self._copied:
            return self._index
        index = {**self._index, **self._copied}
        for key, counts in self._copied.items():
            if not counts:
                del index[key]
        return index


def _without(index: Mapping[K, Counts], nodes: Collection[str]) -> dict[K, Counts]:
    """The index without the counts of these nodes. Entries that are empty then are removed."""
    kept = {
        key: {node: count for node, count in counts.items() if node not in nodes}
        for key, counts in index.items()
    }
    return {key: counts for key, counts in kept.items() if counts}
