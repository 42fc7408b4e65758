"""The room that DaemonSets take on a node to come, beside the pods that it is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from broker.placement.affinity import node_affinity
from broker.placement.filters import prepare
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.quantities import PODS
from broker.placement.snapshot import NodeState, PlacementSnapshot
from broker.placement.taints import taint_toleration


class DaemonOverhead:
    """Sums the requests of one pod of each DaemonSet that runs on a node.

    Only taints and node affinity exclude a pod: the DaemonSet's controller binds it.
    """

    def __init__(self, daemons: Iterable[PodInfo]) -> None:
        empty, filters = PlacementSnapshot(), (taint_toleration, node_affinity)
        self._prepared = [(daemon, prepare(daemon, empty, filters)) for daemon in daemons]

    def on(self, node: NodeInfo) -> Counter[str]:
        """The requests of the DaemonSets with a pod on the node, with `pods`."""
        total: Counter[str] = Counter()
        for daemon, prepared in self._prepared:
            if not prepared.reasons(NodeState(node)):
                total.update({**daemon.requests, PODS: 1})
        return total
