"""Claims that take over the pods of a node: where these pods fit, and the NodeClaim to create.

Invariant: a replacement is made from the pool's present template, for the pods that are on the node now. It
names the types and zones where all of them fit together by kube-scheduler's filters. A pod with a persistent
volume stays in its zone, and its volume is not checked beyond that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.capacity.class_catalog import CandidateType, ClassCatalog
from broker.capacity.model import Claim, Option
from broker.capacity.options import choose, suitable
from broker.capacity.requirements import Requirements
from broker.capacity.types import WELL_KNOWN
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.nodeclaim.from_pool import listed_types, one_of, pool_claim
from broker.controllers.nodeclaim.translate import priority_of
from broker.placement.filters import prepare
from broker.placement.model import NodeInfo, NodeTaint, PodInfo
from broker.placement.quantities import CPU, PODS, pod_requests
from broker.placement.reading import HOSTNAME, pod_info
from broker.placement.snapshot import PlacementSnapshot

Triple = tuple[str, str, tuple[str, ...]]
MOST_TRIED: Final = 240  # pairs of type and zone
# Annotations of a claim that its replacement keeps.
_KEPT: Final = (names.DRAWS_FROM, names.PRIORITY, names.EXPECT)
_PINNED: Final = frozenset({names.INSTANCE_TYPE, names.ZONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The load of a replacement: pods that move, and room for the DaemonSets' pods beside them.

    `zone`: the only zone, if volumes keep the pods there. `requests`: of all of them, exact.
    """

    node: ManagedNode
    requirements: tuple[Triple, ...]
    pods: tuple[PodInfo, ...]
    overhead: Mapping[str, int] = field(default_factory=dict)
    zone: str = ""

    @property
    def requests(self) -> dict[str, int]:
        total = dict(self.overhead)
        for pod in self.pods:
            for name, amount in pod.requests.items():
                total[name] = total.get(name, 0) + amount
        total[PODS] = total.get(PODS, 0) + len(self.pods)
        return total

    @property
    def amounts(self) -> dict[str, float]:
        """The requests in base units, as claims are planned."""
        return {
            name: amount / 1000 if name == CPU else float(amount) for name, amount in self.requests.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementPlaces:
    """The options that hold the pods of a replacement, and the labels of their instance types, by type."""

    options: Sequence[Option] = ()
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def assumed_on(node: ManagedNode, placement: PlacementSnapshot) -> list[PodInfo]:
    """The pods that `place_on_others` placed on the node."""
    state = placement.states.get(node.node.name) if node.node is not None else None
    return [pod for pod in state.pods if not pod.node_name] if state is not None else []


def demand(node: ManagedNode, pods: Sequence[Pod], assumed: Sequence[PodInfo] = ()) -> Demand:
    """The demand of these pods of the node, and of those that are assumed on it."""
    overhead: dict[str, int] = {PODS: len(node.daemons)}
    for daemon in node.daemons:
        for name, amount in pod_requests(daemon.spec).items():
            overhead[name] = overhead.get(name, 0) + amount
    bound = any(volume.persistent_volume_claim for pod in pods for volume in pod.spec.volumes)
    return Demand(
        node=node,
        requirements=requirements(node.pool, node.claim),
        pods=(*map(_moved, pods), *assumed),
        overhead=overhead,
        zone=node.claim.labels.get(names.ZONE, "") if bound else "",
    )


def requirements(pool: NodePool, claim: NodeClaim) -> tuple[Triple, ...]:
    """The pool's requirements. Of a label of the user's own, the claim's value stays if it is allowed."""
    pool_requirements = tuple((r.key, r.operator, r.values) for r in pool.spec.template.spec.requirements)
    parsed = Requirements.of(pool_requirements)
    labels = dict(claim.labels)
    own = [
        (key, "In", (labels[key],))
        for key in parsed
        if key not in WELL_KNOWN and key in labels and not parsed.unmet(labels, among={key})
    ]
    return (*pool_requirements, *own)


def planned(demand_: Demand, *, uid: str, name: str, gang: str = "", only: Iterable[Triple] = ()) -> Claim:
    """The replacement as the planner reads it. Raises InvalidRequirement."""
    claim = demand_.node.claim
    zone: tuple[Triple, ...] = ((names.ZONE, "In", (demand_.zone,)),) if demand_.zone else ()
    return Claim(
        name=name,
        uid=uid,
        node_class=demand_.node.pool.spec.template.spec.node_class_ref.name,
        requirements=Requirements.of((*demand_.requirements, *zone, *only)),
        requests=demand_.amounts,
        priority=priority_of(claim),
        created=claim.metadata.creation_timestamp,
        gang=gang,
    )


def place_on_others(
    pods: Sequence[PodInfo], placement: PlacementSnapshot, usable: Container[str]
) -> tuple[list[PodInfo], PlacementSnapshot]:
    """The pods that fit no usable node, and the snapshot with the others placed."""
    unplaced: list[PodInfo] = []
    for pod in pods:
        prepared = prepare(pod, placement)
        fit = next(
            (
                name
                for name, state in placement.states.items()
                if name in usable and not prepared.reasons(state)
            ),
            None,
        )
        if fit is None:
            unplaced.append(pod)
        else:
            placement = placement.with_pod(pod, fit)
    return unplaced, placement


def fitting(demand_: Demand, claim: Claim, known: ClassCatalog, placement: PlacementSnapshot) -> list[Option]:
    """The options in order that hold all pods together. `placement` is without the old node."""
    suitable_types = suitable(claim.requirements, claim.requests, known)
    by_name = {candidate.type.name: candidate for candidate in suitable_types}
    fits: dict[tuple[str, str], bool] = {}
    options: list[Option] = []
    for option in choose(claim.requirements, suitable_types, known):
        place = (option.pool.instance_type, option.pool.zone)
        if place not in fits:
            if len(fits) >= MOST_TRIED:
                continue
            node = future_node(demand_, claim, by_name[place[0]], place[1], known)
            fits[place] = hosts(node, demand_.pods, placement)
        if fits[place]:
            options.append(option)
    return options


def future_node(
    demand_: Demand, claim: Claim, candidate: CandidateType, zone: str, known: ClassCatalog
) -> NodeInfo:
    """The node that a claim of this type and zone becomes, with room for the pods that move."""
    template = demand_.node.pool.spec.template
    room = {
        name: int(amount * 1000) if name == CPU else int(amount)
        for name, amount in candidate.allocatable.items()
    }
    labels = {
        **claim.requirements.labels(),
        **template.metadata.labels,
        names.NODEPOOL: demand_.node.pool.name,
        **candidate.labels,
        **known.zones.get(zone, {names.ZONE: zone}),
        HOSTNAME: claim.name,
    }
    return NodeInfo(
        name=claim.name,
        labels=labels,
        taints=tuple(NodeTaint(t.key, t.value, t.effect) for t in template.spec.taints),
        allocatable={name: amount - demand_.overhead.get(name, 0) for name, amount in room.items()},
    )


def hosts(node: NodeInfo, pods: Iterable[PodInfo], placement: PlacementSnapshot) -> bool:
    """Whether a new node holds all these pods together."""
    trial = placement.with_node(node)
    for pod in pods:
        if prepare(pod, trial).reasons(trial.states[node.name]):
            return False
        trial = trial.with_pod(pod, node.name)
    return True


def body(
    demand_: Demand,
    *,
    name: str,
    places: ReplacementPlaces,
    move: str,
    capacity_type: str = "",
    gang: tuple[str, int] | None = None,
) -> dict[str, Any]:
    """The NodeClaim to create. `move`: the value of MOVE."""
    old = demand_.node.claim
    kept: dict[str, str] = {key: old.annotations[key] for key in _KEPT if key in old.annotations}
    gang_annotations = {names.GANG: gang[0], names.GANG_SIZE: str(gang[1])} if gang else {}
    return pool_claim(
        demand_.node.pool,
        name,
        requirements=_requirements(demand_, places, capacity_type),
        requests=demand_.requests,
        annotations={**kept, **gang_annotations, names.REPLACES: f"{old.name}/{old.uid}", names.MOVE: move},
    )


def replacement_name(node: ManagedNode, move: str) -> str:
    """Equal for equal moves, so that a repeated creation is refused instead of made twice."""
    suffix = hashlib.sha256(f"{node.claim.uid}/{move}".encode()).hexdigest()[:5]
    return f"{node.pool.name[:57]}-{suffix}"


def _requirements(demand_: Demand, places: ReplacementPlaces, capacity_type: str) -> list[dict[str, Any]]:
    """The pool's requirements, narrowed to the places. A minValues that these cannot meet is lowered, as for
    claims that are made for waiting pods.
    """
    least = {r.key: r.min_values for r in demand_.node.pool.spec.template.spec.requirements if r.min_values}
    ordered = list(dict.fromkeys(option.pool.instance_type for option in places.options))
    values = {name: _values(name, places) for name in ordered}
    types = listed_types(ordered, least, values)
    zones = sorted({option.pool.zone for option in places.options if option.pool.instance_type in types})
    pinned = {*_PINNED, *((names.CAPACITY_TYPE,) if capacity_type else ())}
    possible = {
        key: max(1, len(set().union(*(values[name].get(key, ()) for name in types)))) for key in least
    }
    narrowed = [
        {"key": key, "operator": operator, **({"values": [*allowed]} if allowed else {})}
        | ({"minValues": min(least[key], possible[key])} if key in least else {})
        for key, operator, allowed in demand_.requirements
        if key not in pinned
    ]
    if names.INSTANCE_TYPE in least:
        count = min(least[names.INSTANCE_TYPE], len(types))
        narrowed.append({"key": names.INSTANCE_TYPE, "operator": "Exists", "minValues": count})
    narrowed += [one_of(names.INSTANCE_TYPE, types), one_of(names.ZONE, zones)]
    return narrowed + ([one_of(names.CAPACITY_TYPE, [capacity_type])] if capacity_type else [])


def _values(instance_type: str, places: ReplacementPlaces) -> dict[str, set[str]]:
    """The values of each label that a replacement of this type can have."""
    pools = [option.pool for option in places.options if option.pool.instance_type == instance_type]
    labels = {key: {value} for key, value in places.labels.get(instance_type, {}).items()}
    return labels | {
        names.INSTANCE_TYPE: {instance_type},
        names.ZONE: {pool.zone for pool in pools},
        names.CAPACITY_TYPE: {pool.capacity_type for pool in pools},
    }


def _moved(pod: Pod) -> PodInfo:
    """The pod as its successor: without a node, and without volumes, which the zone stands for."""
    return replace(pod_info(pod), node_name="", terminating=False, volumes=())
