"""NodeResourcesFit: room for the pod's requests beside those of the node's pods."""

from __future__ import annotations

from typing import Final

from broker.placement.model import PodInfo
from broker.placement.quantities import PODS
from broker.placement.snapshot import Check, NodeState, PlacementSnapshot

TOO_MANY_PODS: Final = "Too many pods"


def node_resources_fit(pod: PodInfo, snapshot: PlacementSnapshot) -> Check:
    """Rejects nodes that lack a requested resource, with a reason for each. Zero requests always fit."""
    requests = tuple((name, amount) for name, amount in pod.requests.items() if amount > 0)

    def check(state: NodeState) -> tuple[str, ...]:
        allocatable, requested = state.node.allocatable, state.requested
        lacks: list[str] = []
        if state.places >= allocatable.get(PODS, 0):
            lacks.append(TOO_MANY_PODS)
        for name, amount in requests:
            if amount > allocatable.get(name, 0) - requested.get(name, 0):
                lacks.append(f"Insufficient {name}")
        return tuple(lacks)

    return check
