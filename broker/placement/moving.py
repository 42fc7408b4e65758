"""Where pods go that leave their nodes: the first node that kube-scheduler's filters admit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.placement.filters import prepare
from broker.placement.model import PodInfo
from broker.placement.snapshot import PlacementSnapshot


def place_on_others(
    pods: Sequence[PodInfo], placement: PlacementSnapshot, usable: Iterable[str]
) -> tuple[list[PodInfo], PlacementSnapshot]:
    """The pods that fit no usable node, and the snapshot with the others placed, each on the first."""
    unplaced: list[PodInfo] = []
    known = [name for name in usable if name in placement.states]
    for pod in pods:
        prepared = prepare(pod, placement)
        fit = next((name for name in known if not prepared.reasons(placement.states[name])), None)
        if fit is None:
            unplaced.append(pod)
        else:
            placement = placement.with_pod(pod, fit)
    return unplaced, placement
