"""Zones in which no new node may have a pod, because of required rules about the pods that run already.

Only rules on zones and host names count: other labels of a node to come follow from its machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from broker.apis.names import HOSTNAME, ZONE
from broker.placement.interpod import ANTI_AFFINITY, EXISTING, NO_AFFINITY, inter_pod_affinity
from broker.placement.model import NodeInfo, PodInfo, PodTerm
from broker.placement.snapshot import NodeState, PlacementSnapshot
from broker.placement.spread import SKEWED, pod_topology_spread

_KEYS: Final = frozenset({ZONE, HOSTNAME})
_RULES: Final = {
    NO_AFFINITY: "its pod affinity",
    ANTI_AFFINITY: "its pod anti-affinity",
    EXISTING: "the pod anti-affinity of pods there",
    SKEWED: "its topology spread constraint",
}


def shut_zones(pod: PodInfo, snapshot: PlacementSnapshot, zones: Collection[str]) -> dict[str, str]:
    """The zones of these that are shut to the pod, with the reason."""
    ruled = replace(
        pod,
        affinity=_on_known(pod.affinity),
        anti_affinity=_on_known(pod.anti_affinity),
        spread=tuple(rule for rule in pod.spread if rule.topology_key in _KEYS),
    )
    checks = [inter_pod_affinity(ruled, snapshot), pod_topology_spread(ruled, snapshot)]
    shut: dict[str, str] = {}
    for zone in sorted(zones):
        node = NodeState(NodeInfo(name="", labels={ZONE: zone, HOSTNAME: ""}))
        reasons = [reason for check in checks if check is not None for reason in check(node)]
        if reasons:
            shut[zone] = f"{_RULES.get(reasons[0], reasons[0])} admits no new node in {zone}"
    return shut


def _on_known(terms: Iterable[PodTerm]) -> tuple[PodTerm, ...]:
    return tuple(term for term in terms if term.topology_key in _KEYS)
