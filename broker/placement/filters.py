"""Runs the filters over a snapshot, in kube-scheduler's order.

Each filter is prepared once for a pod, which is where pods of other nodes are counted; its check of a node
looks at this node only. A node is rejected by the first filter that rejects it, and gets all its reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from broker.placement.affinity import NOT_NAMED, node_affinity, node_name
from broker.placement.binding import volume_binding, volume_zone
from broker.placement.interpod import inter_pod_affinity
from broker.placement.model import PodInfo
from broker.placement.ports import node_ports
from broker.placement.resources import node_resources_fit
from broker.placement.snapshot import Check, NodeState, PlacementSnapshot
from broker.placement.spread import pod_topology_spread
from broker.placement.taints import node_unschedulable, taint_toleration
from broker.placement.volumes import node_volume_limits, volume_restrictions

# Returns the check of one node; None if the filter does not concern the pod, or why no node can have the pod.
Filter = Callable[[PodInfo, PlacementSnapshot], Check | str | None]

# The order of pkg/scheduler/apis/config/v1/default_plugins.go.
FILTERS: Final[tuple[Filter, ...]] = (
    node_unschedulable,
    node_name,
    taint_toleration,
    node_affinity,
    node_ports,
    node_resources_fit,
    volume_restrictions,
    node_volume_limits,
    volume_binding,
    volume_zone,
    pod_topology_spread,
    inter_pod_affinity,
)


@dataclass(frozen=True, slots=True)
class PreparedFilters:
    """The filters of one pod over one snapshot. `named`: the only nodes that are checked."""

    checks: tuple[Check, ...] = ()
    named: frozenset[str] | None = None
    rejection: str | None = None

    def reasons(self, state: NodeState) -> tuple[str, ...]:
        """Why the node cannot have the pod; empty if it can."""
        if self.rejection is not None:
            return (self.rejection,)
        if self.named is not None and state.node.name not in self.named:
            return (NOT_NAMED,)
        for check in self.checks:
            if reasons := check(state):
                return reasons
        return ()


@dataclass(frozen=True, slots=True)
class Fits:
    """The nodes that fit a pod, and the reasons of all others. `rejection`: why no node was checked."""

    nodes: tuple[str, ...]
    reasons: Mapping[str, tuple[str, ...]]
    rejection: str | None = None

    @property
    def total(self) -> int:
        return len(self.nodes) + len(self.reasons)


def prepare(
    pod: PodInfo, snapshot: PlacementSnapshot, filters: Iterable[Filter] = FILTERS
) -> PreparedFilters:
    """Counts what the pod's filters need. The result is of this snapshot only."""
    checks: list[Check] = []
    for item in filters:
        check = item(pod, snapshot)
        if isinstance(check, str):
            return PreparedFilters(rejection=check)
        if check is not None:
            checks.append(check)
    return PreparedFilters(tuple(checks), pod.named_nodes)


def fits(
    pod: PodInfo,
    snapshot: PlacementSnapshot,
    *,
    enough: int = 0,
    start: int = 0,
    only: Collection[str] | None = None,
) -> Fits:
    """The nodes of the snapshot, or these of them `only`, sorted into those that fit the pod and the others.

    The check ends once `enough` nodes fit; 0 checks all. `start`: the place of the first node to check.
    """
    prepared = prepare(pod, snapshot)
    nodes: list[str] = []
    rejected: dict[str, tuple[str, ...]] = {}
    states = [state for name, state in snapshot.states.items() if only is None or name in only]
    first = start % len(states) if states else 0
    for state in chain(islice(states, first, None), islice(states, first)):
        reasons = prepared.reasons(state)
        if reasons:
            rejected[state.node.name] = reasons
            continue
        nodes.append(state.node.name)
        if len(nodes) == enough:
            break
    return Fits(tuple(nodes), rejected, prepared.rejection)


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
