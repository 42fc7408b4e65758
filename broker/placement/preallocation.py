"""Reserves the room of running pods: they become owners, and the room is kept when they end.

A pod is taken only if it fits into the reservation. Its room counts once, as the room of any owner. So a node
that is full can hold the reservation. Source: Koordinator, plugin.go (filterWithPreAllocatablePods).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from broker.lists import lists_by_key
from broker.placement.filters import Fits, prepare
from broker.placement.holds import Amounts
from broker.placement.holds_decide import HoldDecision
from broker.placement.model import PodInfo
from broker.placement.quantities import PODS
from broker.placement.snapshot import PlacementSnapshot

NO_POD: Final = "node(s) no pods to pre-allocate from"
Limits = Mapping[str, int]


class RunningPod(NamedTuple):
    """A pod with room to take. Higher `priority` first; `bound`: it names the reservation already."""

    pod: PodInfo
    priority: int = 0
    bound: bool = False


def pre_allocate(
    pod: PodInfo,
    running: Iterable[RunningPod],
    snapshot: PlacementSnapshot,
    limits: Limits,
    *,
    several: bool = False,
) -> tuple[HoldDecision, tuple[PodInfo, ...]]:
    """The node with pods that are bound already, then with the fewest pods to take, then the first by name;
    and the pods that give their room there.

    `limits`: the reserved amounts that a taken pod must not exceed. `several`: more than one may be taken.
    """
    by_node = lists_by_key((item.pod.node_name, item) for item in running)
    choices: list[tuple[bool, int, str, tuple[PodInfo, ...]]] = []
    rejected: dict[str, tuple[str, ...]] = {}
    for node in sorted(snapshot.states):
        candidates = sorted(
            by_node.get(node, ()), key=lambda item: (not item.bound, -item.priority, item.pod.uid)
        )
        taken, reasons = _on_node(pod, candidates, snapshot, node, limits, several)
        if reasons:
            rejected[node] = reasons
        else:
            choices.append((not candidates[0].bound, len(taken), node, taken))
    if not choices:
        return HoldDecision(fits=Fits((), rejected)), ()
    _, _, node, taken = min(choices, key=lambda item: item[:3])
    return HoldDecision(node=node, fits=Fits((node,), rejected)), taken


def _on_node(
    pod: PodInfo,
    running: Sequence[RunningPod],
    snapshot: PlacementSnapshot,
    node: str,
    limits: Limits,
    several: bool,
) -> tuple[tuple[PodInfo, ...], tuple[str, ...]]:
    """The pods to take, or why the node cannot hold the reservation with them."""
    present = {item.uid: item for item in snapshot.states[node].pods}
    reasons: tuple[str, ...] = (NO_POD,)
    taken: list[PodInfo] = []
    without = snapshot
    for item in running:
        known = present.get(item.pod.uid)
        group = [*taken, item.pod] if several or item.bound else [item.pod]
        if known is None or not _within([other.requests for other in group], limits):
            continue
        without = (without if len(group) > 1 else snapshot).without_pod(known, node)
        taken = group
        reasons = prepare(pod, without).reasons(without.states[node])
        if not reasons:
            return tuple(taken), ()
    return (), reasons


def _within(pods: Sequence[Amounts], limits: Limits) -> bool:
    """Whether each pod requests one of the resources, and the pods together stay within each limit."""
    if not all(any(requests.get(name, 0) for name in limits) for requests in pods):
        return False
    places = limits.get(PODS)
    if places is not None and len(pods) > places:
        return False
    return all(
        sum(requests.get(name, 0) for requests in pods) <= amount
        for name, amount in limits.items()
        if name != PODS
    )
