"""Reads pods, nodes and claims of Kubernetes into the values that filters work on.

The API server's defaults are applied here as well, so that a manifest gives the value that it has once it is
created: host ports of the host's network, and label keys in the selectors of affinity and spreading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from broker.apis import core
from broker.apis.karpenter import NodeClaim, NodeClaimTemplateSpec
from broker.apis.meta import Object, ObjectMeta
from broker.apis.names import CAPACITY_TYPE, HOSTNAME, ZONE
from broker.capacity.future_labels import future_labels
from broker.capacity.requirements import InvalidRequirement, Requirements
from broker.placement.model import (
    FieldRequirement,
    HostPort,
    NodeInfo,
    NodeTaint,
    NodeTerm,
    PodDisk,
    PodInfo,
    PodPreferences,
    PodTerm,
    PodToleration,
    PodVolume,
    SpreadConstraint,
)
from broker.placement.quantities import amounts, pod_requests
from broker.placement.selectors import (
    IN,
    NOT_IN,
    Labels,
    Selector,
    SelectorRequirement,
    equal,
    requirement,
)

NODE_NAME = "metadata.name"
ANY_IP = "0.0.0.0"


def node_info(node: core.Node) -> NodeInfo:
    return NodeInfo(
        name=node.name,
        labels=node.metadata.labels,
        taints=node_taints(node.spec.taints),
        unschedulable=node.spec.unschedulable,
        allocatable=amounts(node.status.allocatable),
    )


def claim_info(claim: NodeClaim) -> NodeInfo:
    """A claim in flight as the node that it becomes, under the claim's name.

    Startup taints are left out: they are gone when pods come. A requirement with one value is a label.
    """
    spec, required = claim.spec, claim_requirements(claim)
    labels = {**required.labels(), **claim.metadata.labels, HOSTNAME: claim.name}
    return NodeInfo(
        name=claim.name,
        labels=future_labels(labels, spec.node_class_ref.name),
        taints=node_taints(spec.taints),
        allocatable=amounts(claim.status.allocatable),
        undetermined=None if determined(claim) else required,
    )


def requirements_of(spec: NodeClaimTemplateSpec) -> Requirements:
    """The requirements of a pool's template or of a claim. Raises InvalidRequirement."""
    return _decoded(tuple((item.key, item.operator, item.values) for item in spec.requirements))


def claim_requirements(claim: NodeClaim) -> Requirements:
    """The claim's requirements; none if they cannot be read, which is reported where claims are launched."""
    try:
        return requirements_of(claim.spec)
    except InvalidRequirement:
        return Requirements()


@lru_cache(maxsize=1024)
def _decoded(written: tuple[tuple[str, str, tuple[str, ...]], ...]) -> Requirements:
    """Equal requirements share one result."""
    return Requirements.of(written)


def determined(claim: NodeClaim) -> bool:
    """Whether the claim has the labels of its instance. EC2 shows the capacity type last."""
    return bool(claim.status.provider_id) and CAPACITY_TYPE in claim.labels


def namespace_labels(namespaces: Iterable[Object]) -> dict[str, Labels]:
    return {namespace.name: namespace.metadata.labels for namespace in namespaces}


def takes_room(pod: core.Pod) -> bool:
    """Whether the pod counts on its node: bound, and not ended."""
    return bool(pod.spec.node_name) and not pod.ended


def pod_info(pod: core.Pod) -> PodInfo:
    meta, spec = pod.metadata, pod.spec
    affinity = spec.affinity or core.Affinity()
    required = (
        affinity.node_affinity.required_during_scheduling_ignored_during_execution
        if (affinity.node_affinity)
        else None
    )
    return PodInfo(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        labels=meta.labels,
        node_name=spec.node_name,
        terminating=meta.deletion_timestamp is not None,
        requests=pod_requests(pod),
        node_selector=equal(spec.node_selector),
        node_terms=None if required is None else node_terms(required),
        named_nodes=None if required is None else _named_nodes(required),
        tolerations=pod_tolerations(spec.tolerations),
        ports=_ports(spec),
        spread=_constraints(spec, meta.labels, "DoNotSchedule"),
        affinity=_pod_terms(affinity.pod_affinity, meta),
        anti_affinity=_pod_terms(affinity.pod_anti_affinity, meta),
        preferences=_preferences(spec, affinity, meta),
        volumes=tuple(volumes(pod)),
        disks=tuple(_disks(spec.volumes)),
        devices=bool(spec.resource_claims),
    )


def moved(pod: core.Pod, zone: str) -> PodInfo:
    """The pod as its successor: without a node, and without its volumes, which keep it in `zone` if one is
    given.
    """
    info = pod_info(pod)
    kept = (SelectorRequirement(ZONE, IN, frozenset((zone,))),) if zone else ()
    return replace(
        info, node_name="", terminating=False, volumes=(), node_selector=(*info.node_selector, *kept)
    )


def pod_tolerations(tolerations: Iterable[core.Toleration]) -> tuple[PodToleration, ...]:
    return tuple(
        PodToleration(item.key, item.operator or "Equal", item.value, item.effect) for item in tolerations
    )


def node_taints(taints: Iterable[core.Taint]) -> tuple[NodeTaint, ...]:
    return tuple(NodeTaint(taint.key, taint.value, taint.effect) for taint in taints)


# ---- node affinity


def node_terms(selector: core.NodeSelector) -> tuple[NodeTerm, ...]:
    """The terms that can match: an empty term and one that cannot be parsed match no node."""
    terms = map(_node_term, selector.node_selector_terms)
    return tuple(term for term in terms if term is not None)


def _node_term(term: core.NodeSelectorTerm) -> NodeTerm | None:
    if not term.match_expressions and not term.match_fields:
        return None
    expressions = [requirement(item.key, item.operator, item.values) for item in term.match_expressions]
    parsed = tuple(item for item in expressions if item is not None)
    if len(parsed) < len(expressions):
        return None
    if any(item.operator not in (IN, NOT_IN) or len(item.values) != 1 for item in term.match_fields):
        return None
    fields = tuple(FieldRequirement(item.key, item.operator, item.values[0]) for item in term.match_fields)
    return NodeTerm(parsed, fields)


def _named_nodes(selector: core.NodeSelector) -> frozenset[str] | None:
    """The nodes that every term names; None if one term names none."""
    named: frozenset[str] = frozenset()
    for term in selector.node_selector_terms:
        nodes: frozenset[str] | None = None
        for item in term.match_fields:
            if item.key == NODE_NAME and item.operator == IN:
                nodes = frozenset(item.values) if nodes is None else nodes & frozenset(item.values)
        if nodes is None:
            return None
        named |= nodes
    return named if selector.node_selector_terms else None


# ---- preferences


def _preferences(spec: core.PodSpec, affinity: core.Affinity, meta: ObjectMeta) -> PodPreferences | None:
    nodes = (
        affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
        if (affinity.node_affinity)
        else ()
    )
    terms = (_node_term(item.preference) for item in sorted(nodes, key=lambda item: -item.weight))
    preferences = PodPreferences(
        near=_preferred_terms(affinity.pod_affinity, meta),
        apart=_preferred_terms(affinity.pod_anti_affinity, meta),
        # One with a test of a field names a node that exists: no machine is opened for it.
        nodes=tuple(term.expressions for term in terms if term is not None and not term.fields),
        spread=_constraints(spec, meta.labels, "ScheduleAnyway"),
    )
    return preferences if any(preferences) else None


def _preferred_terms(affinity: core.PodAffinity | None, meta: ObjectMeta) -> tuple[PodTerm, ...]:
    weighted = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
    return tuple(
        _pod_term(item.pod_affinity_term, meta) for item in sorted(weighted, key=lambda item: -item.weight)
    )


# ---- spreading and affinity between pods


def label_selector(
    selector: core.LabelSelector | None, keys: Mapping[str, str] | None = None, but: Labels | None = None
) -> Selector | None:
    """The selector with `keys` required and `but` excluded. One that cannot be parsed matches nothing."""
    if selector is None:
        return None
    parsed = [requirement(item.key, item.operator, item.values) for item in selector.match_expressions]
    whole = tuple(item for item in parsed if item is not None)
    if len(whole) < len(parsed):
        return None
    excluded = tuple(
        SelectorRequirement(key, NOT_IN, frozenset((value,))) for key, value in sorted((but or {}).items())
    )
    return (*equal(selector.match_labels), *whole, *equal(keys or {}), *excluded)


def _constraints(spec: core.PodSpec, labels: Labels, unsatisfiable: str) -> tuple[SpreadConstraint, ...]:
    return tuple(
        _constraint(item, labels)
        for item in spec.topology_spread_constraints
        if item.when_unsatisfiable == unsatisfiable
    )


def _constraint(item: core.TopologySpreadConstraint, labels: Labels) -> SpreadConstraint:
    return SpreadConstraint(
        max_skew=item.max_skew,
        topology_key=item.topology_key,
        selector=label_selector(item.label_selector, _labels_of(labels, item.match_label_keys)),
        min_domains=1 if item.min_domains is None else item.min_domains,
        honor_affinity=item.node_affinity_policy != "Ignore",
        honor_taints=item.node_taints_policy == "Honor",
    )


def _pod_terms(affinity: core.PodAffinity | None, meta: ObjectMeta) -> tuple[PodTerm, ...]:
    terms = affinity.required_during_scheduling_ignored_during_execution if affinity else ()
    return tuple(_pod_term(term, meta) for term in terms)


def _pod_term(term: core.PodAffinityTerm, meta: ObjectMeta) -> PodTerm:
    return PodTerm(
        topology_key=term.topology_key,
        selector=label_selector(
            term.label_selector,
            _labels_of(meta.labels, term.match_label_keys),
            _labels_of(meta.labels, term.mismatch_label_keys),
        ),
        namespaces=frozenset(term.namespaces)
        if term.namespaces or term.namespace_selector is not None
        else frozenset((meta.namespace,)),
        namespace_selector=label_selector(term.namespace_selector),
    )


def _labels_of(labels: Labels, keys: Iterable[str]) -> dict[str, str]:
    return {key: labels[key] for key in keys if key in labels}


# ---- ports and volumes


def _ports(spec: core.PodSpec) -> tuple[HostPort, ...]:
    """Host ports of containers that run as long as the pod: sidecars and containers."""
    sidecars = (item for item in spec.init_containers if item.restart_policy == "Always")
    ports = (port for item in (*sidecars, *spec.containers) for port in item.ports)
    numbered = ((port, port.host_port or (port.container_port if spec.host_network else 0)) for port in ports)
    return tuple(
        HostPort(port.host_ip or ANY_IP, port.protocol or "TCP", number)
        for port, number in numbered
        if number > 0
    )


def volumes(pod: core.Pod) -> Iterable[PodVolume]:
    """Its persistent volumes; one that is made for the pod alone is ephemeral."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield PodVolume(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            yield PodVolume(f"{pod.name}-{volume.name}", True)


def _disks(volumes: Iterable[core.Volume]) -> Iterable[PodDisk]:
    for volume in volumes:
        if (gce := volume.gce_persistent_disk) is not None:
            yield PodDisk("gce", gce.pd_name, gce.read_only)
        if (ebs := volume.aws_elastic_block_store) is not None:
            yield PodDisk("ebs", ebs.volume_id)
        if (iscsi := volume.iscsi) is not None:
            yield PodDisk("iscsi", iscsi.iqn, iscsi.read_only)
        if (rbd := volume.rbd) is not None:
            yield PodDisk("rbd", f"{rbd.pool}/{rbd.image}", rbd.read_only, frozenset(rbd.monitors))
