"""Preferences of pods as Karpenter counts them: rules, dropped one at a time while a pod gets no machine.

Source: Karpenter 1.15, pkg/controllers/provisioning/scheduling/preferences.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Final

from broker.placement.affinity import node_affinity
from broker.placement.filters import Filter, prepare
from broker.placement.interpod import inter_pod_affinity
from broker.placement.model import NodeTaint, PodInfo, PodPreferences
from broker.placement.snapshot import PlacementSnapshot
from broker.placement.spread import pod_topology_spread
from broker.placement.taints import SOFT, tolerates_all

# Each drop is a plan of its own: a pod with more preferences loses the rest at once.
MOST_DROPS: Final = 8
_FILTERS: Final[tuple[Filter, ...]] = (node_affinity, pod_topology_spread, inter_pod_affinity)


def drops_of(pod: PodInfo, taints: Iterable[NodeTaint] = ()) -> int:
    """How many times a preference can be dropped until only rules are left.

    `taints`: those of the NodePools. To stay off one of effect PreferNoSchedule is the last preference.
    """
    return _count(pod) + _avoids(pod, taints)


def preferring(pod: PodInfo, dropped: int, taints: Iterable[NodeTaint] = ()) -> PodInfo:
    """The pod with its preferences as rules, without the first `dropped`. The rules of others stay."""
    count, avoids = _count(pod), _avoids(pod, taints)
    if dropped >= count + avoids:
        return pod
    kept = pod.preferences if pod.preferences is not None and dropped < count else PodPreferences()
    left = _without(kept, dropped)
    return replace(
        pod,
        near=left.near,
        apart=left.apart,
        # As in Karpenter, one term at a time.
        node_selector=(*pod.node_selector, *chain.from_iterable(left.nodes[:1])),
        spread=(*pod.spread, *left.spread),
        avoids_soft_taints=avoids,
    )


def as_placed(pods: Iterable[PodInfo], node: str, placement: PlacementSnapshot) -> list[PodInfo]:
    """The pods that are to leave the node, with the preferences as rules that hold there."""
    state = placement.states.get(node)
    running = {(pod.namespace, pod.name): pod for pod in state.pods} if state is not None else {}

    def variant(pod: PodInfo) -> PodInfo:
        own = running.get((pod.namespace, pod.name))
        if pod.preferences is None or own is None:
            return pod
        alone = placement.without_pod(own, node)
        variants = (preferring(pod, dropped) for dropped in range(drops_of(pod)))
        holding = (
            item for item in variants if not prepare(item, alone, _FILTERS).reasons(alone.states[node])
        )
        return next(holding, pod)

    return [*map(variant, pods)]


def ignoring(pod: PodInfo) -> PodInfo:
    return pod if pod.preferences is None else replace(pod, preferences=None)


def _count(pod: PodInfo) -> int:
    return min(sum(map(len, pod.preferences or ())), MOST_DROPS)


def _avoids(pod: PodInfo, taints: Iterable[NodeTaint]) -> bool:
    return not tolerates_all(pod.tolerations, taints, (SOFT,))


def _without(preferences: PodPreferences, dropped: int) -> PodPreferences:
    near, apart, nodes, spread = preferences
    before = (0, len(near), len(near) + len(apart), len(near) + len(apart) + len(nodes))
    from_ = [max(0, dropped - count) for count in before]
    return PodPreferences(near[from_[0] :], apart[from_[1] :], nodes[from_[2] :], spread[from_[3] :])
