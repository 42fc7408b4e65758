"""Groups pods into shapes: pods of one shape are interchangeable on every machine.

Most pods are independent of others. Of the rest, two rules keep a shape within the pattern program: at most
so many pods on a machine (spreading and anti-affinity by host name, host ports), and so many in each domain
(spreading by zone or another label). Pods under any other rule between pods are placed one after another
(`sequential`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from broker.apis.names import HOSTNAME
from broker.lists import lists_by_key
from broker.placement.interpod import term_matches
from broker.placement.model import PodInfo, PodTerm, SpreadConstraint
from broker.placement.packing_model import Drawing, PendingPod
from broker.placement.ports import conflicts
from broker.placement.selectors import Labels, Selector, matches
from broker.placement.snapshot import PlacementSnapshot
from broker.placement.spread import domain_counts

MANY: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PodShape:
    """Interchangeable pods. `per_bin`: at most so many on a machine; `domain`: only machines with this label.

    `ordered`: the pods are placed one after another. `coupled`: rules between pods hold for the shape.
    """

    pods: tuple[PendingPod, ...]
    per_bin: int = MANY
    domain: tuple[str, str] | None = None
    ordered: bool = False
    coupled: bool = False

    @property
    def example(self) -> PodInfo:
        return self.pods[0].info

    @property
    def group(self) -> tuple[str, Drawing]:
        """Shapes of different groups share no machine."""
        return self.pods[0].gang, self.pods[0].drawing


def shapes_of(pods: Iterable[PendingPod], snapshot: PlacementSnapshot) -> list[PodShape]:
    """The shapes of the pods, each with its rules; the higher priority first, then the larger requests."""
    pending = list(pods)
    keys = _selector_keys(pending, snapshot)
    by_key = lists_by_key((_key(pod, keys), pod) for pod in pending)
    shapes = [PodShape(pods=tuple(same)) for same in by_key.values()]
    if any(_has_rules(shape.example) for shape in shapes) or snapshot.repelling:
        shapes = [_ruled(shape, shapes, snapshot) for shape in shapes]
    return sorted(shapes, key=_order)


def _order(shape: PodShape) -> tuple[object, ...]:
    requests = shape.example.requests
    first = shape.pods[0]
    return (
        -first.priority,
        -requests.get("cpu", 0),
        -requests.get("memory", 0),
        first.key,
    )


def _key(pod: PendingPod, keys: Collection[str]) -> Hashable:
    info = pod.info
    return (
        info.namespace,
        tuple(sorted(info.requests.items())),
        info.node_selector,
        info.node_terms,
        info.named_nodes,
        info.tolerations,
        info.ports,
        info.spread,
        info.affinity,
        info.anti_affinity,
        info.near,
        info.apart,
        info.avoids_soft_taints,
        info.volumes,
        info.disks,
        tuple(sorted((key, info.labels[key]) for key in keys if key in info.labels)),
        pod.priority,
        pod.gang,
        pod.drawing,
    )


def _selector_keys(pods: Iterable[PendingPod], snapshot: PlacementSnapshot) -> set[str]:
    """The labels of pods that any rule between pods reads."""
    selectors: list[Selector | None] = []
    seen: set[Hashable] = set()
    for pod in pods:
        info = pod.info
        rules = (info.spread, info.terms_near, info.terms_apart)
        if not any(rules) or rules in seen:
            continue
        seen.add(rules)
        selectors += [item.selector for item in info.spread]
        selectors += [term.selector for term in (*info.terms_near, *info.terms_apart)]
    selectors += [term.selector for terms in snapshot.repelling for term in terms]
    return {item.key for selector in selectors if selector for item in selector}


def _has_rules(pod: PodInfo) -> bool:
    return bool(pod.spread or pod.terms_near or pod.terms_apart or pod.ports or pod.disks)


def _ruled(shape: PodShape, shapes: Sequence[PodShape], snapshot: PlacementSnapshot) -> PodShape:
    """The shape with the rules that the program can keep, or as one that is placed in order."""
    pod = shape.example
    others = [other.example for other in shapes if other is not shape]
    namespaces = snapshot.namespaces
    if _read_by_others(pod, others, namespaces) or _repelled_by_zone(pod, snapshot):
        return replace(shape, ordered=True, coupled=True)
    if not _has_rules(pod):
        return shape
    cap = _machine_cap(pod, others, namespaces)
    if cap is None or len(over_domains(pod)) > 1:
        return replace(shape, ordered=True, coupled=True)
    return replace(shape, per_bin=cap, coupled=True)


def _read_by_others(pod: PodInfo, others: Iterable[PodInfo], namespaces: Mapping[str, Labels]) -> bool:
    """Whether a rule of another pending pod counts this one."""
    return any(
        (
            other.namespace == pod.namespace
            and any(matches(item.selector, pod.labels) for item in other.spread)
        )
        or any(term_counts(term, pod, namespaces) for term in (*other.terms_near, *other.terms_apart))
        for other in others
        if other.spread or other.terms_near or other.terms_apart
    )


def _repelled_by_zone(pod: PodInfo, snapshot: PlacementSnapshot) -> bool:
    """Whether a pod on a node repels this one from more than its own node."""
    return any(
        term.topology_key != HOSTNAME and term_counts(term, pod, snapshot.namespaces)
        for terms in snapshot.repelling
        for term in terms
    )


def _machine_cap(pod: PodInfo, others: Sequence[PodInfo], namespaces: Mapping[str, Labels]) -> int | None:
    """The most pods of the shape on one machine; None if its rules are not of that kind."""
    if pod.terms_near or pod.disks:
        return None
    cap = MANY
    for constraint in pod.spread:
        if _counts_others(constraint, pod, others):
            return None
        if constraint.topology_key == HOSTNAME and matches(constraint.selector, pod.labels):
            cap = min(cap, constraint.max_skew)
    for term in pod.terms_apart:
        if term.topology_key != HOSTNAME or any(term_counts(term, other, namespaces) for other in others):
            return None
        if term_counts(term, pod, namespaces):
            cap = 1
    for port in pod.ports:
        if any(conflicts(port, other.ports) for other in others):
            return None
        cap = 1
    return cap


def _counts_others(constraint: SpreadConstraint, pod: PodInfo, others: Iterable[PodInfo]) -> bool:
    return any(
        other.namespace == pod.namespace and matches(constraint.selector, other.labels) for other in others
    )


def term_counts(term: PodTerm, pod: PodInfo, namespaces: Mapping[str, Labels]) -> bool:
    """Whether a term counts the pod, by its labels and those of its namespace."""
    return term_matches(term, pod.namespace, pod.labels, namespaces.get(pod.namespace, {}))


# ---- domains


def over_domains(pod: PodInfo) -> list[SpreadConstraint]:
    return [item for item in pod.spread if item.topology_key != HOSTNAME]


def by_domain(shape: PodShape, machines: Iterable[Labels], snapshot: PlacementSnapshot) -> list[PodShape]:
    """The shape divided over zones, or values of another label, so that its constraint holds; pods beyond it
    are left out, and those of domains that other machines offer.

    `machines`: the labels of those that the shape may get. Domains that have nodes only count, and receive no
    pod.
    """
    constraint = next(iter(over_domains(shape.example)), None)
    if constraint is None:
        return [shape]
    key = constraint.topology_key
    domains = {labels[key] for labels in machines if key in labels}
    counts = dict.fromkeys(domains, 0) | domain_counts(constraint, shape.example, snapshot)
    choice = domains | constraint.offered
    itself = matches(constraint.selector, shape.example.labels)
    pods_by_domain: dict[str, list[PendingPod]] = {}
    for pod in shape.pods:
        fewest = min(counts.values(), default=0) if len(counts) >= constraint.min_domains else 0
        domain = min(choice, key=lambda name: (counts[name], name), default=None)
        if domain is None or counts[domain] + itself - fewest > constraint.max_skew:
            break
        pods_by_domain.setdefault(domain, []).append(pod)
        counts[domain] += itself
    return [
        replace(shape, pods=tuple(pods), domain=(key, name))
        for name, pods in pods_by_domain.items()
        if name in domains
    ]
