"""The values of placement: nodes and pods as filters read them.

Quantities are exact integers: CPU in milli, everything else in base units. All values are hashable or read
only, so that snapshots share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.capacity.requirements import Requirements
from broker.placement.selectors import Labels, Selector


class NodeTaint(NamedTuple):
    key: str
    value: str
    effect: str


class PodToleration(NamedTuple):
    key: str
    operator: str
    value: str
    effect: str


class FieldRequirement(NamedTuple):
    """One test of `metadata.name`, the only field of a node that a term may name."""

    key: str
    operator: str
    value: str


class NodeTerm(NamedTuple):
    """A term of node affinity; both parts must match."""

    expressions: Selector = ()
    fields: tuple[FieldRequirement, ...] = ()


class HostPort(NamedTuple):
    ip: str
    protocol: str
    port: int


class SpreadConstraint(NamedTuple):
    """A topology spread constraint, its label keys merged into the selector.

    `offered`: domains without a node that count, since machines there can be had for the pod.
    """

    max_skew: int
    topology_key: str
    selector: Selector | None
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False
    offered: frozenset[str] = frozenset()


class PodTerm(NamedTuple):
    """A term of pod affinity or anti-affinity, its label keys merged into the selector."""

    topology_key: str
    selector: Selector | None
    namespaces: frozenset[str]
    namespace_selector: Selector | None = None


class PodPreferences(NamedTuple):
    """What a pod prefers, in the order in which Karpenter drops it; of each kind, the heaviest first.

    Source: Karpenter 1.15, pkg/controllers/provisioning/scheduling/preferences.go.
    """

    near: tuple[PodTerm, ...] = ()
    apart: tuple[PodTerm, ...] = ()
    nodes: tuple[Selector, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()


class PodVolume(NamedTuple):
    """A volume of a claim. `ephemeral`: the claim is made for the pod."""

    claim: str
    ephemeral: bool = False


class PodDisk(NamedTuple):
    """A disk that the pod names itself. `monitors` are those of a Ceph image."""

    kind: str
    id: str
    read_only: bool = False
    monitors: frozenset[str] = frozenset()


class LabelGroupKey(NamedTuple):
    """The pods of a namespace with equal labels. Terminating pods are a group of their own."""

    namespace: str
    labels: tuple[tuple[str, str], ...]
    terminating: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node, or a claim in flight that becomes one.

    `undetermined`: what the claim allows, while the labels that follow from its instance are not known.
    """

    name: str
    labels: Labels = field(default_factory=dict)
    taints: tuple[NodeTaint, ...] = ()
    unschedulable: bool = False
    allocatable: Mapping[str, int] = field(default_factory=dict)
    undetermined: Requirements | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PodInfo:
    """A pod. Two values are equal only if they are the same object."""

    namespace: str
    name: str
    uid: str = ""
    labels: Labels = field(default_factory=dict)
    node_name: str = ""
    terminating: bool = False
    requests: Mapping[str, int] = field(default_factory=dict)
    node_selector: Selector = ()
    # None: no required affinity. An empty tuple matches no node.
    node_terms: tuple[NodeTerm, ...] | None = None
    # The nodes that node affinity names; None: it names none.
    named_nodes: frozenset[str] | None = None
    tolerations: tuple[PodToleration, ...] = ()
    ports: tuple[HostPort, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    preferences: PodPreferences | None = None
    # Preferences that count as rules, for this pod alone (`preferring`).
    near: tuple[PodTerm, ...] = ()
    apart: tuple[PodTerm, ...] = ()
    avoids_soft_taints: bool = False
    volumes: tuple[PodVolume, ...] = ()
    disks: tuple[PodDisk, ...] = ()
    # Whether it asks for devices by dynamic resource allocation.
    devices: bool = False
    # Pods that the node counts for it: a placeholder of kept room may count as none.
    places: int = 1
    group: LabelGroupKey = field(init=False)

    def __post_init__(self) -> None:
        labels = tuple(sorted(self.labels.items()))
        object.__setattr__(self, "group", LabelGroupKey(self.namespace, labels, self.terminating))

    @property
    def terms_near(self) -> tuple[PodTerm, ...]:
        """The terms of affinity that count as rules."""
        return (*self.affinity, *self.near)

    @property
    def terms_apart(self) -> tuple[PodTerm, ...]:
        """The terms of anti-affinity that count as rules."""
        return (*self.anti_affinity, *self.apart)

    @property
    def alternatives(self) -> list[Selector]:
        """The labels that it selects a node by: its selector with each term of its affinity, any of them."""
        terms = (NodeTerm(),) if self.node_terms is None else self.node_terms
        return [(*self.node_selector, *term.expressions) for term in terms]
