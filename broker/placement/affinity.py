"""NodeName and NodeAffinity: the node selector, and required node affinity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.apis.label_names import stable
from broker.capacity.requirements import InvalidRequirement, Requirements
from broker.capacity.types import WELL_KNOWN
from broker.placement.model import NodeInfo, NodeTerm, PodInfo
from broker.placement.selectors import IN, Labels, Selector, SelectorRequirement, holds, matches, required
from broker.placement.snapshot import Check, PlacementSnapshot

OTHER_NODE: Final = "node(s) didn't match the requested node name"
NO_MATCH: Final = "node(s) didn't match Pod's node affinity/selector"
CONFLICT: Final = "pod affinity terms conflict"
# Of nodes that are not checked, since the pod's affinity names others.
NOT_NAMED: Final = "node(s) didn't satisfy plugin(s) [NodeAffinity]"


def node_name(pod: PodInfo, snapshot: PlacementSnapshot) -> Check | None:
    """Rejects all nodes but the one that the pod names."""
    if not pod.node_name:
        return None
    return lambda state: () if state.node.name == pod.node_name else (OTHER_NODE,)


def node_affinity(pod: PodInfo, snapshot: PlacementSnapshot) -> Check | str | None:
    """Rejects nodes outside the node selector or outside every term of required affinity."""
    if pod.named_nodes is not None and not pod.named_nodes:
        return CONFLICT
    if not pod.node_selector and pod.node_terms is None:
        return None
    return lambda state: () if node_matches(pod, state.node) else (NO_MATCH,)


def node_matches(pod: PodInfo, node: NodeInfo) -> bool:
    if pod.node_selector and not _selects(pod.node_selector, node):
        return False
    return pod.node_terms is None or any(
        _selects(term.expressions, node) and _fields_match(term, node.name) for term in pod.node_terms
    )


def _selects(selector: Selector, node: NodeInfo) -> bool:
    if node.undetermined is None:
        return matches(selector, node.labels)
    return all(
        holds(item, node.labels)
        if item.key in node.labels or stable(item.key) not in WELL_KNOWN
        else _certain(item, node.undetermined)
        for item in selector
    )


def _certain(item: SelectorRequirement, allowed: Requirements) -> bool:
    """Whether the label holds with any value that it may get."""
    try:
        return allowed.implies(required(item))
    except InvalidRequirement:
        return False


def any_term(terms: Iterable[NodeTerm], labels: Labels, name: str = "") -> bool:
    """Whether a term matches. Without a name, tests of fields are left out."""
    return any(
        matches(term.expressions, labels) and (not name or _fields_match(term, name)) for term in terms
    )


def _fields_match(term: NodeTerm, name: str) -> bool:
    """A field other than the name has no value."""
    return all(
        (value == (name if key == "metadata.name" else "")) == (operator == IN)
        for key, operator, value in term.fields
    )
