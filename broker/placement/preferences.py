"""Preferences of pods as Karpenter counts them: rules, dropped one at a time while a pod gets no machine.

Source: Karpenter 1.15, pkg/controllers/provisioning/scheduling/preferences.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Final

from broker.placement.model import NodeTaint, PodInfo, PodPreferences
from broker.placement.taints import SOFT, tolerates_all

RESPECT: Final = "Respect"  # a policy, as in Karpenter
# Each drop is a plan of its own: a pod with more preferences loses the rest at once.
MOST_DROPS: Final = 8


def drops_of(pod: PodInfo, taints: Iterable[NodeTaint] = ()) -> int:
    """How many times a preference can be dropped until only rules are left.

    `taints`: those of the NodePools. To stay off one of effect PreferNoSchedule is the last preference.
    """
    return min(sum(map(len, pod.preferences or ())), MOST_DROPS) + _avoids(pod, taints)


def preferring(pod: PodInfo, dropped: int, taints: Iterable[NodeTaint] = ()) -> PodInfo:
    """The pod with its preferences as rules, without the first `dropped`. The rules of others stay."""
    drops = drops_of(pod, taints)
    if dropped >= drops:
        return pod
    avoids = _avoids(pod, taints)
    kept = pod.preferences if pod.preferences is not None and dropped < drops - avoids else PodPreferences()
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


def _avoids(pod: PodInfo, taints: Iterable[NodeTaint]) -> bool:
    return not tolerates_all(pod.tolerations, taints, (SOFT,))


def _without(preferences: PodPreferences, dropped: int) -> PodPreferences:
    near, apart, nodes, spread = preferences
    before = (0, len(near), len(near) + len(apart), len(near) + len(apart) + len(nodes))
    from_ = [max(0, dropped - count) for count in before]
    return PodPreferences(near[from_[0] :], apart[from_[1] :], nodes[from_[2] :], spread[from_[3] :])
