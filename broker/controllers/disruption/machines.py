"""Finds the machines that hold the pods of nodes that end, within the limits of their pools.

Invariant: a machine is one that provisioning would make, had by one of the ways that launches have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from broker.apis.hashes import class_hash
from broker.apis.karpenter import NodeClaim
from broker.apis.static_pools import follows
from broker.capacity.absorption import ClosedPlaces, absorbs, place_of
from broker.capacity.entitlement import Entitlements
from broker.capacity.model import Claim, NodeClass
from broker.capacity.option_catalog import OptionCatalog, awaited
from broker.capacity.plan import plan
from broker.capacity.reasons import OutbidOptions, unplaced
from broker.capacity.requirements import InvalidRequirement
from broker.capacity.static_nodes import usable_for
from broker.capacity.successors import AWAITS_REPLACED, Succession, owner_waits, succeed
from broker.capacity.supply import LaunchSupply
from broker.capacity.vacancy import Vacancy
from broker.capacity.ways import ways
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.claim_status import place_outside
from broker.controllers.disruption.choosing import (
    Fitting,
    beside_or_in,
    combinable,
    own_slot,
    problem_of,
)
from broker.controllers.disruption.host_trials import HostTrials
from broker.controllers.disruption.prices import NodeValues
from broker.controllers.disruption.replacements import Demand, Pair, planned
from broker.controllers.disruption.rollouts import ReplaceWay
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.controllers.disruption.sources import DisruptionSources, types_of
from broker.controllers.provisioning.learned import LearnedRoom, fingerprint
from broker.controllers.provisioning.observe import launchable
from broker.controllers.provisioning.offers import MachineMaker
from broker.controllers.provisioning.pools import template_labels
from broker.controllers.provisioning.usage import (
    NODES,
    LargestMachines,
    node_room,
    pool_limits,
    unreadable,
)
from broker.controllers.snapshot import Snapshot
from broker.placement.claims import BadClaim, in_gangs
from broker.placement.claims import planned as planned_claim
from broker.placement.daemons import DaemonOverhead
from broker.placement.model import PodInfo
from broker.placement.packing_model import MachineOption
from broker.placement.packing_state import Supply
from broker.placement.preferences import ignoring
from broker.placement.quantities import CPU, MEMORY, PODS
from broker.placement.snapshot import PlacementSnapshot
from broker.reservations.claims import occupied_odcr
from broker.reservations.drawing import draw_request
from providers.errors import ProviderError

_OF_EVERY_TYPE: Final = frozenset({CPU, MEMORY, PODS, NODES})  # resources that each machine has
OVER_LIMITS: Final = "a replacement would exceed the limits of NodePool {}"


@dataclass(frozen=True, kw_only=True)
class MachineFinder:
    """Finds the machines for replacements in one pass.

    `observed`: EC2 and the reservations as the pass began.
    """

    caches: ClaimCaches
    sources: DisruptionSources
    snapshot: DisruptionSnapshot
    observed: Snapshot

    @cached_property
    def waiting(self) -> Mapping[str, Claim]:
        """The claims that the launch loop plans now, by uid."""
        classes = self.classes
        claims = launchable(self.owned, self.caches.pods.find)
        return {uid: claim for uid, claim in claims.items() if claim.node_class in classes}

    @cached_property
    def owned(self) -> Sequence[NodeClaim]:
        return self.caches.owned()

    @cached_property
    def classes(self) -> Mapping[str, NodeClass]:
        """The classes that can launch now, by name."""
        refs = {pool.spec.template.spec.node_class_ref.name for pool in self.snapshot.pools.values()}
        refs |= {claim.spec.node_class_ref.name for claim in self.owned if claim.waits}
        return {name: ready.plan for name in refs if (ready := self.sources.launch_class(name))}

    @cached_property
    def _all(self) -> LaunchSupply:
        """What claims that wait, and those of nodes that may be replaced, can have.

        Raises ProviderError.
        """
        claims = {node.claim.uid: node.claim for node in self.snapshot.nodes}
        claims |= {claim.uid: claim for claim in self.owned if claim.uid in self.waiting}
        return self.supply_for(self.sources.slots.entitlements(claims, self.observed))

    @cached_property
    def _succession(self) -> Succession:
        """Raises ProviderError."""
        return succeed([*self.waiting.values()], self._all)

    @cached_property
    def supply(self) -> LaunchSupply:
        """What remains beside successors. Raises ProviderError."""
        return self._succession.rest

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
    def values(self) -> NodeValues:
        return NodeValues(sources=self.sources, types=types_of(self.observed), snapshot=self.snapshot)

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
        vacancy = self._vacancy(needed.node, unit) if way != "terminate-first" else None
        fitting, unfit = self.fitting(needed, claim, placement, vacancy=vacancy)
        own = own_slot(needed.node, fitting)
        if own is not None:
            left = self.observed.inventory.joining.get(own.way.odcr_id, 0)
            needed, fitting = beside_or_in(needed, own, fitting, way=way, unit=unit, left=left)
            if needed.slot and (problem := self._no_successor(needed.node, own, claim, fitting)):
                needed = replace(needed, problem=problem)
            if needed.problem:
                return needed, []
        machines = combinable(fitting, unfit)
        problem = "" if machines else problem_of(pool.name, fitting)
        if not fitting and not (options := self.catalog.candidates(claim)).options:
            problem = unplaced(claim, options, OutbidOptions(self.supply.inventory)).message
        return replace(needed, unfit=tuple(unfit), problem=problem), machines

    def _vacancy(self, node: ManagedNode, unit: int) -> Vacancy | None:
        """The slot that the node leaves, if a successor may run beside it for a time."""
        room = node_room(node.pool, self.caches.claims.list()) if node.static else None
        slot = occupied_odcr(node.claim)
        if not slot or (room is not None and room < unit):
            return None
        return Vacancy(odcr_id=slot, closed=self._closed, supply=self.supply)

    @cached_property
    def _closed(self) -> ClosedPlaces:
        """Where EC2 must not count the successors: in slots that waiting claims are promised, or need."""
        succession = self._succession
        stuck = {self.catalog.candidates(claim) for claim in succession.others}
        kept = succession.odcr_ids | self.supply.inventory.left_ids
        return ClosedPlaces(kept | awaited(stuck), self.supply)

    def _no_successor(self, node: ManagedNode, own: Fitting, claim: Claim, fitting: Iterable[Fitting]) -> str:
        """Why its successor would have no machine if the node ended first: EC2 refused such launches lately,
        or counts another instance in its slot, or the slot's owner waits for it. Empty if it would, and for a
        node that ends in any case.
        """
        if node.claim.deleting:
            return ""
        slot = own.way.odcr_id
        if refusal := self.catalog.refusal(claim, slot):
            return refusal[0].message
        if any(item.open and not item.way.odcr_id for item in fitting):
            return ""
        if own.way.borrows and (waits := self._owner_waits(slot)):
            return f"once it ends, {waits} of the owner gets its slot of {slot}"
        odcr, groups = self.observed.inventory.odcrs[slot], self.observed.inventory.groups
        running = self.sources.instances()
        if takers := [id_ for id_, instance in running.items() if absorbs(odcr, instance, groups)]:
            return f"once it ends, EC2 counts {min(takers)}, which runs outside, in {slot}"
        # Claims of another launcher have instances that EC2 never lists as this cluster's.
        beside = (c for c in self.owned if not c.deleting and place_outside(c) == place_of(odcr))
        new = [claim.instance_id for claim in beside if claim.instance_id not in running]
        return f"once it ends, EC2 may count {min(new)}, which was just launched, in {slot}" if new else ""

    def _owner_waits(self, slot: str) -> str:
        return owner_waits(slot, self._succession.others, self.catalog, self.supply)

    def fitting(
        self,
        needed: Demand,
        claim: Claim,
        placement: PlacementSnapshot,
        *,
        vacancy: Vacancy | None = None,
    ) -> tuple[list[Fitting], list[MachineOption]]:
        """The machines in order that hold all pods together, whether one is free or not, and the others.

        Of a following pool, only those in its usable slots: its loop would end any other node. `vacancy`: the
        slot that the node leaves, if one outside may have it then.
        """
        pool = needed.node.pool
        trials = HostTrials(
            pods=needed.pods,
            placement=placement,
            maker=MachineMaker(
                pool,
                template_labels(pool, claim.requirements),
                self.catalog.known(claim),
                self.supply.inventory,
                self._overhead,
                self._learned,
            ),
            usable=lambda slot: not follows(pool) or bool(slot and usable_for(claim, slot, self.supply)),
        )
        candidates = self.catalog.hosting(claim, lambda option: trials.machine(option) is not None)
        fitting = [
            Fitting(machine, way)
            for way in ways(claim, candidates, self.supply, vacancy=vacancy)
            if (machine := trials.machine(way.option, way.odcr_id))
        ]
        return fitting, trials.failed

    def counted(self, pods: Iterable[PodInfo]) -> Iterable[PodInfo]:
        """The pods, without preferences if they do not count."""
        return pods if self.sources.reads.settings.respects_preferences else map(ignoring, pods)

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

        A claim may get any machine of its list: see `Supply.larger`.
        """
        olds = [node for needed, _ in pairs for node in needed.nodes]
        supply = Supply(room={}, limits=self._limits_without(olds))
        firsts: list[MachineOption | None] = []
        for _, machines in pairs:
            first = next(filter(supply.within_limits, machines), None)
            if first is not None:
                supply.take(first)
            firsts.append(first)
        larger = supply.larger(filter(None, firsts))
        return [
            (needed, [item for item in machines if first and item.uses_no_more(first, larger[first.pool])])
            for (needed, machines), first in zip(pairs, firsts, strict=True)
        ]

    def admit(self, pairs: Sequence[Pair]) -> bool:
        """Whether the limits allow these replacements with all claims of now.

        Other loops may have created claims since the pass began.
        """
        olds = [node for needed, _ in pairs for node in needed.nodes]
        supply = Supply(room={}, limits=self._limits_without(olds))
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
            seconds=self.sources.reads.settings.plan_seconds,
        )
        unplaced = (item for item in result.unplaced if item.claim.uid in draws)
        return next((item.message for item in unplaced if item.reason != AWAITS_REPLACED), "")

    def _limits_without(self, nodes: Sequence[ManagedNode]) -> dict[str, dict[str, int]]:
        """Lists, by pool with readable limits, what it may add now once these nodes are gone.

        As in Karpenter, nodes that are replaced do not count (pkg/controllers/disruption/helpers.go).
        """
        limited = (node.pool for node in nodes if node.pool.spec.limits and not unreadable(node.pool))
        pools = {pool.name: pool for pool in limited}
        if not pools:
            return {}
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
        return self.sources.reads.learner.observe(
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
