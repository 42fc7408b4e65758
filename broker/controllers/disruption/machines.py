"""Finds the machines that hold the pods of nodes that end, within the limits of their pools.

Invariant: a machine is one that provisioning would make, had by one of the ways that launches have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

from broker.apis import names
from broker.apis.hashes import class_hash
from broker.apis.karpenter import NodeClaim
from broker.apis.static_pools import follows
from broker.capacity.absorption import absorbs
from broker.capacity.entitlement import Entitlements
from broker.capacity.model import Claim, NodeClass
from broker.capacity.option_catalog import OptionCatalog
from broker.capacity.plan import plan
from broker.capacity.requirements import InvalidRequirement
from broker.capacity.static_nodes import usable_for
from broker.capacity.successors import AWAITS_REPLACED, succeed
from broker.capacity.supply import LaunchSupply
from broker.capacity.ways import Way, ways
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.claim_status import held_odcr
from broker.controllers.disruption.replacements import Demand, Pair, planned
from broker.controllers.disruption.rollouts import ReplaceWay
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.controllers.disruption.sources import DisruptionSources, types_of
from broker.controllers.provisioning.learned import LearnedRoom, RoomLearner, fingerprint
from broker.controllers.provisioning.observe import launchable
from broker.controllers.provisioning.offers import MachineMaker
from broker.controllers.provisioning.pools import template_labels
from broker.controllers.provisioning.usage import (
    NODES,
    LargestMachines,
    pool_limits,
    unreadable,
)
from broker.controllers.snapshot import Snapshot
from broker.placement.claims import BadClaim, in_gangs
from broker.placement.claims import planned as planned_claim
from broker.placement.daemons import DaemonOverhead
from broker.placement.filters import prepare
from broker.placement.machines import label_keys
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.packing_model import MachineOption
from broker.placement.packing_state import Supply, node_of
from broker.placement.quantities import CPU, MEMORY, PODS
from broker.placement.snapshot import PlacementSnapshot
from broker.reservations.drawing import draw_request
from providers.errors import ProviderError

MOST_TRIED: Final = 240  # pairs of type and zone
MOST_NAMED: Final = 3  # causes in a message
_OF_EVERY_TYPE: Final = frozenset({CPU, MEMORY, PODS, NODES})  # resources that each machine has
OVER_LIMITS: Final = "a replacement would exceed the limits of NodePool {}"


class Fitting(NamedTuple):
    """A machine that holds the pods, and the way to get it."""

    machine: MachineOption
    way: Way

    @property
    def open(self) -> bool:
        return self.way.out is None and (not self.way.odcr_id or self.way.free > 0)

    @property
    def cause(self) -> str:
        """Why the machine cannot be had."""
        if self.way.out is not None:
            return self.way.out.message
        return f"{self.way.option.pool.shown}: all slots of {self.way.odcr_id} are lent to others"


@dataclass(frozen=True, kw_only=True)
class MachineFinder:
    """Finds the machines for replacements in one pass. `learner` is kept from pass to pass.

    `observed`: EC2 and the reservations as the pass began.
    """

    caches: ClaimCaches
    sources: DisruptionSources
    snapshot: DisruptionSnapshot
    observed: Snapshot
    learner: RoomLearner

    @cached_property
    def waiting(self) -> Mapping[str, Claim]:
        """The claims that the launch loop plans now, by uid."""
        classes = self.classes
        claims = launchable(self.owned, self.caches.pods.find)
        return {uid: claim for uid, claim in claims.items() if claim.node_class in classes}

    @cached_property
    def owned(self) -> Sequence[NodeClaim]:
        return [claim for claim in self.caches.claims.list() if self.caches.owns(claim)]

    @cached_property
    def classes(self) -> Mapping[str, NodeClass]:
        """The classes that can launch now, by name."""
        refs = {pool.spec.template.spec.node_class_ref.name for pool in self.snapshot.pools.values()}
        refs |= {claim.spec.node_class_ref.name for claim in self.owned if claim.waits}
        return {name: ready.plan for name in refs if (ready := self.sources.launch_class(name))}

    @cached_property
    def supply(self) -> LaunchSupply:
        """What claims that wait, and those of nodes that may be replaced, can have beside successors.

        Raises ProviderError.
        """
        claims = {node.claim.uid: node.claim for node in self.snapshot.nodes}
        claims |= {claim.uid: claim for claim in self.owned if claim.uid in self.waiting}
        supply = self.supply_for(self.sources.slots.entitlements(claims, self.observed))
        return succeed([*self.waiting.values()], supply).rest(supply)

    def supply_for(self, entitlements: Entitlements) -> LaunchSupply:
        """Raises ProviderError."""
        return LaunchSupply(
            classes=self.classes,
            types=self.observed.types,
            inventory=self.observed.inventory,
            shortages=self.sources.shortages(),
            now=self.snapshot.now,
            entitlements=entitlements,
        )

    @cached_property
    def catalog(self) -> OptionCatalog:
        return OptionCatalog(self.supply)

    def find(self, needed: Demand, placement: PlacementSnapshot, way: ReplaceWay, *, unit: int = 1) -> Pair:
        """The machines in order that hold all pods together; those that cannot be had only beside others.

        A replacement evicts no borrower: a lent slot is full. `placement` is without the old node. `unit`:
        the number of nodes that are replaced together.
        """
        pool = needed.node.pool
        try:
            claim = planned(needed, uid=needed.node.claim.uid, name="replacement")
            if claim.node_class not in self.supply.classes:
                return replace(needed, problem=f"EC2NodeClass {claim.node_class} cannot launch now"), []
        except (InvalidRequirement, ProviderError) as error:
            return replace(needed, problem=str(error)), []
        fitting, unfit = self.fitting(needed, claim, placement)
        if (own := _own_slot(needed.node, fitting)) is not None and way != "launch-first":
            kept = [item for item in fitting if item.way.odcr_id and not item.way.borrows]
            if way == "auto" and _free_together(kept, needed.node.claim) >= unit:
                fitting = kept  # nothing is bought or borrowed beside a slot
            elif problem := self._no_successor(needed.node, own.way.odcr_id, claim, fitting):
                return replace(needed, problem=problem), []
            else:
                freed = Fitting(own.machine, replace(own.way, free=1, out=None))
                fitting = [freed, *(item for item in fitting if item is not own)]
                needed = replace(needed, slot=own.way.odcr_id)
        machines = _combinable(fitting, unfit)
        problem = "" if machines else _problem(pool.name, fitting)
        return replace(needed, unfit=tuple(unfit), problem=problem), machines

    def _no_successor(self, node: ManagedNode, slot: str, claim: Claim, fitting: Iterable[Fitting]) -> str:
        """Why its successor would have no machine if the node ended first: EC2 refused such launches lately,
        or counts another instance in its slot. Empty if it would, and for a node that ends in any case.
        """
        if node.claim.deleting:
            return ""
        if refusal := self.catalog.refusal(claim, slot):
            return refusal[0].message
        if any(item.open and not item.way.odcr_id for item in fitting):
            return ""
        odcrs, groups = self.observed.inventory.odcrs, self.observed.inventory.groups
        running = self.sources.instances().values()
        takers = [instance.id for instance in running if absorbs(odcrs[slot], instance, groups)]
        return f"once it ends, EC2 counts {min(takers)}, which runs outside, in {slot}" if takers else ""

    def fitting(
        self, needed: Demand, claim: Claim, placement: PlacementSnapshot
    ) -> tuple[list[Fitting], list[MachineOption]]:
        """The machines in order that hold all pods together, whether one is free or not, and the others.

        Of a following pool, only those in its usable slots: its loop would end any other node.
        """
        known = self.catalog.known(claim)
        labels = template_labels(needed.node.pool, claim.requirements)
        inventory, follower = self.supply.inventory, follows(needed.node.pool)
        maker = MachineMaker(needed.node.pool, labels, known, inventory, self._overhead, self._learned)
        repelling = {term.topology_key for terms in placement.repelling for term in terms}
        keys = sorted({*label_keys(needed.pods, placement.storage), *repelling})
        places: set[tuple[str, str]] = set()
        fits: dict[Hashable, bool] = {}
        fitting: list[Fitting] = []
        failed: list[MachineOption] = []
        for way in ways(claim, self.supply, self.catalog):
            place = (way.option.pool.instance_type, way.option.pool.zone)
            if place not in places and len(places) == MOST_TRIED:
                continue
            places.add(place)
            machine = maker.machine(way)
            room = tuple(sorted(machine.node.allocatable.items()))  # DaemonSets can differ, too
            kind = (room, *(machine.node.labels.get(key) for key in keys))
            if kind not in fits:
                fits[kind] = hosts(node_of(machine, claim.name), needed.pods, placement)
            if fits[kind] and (not follower or usable_for(claim, way.odcr_id, self.supply)):
                fitting.append(Fitting(machine, way))
            else:
                failed.append(machine)
        return fitting, failed

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
        """Whether the limits allow these replacements with all claims of now.

        Other loops may have created claims since the pass began.
        """
        supply = Supply(room={}, limits=self._limits_without([needed.node for needed, _ in pairs]))
        for _, machines in pairs:
            if not supply.within_limits(machines[0]):
                return False
            supply.take(machines[0])
        return True

    def not_placed(self, bodies: Iterable[Mapping[str, Any]]) -> str:
        """Why a plan of these new claims and all that wait now does not place each; empty if it does.

        Other loops may have made claims for the same slots since the pass began. A claim that takes over the
        slot of a node has that by name.
        """
        fresh = replace(self, observed=self.sources.slots.snapshot())
        new = [new_claim(body) for body in bodies]
        waiting = {claim.uid: claim for claim in fresh.owned if claim.uid in fresh.waiting}
        draws = {claim.uid: draw_request(claim) for claim in new}
        last = min((claim.priority for claim in fresh.waiting.values()), default=0) - 1
        try:
            supply = fresh.supply_for(self.sources.slots.entitlements(waiting, fresh.observed, draws))
            movers = [replace(planned_claim(claim), priority=last) for claim in new]
        except (BadClaim, ProviderError) as error:
            return str(error)
        result = plan(
            [*fresh.waiting.values(), *movers],
            supply,
            launched=in_gangs(fresh.owned),
            seconds=self.sources.plan_seconds,
        )
        unplaced = (item for item in result.unplaced if item.claim.uid in draws)
        return next((item.message for item in unplaced if item.reason != AWAITS_REPLACED), "")

    def _limits_without(self, nodes: Sequence[ManagedNode]) -> dict[str, dict[str, int]]:
        """Lists, by pool with readable limits, what it may add now once these nodes are gone.

        As in Karpenter, nodes that are replaced do not count (pkg/controllers/disruption/helpers.go).
        """
        pools = {node.pool.name: node.pool for node in nodes if not unreadable(node.pool)}
        leaving = {node.claim.uid for node in nodes}
        staying = [claim for claim in self.caches.claims.list() if claim.uid not in leaving]
        return pool_limits(pools.values(), staying, self.caches.nodes.list(), self._largest)

    @cached_property
    def _largest(self) -> LargestMachines:
        return LargestMachines(types_of(self.observed), self.sources.nodeclasses.plan)

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


def new_claim(body: Mapping[str, Any]) -> NodeClaim:
    """The claim of a body as it will be created; its name stands for its uid."""
    metadata = body["metadata"]
    return NodeClaim.decode({**body, "metadata": {**metadata, "uid": metadata["name"]}})


def _combinable(fitting: Sequence[Fitting], failed: Iterable[MachineOption]) -> list[MachineOption]:
    """The machines of which each type fits in each listed zone, with each capacity type; one can be had.

    A claim lists types, zones and capacity types by themselves, and may get any combination.
    """
    machines = [item.machine for item in fitting]
    unfit = {*map(_place, failed)} - {*map(_place, machines)}
    zones = {machine.zone for machine in machines}
    kinds = {machine.capacity_type for machine in machines}
    bad = {name for name, zone, kind in unfit if zone in zones and kind in kinds}
    good = [item for item in fitting if item.machine.instance_type not in bad]
    if any(item.open for item in good):
        return [item.machine for item in good]
    first = next((item.machine for item in fitting if item.open), None)
    return [machine for machine in machines if first and _place(machine)[1:] == _place(first)[1:]]


def _free_together(fitting: Iterable[Fitting], claim: NodeClaim) -> int:
    """The free slots for a unit of nodes; if these must be together, the most of one zone."""
    free = {(item.machine.zone, item.way.odcr_id): item.way.free for item in fitting if item.open}
    if names.GANG_DOMAIN not in claim.annotations:
        return sum(free.values())
    zones: Counter[str] = Counter()
    for (zone, _), count in free.items():
        zones[zone] += count
    return max(zones.values(), default=0)


def _own_slot(node: ManagedNode, fitting: Iterable[Fitting]) -> Fitting | None:
    """The machine in the slot that the node leaves, if its pods fit there; a borrowed slot is not held."""
    slot = held_odcr(node.claim)
    own = (item for item in fitting if item.way.odcr_id == slot and not item.way.borrows)
    return next(own, None) if slot else None


def _problem(pool: str, fitting: Sequence[Fitting]) -> str:
    if not fitting:
        return f"no instance type of NodePool {pool} holds its pods"
    causes = [*dict.fromkeys(item.cause for item in fitting)]
    more = f" and {len(causes) - MOST_NAMED} more" if len(causes) > MOST_NAMED else ""
    return f"NodePool {pool} has no machine for its pods now: {'; '.join(causes[:MOST_NAMED])}{more}"


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
