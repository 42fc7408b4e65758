"""PodTopologySpread: required constraints.

A constraint holds on a node if the pods of its domain, with the new pod, are at most `max_skew` more than
those of the domain with the fewest. With fewer than `min_domains` domains, the fewest counts as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from broker.placement.affinity import node_matches
from broker.placement.model import NodeInfo, PodInfo, SpreadConstraint
from broker.placement.selectors import matches
from broker.placement.snapshot import Check, NodeState, PlacementSnapshot
from broker.placement.taints import tolerates_all

SKEWED: Final = "node(s) didn't match pod topology spread constraints"
NO_LABEL: Final = "node(s) didn't match pod topology spread constraints (missing required label)"


@dataclass(frozen=True, slots=True)
class DomainCounts:
    """A constraint with the matching pods of each domain, and the most that a domain may have."""

    key: str
    counts: dict[str, int]
    most: int


def pod_topology_spread(pod: PodInfo, snapshot: PlacementSnapshot) -> Check | None:
    """Rejects nodes where the pod would skew a constraint, and nodes without a topology label."""
    if not pod.spread:
        return None
    domains = tuple(_counted(constraint, pod, snapshot) for constraint in pod.spread)

    def check(state: NodeState) -> tuple[str, ...]:
        labels = state.node.labels
        for domain in domains:
            value = labels.get(domain.key)
            if value is None:
                return (NO_LABEL,)
            if domain.counts.get(value, 0) > domain.most:
                return (SKEWED,)
        return ()

    return check


def _counted(constraint: SpreadConstraint, pod: PodInfo, snapshot: PlacementSnapshot) -> DomainCounts:
    counts = domain_counts(constraint, pod, snapshot)
    fewest = min(counts.values(), default=0) if len(counts) >= constraint.min_domains else 0
    itself = matches(constraint.selector, pod.labels)
    return DomainCounts(constraint.topology_key, counts, constraint.max_skew + fewest - itself)


def domain_counts(constraint: SpreadConstraint, pod: PodInfo, snapshot: PlacementSnapshot) -> dict[str, int]:
    """The matching pods of the pod's namespace that do not terminate, in each domain of its nodes.

    An empty selector counts no pod, but matches the new one.
    """
    keys = {other.topology_key for other in pod.spread}
    domain_of = {
        name: state.node.labels[constraint.topology_key]
        for name, state in snapshot.states.items()
        if keys <= state.node.labels.keys() and _included(constraint, pod, state.node)
    }
    counts = dict.fromkeys((*constraint.offered, *domain_of.values()), 0)
    selector = constraint.selector
    if selector:
        for group, nodes in snapshot.groups.items():
            if group.terminating or group.namespace != pod.namespace:
                continue
            if not matches(selector, dict(group.labels)):
                continue
            for node, count in nodes.items():
                if node in domain_of:
                    counts[domain_of[node]] += count
    return counts


def counting(pod: PodInfo, domains: Mapping[str, frozenset[str]]) -> PodInfo:
    """The pod under rules that count these domains (by label), though no node may be in them.

    Nothing but the nodes of a domain tells kube-scheduler that it exists. So a plan counts the domains that
    machines offer, and those of nodes that are to end.
    """
    spread, preferences = _offered(pod.spread, domains), pod.preferences
    if preferences is not None:
        preferences = preferences._replace(spread=_offered(preferences.spread, domains))
    same = spread == pod.spread and preferences == pod.preferences
    return pod if same else replace(pod, spread=spread, preferences=preferences)


def _offered(
    rules: tuple[SpreadConstraint, ...], domains: Mapping[str, frozenset[str]]
) -> tuple[SpreadConstraint, ...]:
    return tuple(rule._replace(offered=domains.get(rule.topology_key, frozenset())) for rule in rules)


def _included(constraint: SpreadConstraint, pod: PodInfo, node: NodeInfo) -> bool:
    """Whether the node's domain counts at all, by the constraint's policies."""
    if constraint.honor_affinity and not node_matches(pod, node):
        return False
    return not constraint.honor_taints or tolerates_all(pod.tolerations, node.taints)
