"""InterPodAffinity: required affinity and anti-affinity, of the pod and of pods on nodes.

Pods are counted by topology pair, a label and its value: a term holds for all nodes with the pair.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from broker.placement.model import PodInfo, PodTerm
from broker.placement.selectors import Labels, matches
from broker.placement.snapshot import Check, NodeState, PlacementSnapshot

NO_AFFINITY: Final = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY: Final = "node(s) didn't match pod anti-affinity rules"
EXISTING: Final = "node(s) didn't satisfy existing pods anti-affinity rules"

# Labels with the values of the nodes that a term holds for.
Pairs = Mapping[str, set[str]]


def inter_pod_affinity(pod: PodInfo, snapshot: PlacementSnapshot) -> Check | None:
    """Rejects nodes outside the pod's affinity, then those in its anti-affinity, then those of other pods."""
    near = tuple(_resolved(term, snapshot) for term in pod.affinity)
    preferred = [(_resolved(term, snapshot),) for term in pod.near]
    apart = tuple(_resolved(term, snapshot) for term in pod.terms_apart)
    repelled = _repelled(pod, snapshot)
    if not near and not preferred and not apart and not repelled:
        return None
    # Required terms are met by one pod; each preferred one by a pod of its own.
    series = [_Series.of(terms, pod, snapshot) for terms in (near, *preferred) if terms]
    apart_pairs: dict[str, set[str]] = {}
    for term in apart:
        _join(apart_pairs, _pairs_of_all((term,), snapshot))

    def check(state: NodeState) -> tuple[str, ...]:
        labels = state.node.labels
        if not all(item.near(labels) for item in series):
            return (NO_AFFINITY,)
        if _inside(labels, apart_pairs):
            return (ANTI_AFFINITY,)
        if _inside(labels, repelled):
            return (EXISTING,)
        return ()

    return check


class _Series(NamedTuple):
    """Terms of affinity with the pairs of the pods that match all of them.

    The `first` pod of a series has affinity to itself only: any node with the labels will do.
    """

    keys: frozenset[str]
    pairs: Pairs
    first: bool

    @classmethod
    def of(cls, terms: tuple[PodTerm, ...], pod: PodInfo, snapshot: PlacementSnapshot) -> _Series:
        pairs = _pairs_of_all(terms, snapshot)
        first = not pairs and _all_match(terms, pod.namespace, pod.labels)
        return cls(frozenset(term.topology_key for term in terms), pairs, first)

    def near(self, labels: Labels) -> bool:
        """Whether the node has every topology label, and a matching pod is in each domain."""
        if not self.keys <= labels.keys():
            return False
        return self.first or all(labels[key] in self.pairs.get(key, ()) for key in self.keys)


def _inside(labels: Labels, pairs: Pairs) -> bool:
    """Whether the node is in one of the pairs."""
    return any(labels.get(key) in values for key, values in pairs.items())


def _pairs_of_all(terms: tuple[PodTerm, ...], snapshot: PlacementSnapshot) -> dict[str, set[str]]:
    """The pairs of nodes with pods that match all terms."""
    if not terms:
        return {}
    nodes = {
        node
        for group, counts in snapshot.groups.items()
        if _all_match(terms, group.namespace, dict(group.labels))
        for node in counts
    }
    return _pairs(terms, nodes, snapshot)


def _repelled(pod: PodInfo, snapshot: PlacementSnapshot) -> dict[str, set[str]]:
    """The pairs that anti-affinity of pods on nodes closes to the pod."""
    namespace = snapshot.namespaces.get(pod.namespace, {})
    pairs: dict[str, set[str]] = {}
    for terms, counts in snapshot.repelling.items():
        matching = [term for term in terms if term_matches(term, pod.namespace, pod.labels, namespace)]
        if matching:
            _join(pairs, _pairs(matching, counts, snapshot))
    return pairs


def _pairs(
    terms: Iterable[PodTerm], nodes: Collection[str], snapshot: PlacementSnapshot
) -> dict[str, set[str]]:
    """The pairs of the nodes. Nodes without a term's label have none of it."""
    pairs: dict[str, set[str]] = {}
    for key in {term.topology_key for term in terms}:
        values = {snapshot.states[node].node.labels.get(key) for node in nodes}
        present = {value for value in values if value is not None}
        if present:
            pairs[key] = present
    return pairs


def _join(pairs: dict[str, set[str]], more: Pairs) -> None:
    for key, values in more.items():
        pairs.setdefault(key, set()).update(values)


def _resolved(term: PodTerm, snapshot: PlacementSnapshot) -> PodTerm:
    """The term with its namespace selector turned into names, unless it selects all namespaces."""
    if not term.namespace_selector:
        return term
    selected = (
        name for name, labels in snapshot.namespaces.items() if matches(term.namespace_selector, labels)
    )
    return term._replace(namespaces=term.namespaces.union(selected), namespace_selector=None)


def _all_match(terms: Collection[PodTerm], namespace: str, labels: Labels) -> bool:
    return bool(terms) and all(term_matches(term, namespace, labels) for term in terms)


def term_matches(
    term: PodTerm, namespace: str, labels: Labels, namespace_labels: Labels | None = None
) -> bool:
    """Whether a term counts a pod with these labels in this namespace."""
    if namespace not in term.namespaces and not matches(term.namespace_selector, namespace_labels or {}):
        return False
    return matches(term.selector, labels)
