"""InterPodAffinity: required affinity and anti-affinity, of the pod and of pods on nodes.

Pods are counted by topology pair, a label and its value: a term holds for all nodes with the pair.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from broker.placement.model import FilterReason, PodInfo, PodTerm
from broker.placement.selectors import Labels, matches
from broker.placement.snapshot import Check, NodeState, PlacementSnapshot

PLUGIN: Final = "InterPodAffinity"
NO_AFFINITY: Final = FilterReason(PLUGIN, "node(s) didn't match pod affinity rules")
ANTI_AFFINITY: Final = FilterReason(PLUGIN, "node(s) didn't match pod anti-affinity rules", True)
EXISTING: Final = FilterReason(PLUGIN, "node(s) didn't satisfy existing pods anti-affinity rules", True)

Pair = tuple[str, str]


def inter_pod_affinity(pod: PodInfo, snapshot: PlacementSnapshot) -> Check | None:
    """Rejects nodes outside the pod's affinity, then those in its anti-affinity, then those of other pods."""
    near = tuple(_resolved(term, snapshot) for term in pod.affinity)
    apart = tuple(_resolved(term, snapshot) for term in pod.anti_affinity)
    repelled = _repelled(pod, snapshot)
    if not near and not apart and not repelled:
        return None
    near_pairs = _pairs_of_all(near, snapshot)
    apart_pairs = {pair for term in apart for pair in _pairs_of_all((term,), snapshot)}
    first = not near_pairs and _all_match(near, pod.namespace, pod.labels)

    def check(state: NodeState) -> tuple[FilterReason, ...]:
        labels = state.node.labels
        if near and not _near(near, labels, near_pairs, first):
            return (NO_AFFINITY,)
        if apart_pairs and any(_pair(term, labels) in apart_pairs for term in apart):
            return (ANTI_AFFINITY,)
        if repelled and any(item in repelled for item in labels.items()):
            return (EXISTING,)
        return ()

    return check


def _near(terms: Iterable[PodTerm], labels: Labels, pairs: Collection[Pair], first: bool) -> bool:
    """Whether the node has every topology label, and a matching pod is in each domain.

    The first pod of a series has affinity to itself only: any node with the labels will do.
    """
    if any(term.topology_key not in labels for term in terms):
        return False
    return first or all(_pair(term, labels) in pairs for term in terms)


def _pair(term: PodTerm, labels: Labels) -> Pair | None:
    value = labels.get(term.topology_key)
    return None if value is None else (term.topology_key, value)


def _pairs_of_all(terms: tuple[PodTerm, ...], snapshot: PlacementSnapshot) -> set[Pair]:
    """The pairs of nodes with pods that match all terms."""
    if not terms:
        return set()
    nodes = {
        node
        for group, counts in snapshot.groups.items()
        if _all_match(terms, group.namespace, dict(group.labels))
        for node in counts
    }
    return set(_pairs(terms, nodes, snapshot))


def _repelled(pod: PodInfo, snapshot: PlacementSnapshot) -> set[Pair]:
    """The pairs that anti-affinity of pods on nodes closes to the pod."""
    namespace = snapshot.namespaces.get(pod.namespace, {})
    pairs: set[Pair] = set()
    for terms, counts in snapshot.repelling.items():
        matching = [term for term in terms if _matches(term, pod.namespace, pod.labels, namespace)]
        pairs.update(_pairs(matching, counts, snapshot))
    return pairs


def _pairs(terms: Collection[PodTerm], nodes: Iterable[str], snapshot: PlacementSnapshot) -> Iterator[Pair]:
    if terms:
        for node in nodes:
            labels = snapshot.states[node].node.labels
            yield from (pair for term in terms if (pair := _pair(term, labels)))


def _resolved(term: PodTerm, snapshot: PlacementSnapshot) -> PodTerm:
    """The term with its namespace selector turned into names, unless it selects all namespaces."""
    if not term.namespace_selector:
        return term
    selected = (
        name for name, labels in snapshot.namespaces.items() if matches(term.namespace_selector, labels)
    )
    return term._replace(namespaces=term.namespaces.union(selected), namespace_selector=None)


def _all_match(terms: Collection[PodTerm], namespace: str, labels: Labels) -> bool:
    return bool(terms) and all(_matches(term, namespace, labels) for term in terms)


def _matches(term: PodTerm, namespace: str, labels: Labels, namespace_labels: Labels | None = None) -> bool:
    if namespace not in term.namespaces and not matches(term.namespace_selector, namespace_labels or {}):
        return False
    return matches(term.selector, labels)
