"""NodeResourcesFit: room for the pod's requests beside those of the node's pods."""

from __future__ import annotations

from typing import Final

from broker.placement.model import FilterReason, PodInfo
from broker.placement.quantities import PODS
from broker.placement.snapshot import Check, NodeState, PlacementSnapshot

PLUGIN: Final = "NodeResourcesFit"
TOO_MANY_PODS: Final = FilterReason(PLUGIN, "Too many pods", True)


def node_resources_fit(pod: PodInfo, snapshot: PlacementSnapshot) -> Check:
    """Rejects nodes that lack a requested resource, with a reason for each. Zero requests always fit.

    A lack is resolvable if the empty node would have enough.
    """
    requests = tuple((name, amount) for name, amount in pod.requests.items() if amount > 0)

    def check(state: NodeState) -> tuple[FilterReason, ...]:
        allocatable, requested = state.node.allocatable, state.requested
        lacks: list[FilterReason] = []
        if state.places >= allocatable.get(PODS, 0):
            lacks.append(TOO_MANY_PODS)
        for name, amount in requests:
            capacity = allocatable.get(name, 0)
            if amount > capacity - requested.get(name, 0):
                lacks.append(FilterReason(PLUGIN, f"Insufficient {name}", amount <= capacity))
        return tuple(lacks)

    return check
