"""Claims that take over the pods of a node: where these pods fit, and the NodeClaim to create.

Invariant: a replacement is made from the pool's present template, for the pods that are on the node now. It
names the types and zones where all of them fit together by kube-scheduler's filters, on the nodes that
provisioning would make. A pod with a persistent volume stays in its zone; its volume is not checked further.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.hashes import class_hash
from broker.apis.units import base
from broker.capacity.class_catalog import ClassCatalog, class_catalog
from broker.capacity.model import Claim, Inventory
from broker.capacity.options import choose, suitable, tenancy
from broker.capacity.requirements import InvalidRequirement, Requirements
from broker.capacity.types import WELL_KNOWN
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.disruption.assumed import moving_pods
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.controllers.disruption.sources import DisruptionSources
from broker.controllers.provisioning.claims import narrowed, total_requests
from broker.controllers.provisioning.from_pool import pool_claim
from broker.controllers.provisioning.learned import LearnedRoom, RoomLearner, fingerprint
from broker.controllers.provisioning.offers import MachineMaker
from broker.controllers.provisioning.pools import required_by, template_labels
from broker.controllers.provisioning.usage import (
    NODES,
    LargestMachines,
    claim_usage,
    pool_limits,
    unreadable,
)
from broker.placement.claims import priority_of
from broker.placement.daemons import DaemonOverhead
from broker.placement.filters import prepare
from broker.placement.machines import label_keys
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.packing_model import MachineOption
from broker.placement.packing_state import Supply, node_of
from broker.placement.quantities import CPU, MEMORY, PODS
from broker.placement.reading import has_volume
from broker.placement.snapshot import PlacementSnapshot
from broker.quota.usage import Reserved
from broker.reservations.drawing import DrawRights, namespaces_of
from providers.errors import ProviderError

Triple = tuple[str, str, tuple[str, ...]]
MOST_TRIED: Final = 240  # pairs of type and zone
_OF_EVERY_TYPE: Final = frozenset({CPU, MEMORY, PODS, NODES})  # resources that each machine has
OVER_LIMITS: Final = "a replacement would exceed the limits of NodePool {}"
# Annotations of a claim that its replacement keeps.
_KEPT: Final = (names.PRIORITY, names.EXPECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The pods that move off a node. `zone`: the only zone, if volumes keep the pods there.

    `unfit`: the machines that do not hold the pods, once they are found.
    """

    node: ManagedNode
    pods: tuple[PodInfo, ...]
    zone: str = ""
    unfit: tuple[MachineOption, ...] = ()

    @property
    def chosen(self) -> dict[str, str]:
        """The claim's values of labels of the user's own, which stay if they are allowed.

        Raises InvalidRequirement.
        """
        required, labels = required_by(self.node.pool), self.node.claim.labels
        own = (key for key in required if key not in WELL_KNOWN and key in labels)
        return {key: labels[key] for key in own if not required.unmet(labels, among={key})}


# A replacement, and the machines that it may become, in order.
Pair = tuple[Demand, list[MachineOption]]


def demand(node: ManagedNode, pods: Sequence[Pod], assumed: Sequence[PodInfo] = ()) -> Demand:
    """The demand of these pods of the node, and of those that are assumed on it."""
    zone = node.claim.labels.get(names.ZONE, "")
    return Demand(
        node=node,
        pods=(*moving_pods(node, pods), *assumed),
        zone=zone if any(map(has_volume, pods)) else "",
    )


def planned(needed: Demand, *, uid: str, name: str, only: Iterable[Triple] = ()) -> Claim:
    """The replacement as the planner reads it, without DaemonSets. Raises InvalidRequirement."""
    claim = needed.node.claim
    zone: tuple[Triple, ...] = ((names.ZONE, "In", (needed.zone,)),) if needed.zone else ()
    return Claim(
        name=name,
        uid=uid,
        node_class=needed.node.pool.spec.template.spec.node_class_ref.name,
        requirements=required_by(needed.node.pool)
        & Requirements.of_labels(needed.chosen)
        & Requirements.of((*zone, *only)),
        requests=base(total_requests(needed.pods, {})),
        priority=priority_of(claim),
        created=claim.metadata.creation_timestamp,
    )


def beside_daemons(claim: Claim, needed: Demand, machine: MachineOption) -> Claim:
    """The claim with the requests of the machine's DaemonSets."""
    return replace(claim, requests=base(total_requests(needed.pods, machine.daemons)))


@dataclass(frozen=True, kw_only=True)
class MachineFinder:
    """Finds the machines for replacements in one pass. `learner` is kept from pass to pass."""

    caches: ClaimCaches
    sources: DisruptionSources
    snapshot: DisruptionSnapshot
    learner: RoomLearner

    def find(self, needed: Demand, placement: PlacementSnapshot) -> Pair:
        """The machines in order that hold all pods together; those in full reservations only beside others.

        `placement` is without the old node.
        """
        ready = self.sources.launch_class(needed.node.pool.spec.template.spec.node_class_ref.name)
        if ready is None:
            return needed, []
        inventory = self.sources.ec2.inventory.snapshot()
        try:
            claim = planned(needed, uid="replacement", name="replacement")
            types = self.sources.ec2.provider.instance_types()
        except (InvalidRequirement, ProviderError):
            return needed, []
        node_class = ready.plan.of_tenancy(tenancy(claim.requirements))
        known = class_catalog(node_class, types, inventory, self.snapshot.now)
        machines, unfit = self.fitting(needed, claim, known, inventory, placement)
        return replace(needed, unfit=tuple(unfit)), _combinable(
            machines, unfit, lambda machine: not machine.source or inventory.free(machine.source) > 0
        )

    def fitting(
        self,
        needed: Demand,
        claim: Claim,
        known: ClassCatalog,
        inventory: Inventory,
        placement: PlacementSnapshot,
    ) -> tuple[list[MachineOption], list[MachineOption]]:
        """The machines in order that hold all pods together, whether one is free or not, and the others."""
        labels = template_labels(needed.node.pool, claim.requirements)
        maker = MachineMaker(needed.node.pool, labels, known, inventory, self._overhead, self._learned)
        repelling = {term.topology_key for terms in placement.repelling for term in terms}
        keys = sorted({*label_keys(needed.pods, placement.storage), *repelling})
        places: set[tuple[str, str]] = set()
        fits: dict[Hashable, bool] = {}
        machines: list[MachineOption] = []
        failed: list[MachineOption] = []
        types = suitable(claim.requirements, claim.requests, known)
        for option in choose(claim.requirements, types, known):
            place = (option.pool.instance_type, option.pool.zone)
            if place not in places and len(places) == MOST_TRIED:
                continue
            places.add(place)
            for machine in maker.machines(option):
                room = tuple(sorted(machine.node.allocatable.items()))  # DaemonSets can differ, too
                kind = (room, *(machine.node.labels.get(key) for key in keys))
                if kind not in fits:
                    fits[kind] = hosts(node_of(machine, claim.name), needed.pods, placement)
                (machines if fits[kind] else failed).append(machine)
        return machines, failed

    def over_limits(self, nodes: Sequence[ManagedNode]) -> str:
        """Why the limits of their pools allow no replacement of any type; empty if they may."""
        limits = self._limits_without(nodes)
        for pool in {node.pool.name: node.pool for node in nodes}.values():
            if problem := unreadable(pool):
                return f"the limits of NodePool {pool.name} cannot be read: {problem}"
            remaining = limits.get(pool.name, {})
            if any(amount < (name in _OF_EVERY_TYPE) for name, amount in remaining.items()):
                return OVER_LIMITS.format(pool.name)
        return ""

    def within_limits(self, pairs: Sequence[Pair]) -> list[Pair]:
        """The machines that the limits of their pools allow, of replacements that start together.

        A claim may get any machine of its list, so none is larger than the first.
        """
        supply = Supply(room={}, limits=self._limits_without([needed.node for needed, _ in pairs]))
        allowed: list[Pair] = []
        for needed, machines in pairs:
            first = next(filter(supply.within_limits, machines), None)
            if first is None:
                allowed.append((needed, []))
                continue
            allowed.append((needed, [machine for machine in machines if supply.no_larger(machine, first)]))
            supply.take(first)
        return allowed

    def admit(self, pairs: Sequence[Pair]) -> bool:
        """Whether the limits allow these replacements with all claims of now; counts them if so.

        Other loops may have created claims since the pass began.
        """
        self._limits.update(self._limits_now())
        supply = Supply(room={}, limits=self._limits_without([needed.node for needed, _ in pairs]))
        for _, machines in pairs:
            if not supply.within_limits(machines[0]):
                return False
            supply.take(machines[0])
        for pool, remaining in supply.limits.items():  # the old nodes count until they end
            before = self._limits.get(pool, {})
            self._limits[pool] = {name: min(amount, before[name]) for name, amount in remaining.items()}
        return True

    def _limits_without(self, nodes: Sequence[ManagedNode]) -> dict[str, dict[str, int]]:
        """Lists by pool with limits the amounts that it may add once these nodes are gone.

        As in Karpenter, nodes that are replaced do not count (pkg/controllers/disruption/helpers.go).
        """
        pools = {node.pool.name for node in nodes}
        limits = {pool: {**amounts} for pool, amounts in self._limits.items() if pool in pools}
        for node in nodes:
            remaining = limits.get(node.pool.name, {})
            used = claim_usage(node.claim, node.node, self._largest)
            for name in remaining:
                remaining[name] += used[name]
        return limits

    @cached_property
    def _limits(self) -> dict[str, dict[str, int]]:
        return self._limits_now()

    def _limits_now(self) -> dict[str, dict[str, int]]:
        """Lists, by pool with readable limits, what it may add beside the nodes that stay."""
        pools = [pool for pool in self.snapshot.pools.values() if not unreadable(pool)]
        return pool_limits(pools, self.caches.claims.list(), self.caches.nodes.list(), self._largest)

    @cached_property
    def _largest(self) -> LargestMachines:
        return LargestMachines(self.sources.types(), self.sources.nodeclasses.plan)

    @cached_property
    def _daemons(self) -> list[PodInfo]:
        return self.sources.reads.daemons()

    @cached_property
    def _overhead(self) -> DaemonOverhead:
        return DaemonOverhead(self._daemons)

    @cached_property
    def _learned(self) -> LearnedRoom:
        occupancy = self.snapshot.occupancy
        names_ = {pool.spec.template.spec.node_class_ref.name for pool in self.snapshot.pools.values()}
        classes = {name: self.sources.launch_class(name) for name in names_}
        return self.learner.observe(
            occupancy.nodes,
            self.caches.claims.list(),
            occupancy.pods,
            fingerprint(self._daemons),
            classes={name: class_hash(ready.source) for name, ready in classes.items() if ready},
            now=self.snapshot.now,
        )


def _combinable(
    machines: list[MachineOption], failed: Iterable[MachineOption], has_room: Callable[[MachineOption], bool]
) -> list[MachineOption]:
    """The machines of which each type fits in each listed zone, with each capacity type; one has room.

    A claim lists types, zones and capacity types by themselves, and may get any combination.
    """
    unfit = {*map(_place, failed)} - {*map(_place, machines)}
    zones = {machine.zone for machine in machines}
    kinds = {machine.capacity_type for machine in machines}
    bad = {name for name, zone, kind in unfit if zone in zones and kind in kinds}
    good = [machine for machine in machines if machine.instance_type not in bad]
    if any(map(has_room, good)):
        return good
    first = next(filter(has_room, machines), None)
    return [machine for machine in machines if first and _place(machine)[1:] == _place(first)[1:]]


def _place(machine: MachineOption) -> tuple[str, str, str]:
    return machine.instance_type, machine.zone, machine.capacity_type


def hosts(node: NodeInfo, pods: Iterable[PodInfo], placement: PlacementSnapshot) -> bool:
    """Whether a new node holds all these pods together."""
    trial = placement.with_node(node)
    for pod in pods:
        if prepare(pod, trial).reasons(trial.states[node.name]):
            return False
        trial = trial.with_pod(pod, node.name)
    return True


def body(
    needed: Demand,
    machines: Sequence[MachineOption],
    *,
    rights: DrawRights,
    name: str,
    move: str,
    gang: tuple[str, int] | None = None,
) -> dict[str, Any]:
    """The NodeClaim to create, which becomes one of the machines. `move`: the value of MOVE."""
    pool, old = needed.node.pool, needed.node.claim
    kept: dict[str, str] = {key: old.annotations[key] for key in _KEPT if key in old.annotations}
    gang_annotations = {names.GANG: gang[0], names.GANG_SIZE: str(gang[1])} if gang else {}
    return pool_claim(
        pool,
        name,
        requirements=narrowed(
            pool,
            machines,
            needed.chosen,
            needed.pods,
            {machine.capacity_type for machine in machines},
            offered=[*machines, *needed.unfit],
        ),
        requests=total_requests(needed.pods, machines[0].daemons),
        annotations={
            **kept,
            **gang_annotations,
            names.DRAWS_FROM: _drawn(needed, rights),
            names.REPLACES: f"{old.name}/{old.uid}",
            names.MOVE: move,
        },
    )


def _drawn(needed: Demand, rights: DrawRights) -> str | None:
    """The reservation that the replacement draws from: the old claim's, else its pool's.

    A replacement is made for no pods of its own, so it gets a name only if the old claim, or the pods that
    move, may draw from it.
    """
    claim = needed.node.claim
    if named := claim.annotations.get(names.DRAWS_FROM):
        return named if isinstance(rights.of_claim(claim), Reserved) else None
    named = needed.node.pool.spec.template.metadata.annotations.get(names.DRAWS_FROM, "")
    namespaces = {pod.namespace for pod in needed.pods} | namespaces_of(claim)
    return named if isinstance(rights.decide(named, namespaces), Reserved) else None


def replacement_name(node: ManagedNode, move: str) -> str:
    """Equal for equal moves, so that a repeated creation is refused instead of made twice."""
    suffix = hashlib.sha256(f"{node.claim.uid}/{move}".encode()).hexdigest()[:5]
    return f"{node.pool.name[:57]}-{suffix}"
