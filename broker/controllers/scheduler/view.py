"""Nodes and pods as the caches have them, kept from one run of the scheduler to the next.

Invariant: after `update` the view equals a new one: a run reads only the changes since the run before. An
update that fails begins anew the next time, and all begins anew every few minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.apis import koordinator as koord
from broker.apis.core import Node, Pod
from broker.controllers.newest import readable
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.informer import Informer
from broker.placement.holds_ledger import HoldLink
from broker.placement.holds_reading import hold_link, holds_room
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.reading import node_info, pod_info
from broker.placement.snapshot import PlacementSnapshot

ANEW: Final = 300.0  # seconds
RETRY: Final = 15.0  # seconds


class SchedulerView:
    """Written by `update` in the scheduler's thread; other threads only mark changes."""

    def __init__(
        self, pods: Cache[Pod], nodes: Cache[Node], others: Iterable[Informer[Any]], clock: Clock
    ) -> None:
        """A change of an object of `others` may make room."""
        self._cached_pods, self._cached_nodes, self._clock = pods, nodes, clock
        self._lock = threading.Lock()
        self._pods_changed: set[str] = set()
        self._nodes_changed: set[str] = set()
        self._others_changed = False
        self._whole = False
        self._began = self._retried = float("-inf")
        # By key.
        self.pods: dict[str, Pod] = {}
        self.unbound: dict[str, Pod] = {}
        self.holding: dict[str, Pod] = {}
        self.lending: dict[str, Pod] = {}  # of `holding`, those that may be reservations themselves
        self.links: dict[str, HoldLink] = {}
        self._infos: dict[str, PodInfo] = {}
        self._gone: dict[str, Pod] = {}  # by uid, those that were in `holding`
        self.snapshot = PlacementSnapshot()
        self.freed = 0  # counts the updates after which a pod may fit that did not before
        pods.on_change(self._pod_changed)
        nodes.on_change(self._node_changed)
        for informer in others:
            informer.on_change(self._other_changed)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        with self._lock:
            self._pods_changed.update(pod.key for pod in (old, new) if pod is not None)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        with self._lock:
            self._nodes_changed.update(node.name for node in (old, new) if node is not None)

    def _other_changed(self, _old: object, _new: object) -> None:
        self._others_changed = True

    def update(self) -> None:
        with self._lock:
            pods, self._pods_changed = self._pods_changed, set()
            nodes, self._nodes_changed = self._nodes_changed, set()
            others, self._others_changed = self._others_changed, False
        now = self._clock.monotonic()
        known, self._whole = self._whole and now - self._began < ANEW, False
        changed = {name: self._node(name) for name in nodes} if known else {}
        if not known or any(info is None and name in self.snapshot.states for name, info in changed.items()):
            self._begin(now)
        else:
            self._apply(pods, [info for info in changed.values() if info is not None])
        if others or now - self._retried >= RETRY:
            self.freed, self._retried = self.freed + 1, now
        self._whole = True

    def take_gone(self) -> list[Pod]:
        """The pods that took room and do not any more, as they were; each is given once."""
        gone, self._gone = self._gone, {}
        return [*gone.values()]

    def ending(self, client: Client) -> set[str]:
        """The uids of pods that take room here, and leave it by what the API server has. Raises ApiError."""
        there = {pod.uid for pod in readable(client, Pod) if holds_room(pod) and not pod.deleting}
        return self.by_uid().keys() - there

    def nodes_unchanged(self, client: Client) -> bool:
        """Whether these are the nodes that the API server has. Raises ApiError."""
        nodes = {info.name: info for info in self._node_infos(readable(client, Node))}
        return nodes == {name: state.node for name, state in self.snapshot.states.items()}

    def _node(self, name: str) -> NodeInfo | None:
        node = self._cached_nodes.get(name)
        for info in [] if node is None else self._node_infos([node]):
            return info
        return None

    def _node_infos(self, nodes: Iterable[Node]) -> list[NodeInfo]:
        infos: list[NodeInfo] = []
        for node in nodes:
            with self._cached_nodes.guard(node):
                if not node.deleting:
                    infos.append(node_info(node))
        return infos

    def _begin(self, now: float) -> None:
        self.pods = {pod.key: pod for pod in self._cached_pods.list()}
        self._gone |= {pod.uid: pod for pod in self.holding.values()}
        self.unbound, self.holding, self.lending, self.links, self._infos = {}, {}, {}, {}, {}
        for key, pod in self.pods.items():
            self._sort(key, pod)
        nodes = self._node_infos(self._cached_nodes.list())
        self.snapshot = PlacementSnapshot.of(nodes, self._infos.values())
        self.freed, self._began = self.freed + 1, now

    def _apply(self, keys: Iterable[str], nodes: Iterable[NodeInfo]) -> None:
        differ = [info for info in nodes if self._differs(info)]
        new = {info.name for info in differ if info.name not in self.snapshot.states}
        gone: list[PodInfo] = []
        come: list[PodInfo] = []
        lends = 0  # pods that have room for others
        if new:  # their pods did not count
            come += [info for info in self._infos.values() if info.node_name in new]
        for key in keys:
            old, before = self.pods.get(key), self._infos.get(key)
            pod = self._cached_pods.find(key)
            self._forget(key)
            if pod is not None:
                self.pods[key] = pod
                same = before if old is not None and _room(old) == _room(pod) else None
                self._sort(key, pod, same)
            after = self._infos.get(key)
            if before is after:
                continue
            if before is not None and before.node_name in new:
                come.remove(before)
            elif before is not None:
                gone.append(before)
            if after is not None:
                come.append(after)
                lends += key in self.lending
        if differ or gone or lends:
            self.freed += 1
        if differ or gone or come:
            self.snapshot = self.snapshot.with_changes(nodes=differ, gone=gone, come=come)

    def _differs(self, info: NodeInfo) -> bool:
        state = self.snapshot.states.get(info.name)
        return state is None or state.node != info

    def _forget(self, key: str) -> None:
        old = self.holding.pop(key, None)
        if old is not None:
            self._gone[old.uid] = old
        self.pods.pop(key, None)
        self.unbound.pop(key, None)
        self.lending.pop(key, None)
        self.links.pop(key, None)
        self._infos.pop(key, None)

    def _sort(self, key: str, pod: Pod, same: PodInfo | None = None) -> None:
        """`same`: the pod as it was read before, if that still holds."""
        with self._cached_pods.guard(pod):
            if not pod.spec.node_name:
                self.unbound[key] = pod
            elif holds_room(pod):
                info, link = same or pod_info(pod), hold_link(pod)
                self.holding[key], self._infos[key] = pod, info
                self._gone.pop(pod.uid, None)
                if koord.OPERATING_MODE in pod.labels:
                    self.lending[key] = pod
                if link:
                    self.links[key] = link

    def by_uid(self) -> Mapping[str, Pod]:
        """The pods that take room, by uid."""
        return {pod.uid: pod for pod in self.holding.values()}


def _room(pod: Pod) -> tuple[object, ...]:
    """The parts of a pod that filters read."""
    return pod.uid, pod.sizes, pod.labels, pod.deleting
