"""Decides which claims pending pods need, and which claims in flight give way to them.

Both the provisioning loop and `capacity-broker plan -f` decide with it. Existing nodes and claims in flight
take pods first, and the others are packed into new claims.

Invariant: a claim gives way only if all its pods get room without it, in this decision. So a claim that EC2
refuses is kept while nothing else could be launched, and each step to another machine follows a new refusal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, pods_of
from broker.capacity.entitlement import Entitlements
from broker.capacity.supply import LaunchSupply
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.controllers.provisioning.claims import claim_name, manifest, spent
from broker.controllers.provisioning.elastic_sizes import needed_of, started
from broker.controllers.provisioning.existing import ExistingNodes, PodAssignment, assign, existing
from broker.controllers.provisioning.learned import LearnedRoom, difference
from broker.controllers.provisioning.observe import LaunchForecast, forecast
from broker.controllers.provisioning.offers import Offers, machine_draws, offers
from broker.controllers.provisioning.pool_reasons import PoolFault, empty_pools, pool_reasons
from broker.controllers.provisioning.pools import ServedPool
from broker.controllers.provisioning.preferences import Drops, by_preference
from broker.controllers.provisioning.refused import in_flight, refused_long
from broker.controllers.provisioning.usage import LargestMachines, limit_amounts, pool_limits
from broker.placement.claims import in_gangs, waiting_since
from broker.placement.gangs import GroupSizes
from broker.placement.model import NodeTaint, PodInfo
from broker.placement.packing import pack
from broker.placement.packing_model import PackedBin, Packing, PendingPod
from broker.placement.pool_room import TypeRoom
from broker.placement.preferences import drops_of, ignoring, preferring
from broker.placement.reading import node_taints
from broker.placement.storage import Storage
from broker.placement.taints import SOFT
from broker.reservations.drawing import DrawRequest

Entitle = Callable[[Mapping[str, NodeClaim], Mapping[str, DrawRequest]], Entitlements]

MOST_NAMED: Final = 3  # of the machines that are too small for a pod
ROUNDS: Final = 3  # of the search for claims that may give way
FOLLOWS: Final = "the gang {gang} launches the machines that it needs first; those for its other pods follow"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningCluster:
    """The cluster as a decision reads it. `pods`: all that exist; `claims`: all NodeClaims.

    `daemons`: a pod of each DaemonSet. `learned`: the room that nodes really have. `group_size`: the minimum
    of a PodGroup, by `namespace/name`.
    """

    pods: Sequence[Pod]
    claims: Sequence[NodeClaim]
    occupancy: NodeOccupancy
    daemons: Sequence[PodInfo]
    learned: LearnedRoom
    storage: Storage
    group_size: GroupSizes
    pools: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchState:
    """The launches under way: EC2's supply, and the entitlements to slots.

    `owns`: whether the broker launches a claim. `launching`: whether a call for a claim (by uid) is under
    way.
    """

    supply: LaunchSupply
    entitle: Entitle
    owns: Callable[[NodeClaim], bool]
    launching: Callable[[str], bool]

    def supply_for(
        self, claims: Iterable[NodeClaim], machines: Mapping[str, DrawRequest] = {}
    ) -> LaunchSupply:
        """The supply with the entitlements of these claims, and of machines that may be opened, by uid."""
        by_uid = {claim.uid: claim for claim in claims}
        return replace(self.supply, entitlements=self.entitle(by_uid, machines))

    @property
    def largest(self) -> LargestMachines:
        """The largest machine of a claim without an instance."""
        return LargestMachines(self.supply.types, self.supply.classes.get)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewClaim:
    """A claim to create, and its pods."""

    packed: PackedBin
    name: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningDecision:
    """`assigned`: the pods that nodes and claims in flight take. `reasons`: why pods wait, by key.

    `released`: claims in flight; their pods get room elsewhere. `packing`: of the others; None if no pod was
    left. `empty`: as `empty_pools`; None if no pod needed a machine. `slots`: whether machines in
    free slots were on offer.
    """

    assigned: PodAssignment
    reasons: Mapping[str, str]
    created: Sequence[NewClaim] = ()
    released: Sequence[NodeClaim] = ()
    packing: Packing | None = None
    empty: Mapping[str, str] | None = None
    slots: bool = False

    @property
    def held(self) -> Set[str]:
        """The pods that a reason of their own keeps from any machine."""
        return self.assigned.held | (self.packing.held if self.packing is not None else frozenset())


@dataclass(frozen=True, kw_only=True)
class ProvisioningPlanner:
    """`launches` is called only if it is needed, since it reads EC2's instance types.

    `seconds` bound the packing; `timer` returns seconds since some moment. `respect`: whether preferences of
    pods count. `with_room`: other pods, for which room is kept; their gangs need no place for them.
    """

    pools: Sequence[ServedPool]
    pending: Sequence[PendingPod]
    cluster: ProvisioningCluster
    launches: Callable[[], LaunchState]
    now: datetime
    seconds: float
    timer: Callable[[], float]
    faults: Sequence[PoolFault] = ()
    respect: bool = True
    with_room: Sequence[PendingPod] = ()

    def decide(self) -> ProvisioningDecision:
        """Raises ProviderError."""
        without = self._refused()
        for _ in range(ROUNDS):
            decision = self._decided(without)
            kept = _kept(without, decision)
            if not kept:
                return decision
            without = [claim for claim in without if claim.name not in kept]
        return self._decided(())

    def _refused(self) -> list[NodeClaim]:
        """The claims in flight that give way if their pods find room elsewhere; a gang's together."""
        pending_keys = {pod.key for pod in self.pending}
        candidates = [
            c for c in self.cluster.claims if in_flight(c) and not pending_keys.isdisjoint(pods_of(c))
        ]
        refused = [claim for claim in candidates if refused_long(claim, self.now)]
        if not refused:
            return []
        gangs = {claim.gang for claim in refused if claim.gang}
        candidates = [
            claim
            for claim in candidates
            if (claim.gang in gangs or claim in refused)
            and self._state.owns(claim)
            and not self._state.launching(claim.uid)
            and claim.uid in self._forecast.stuck
        ]
        all_ = Counter(claim.gang for claim in filter(in_flight, self.cluster.claims))
        selected = Counter(claim.gang for claim in candidates)
        return [claim for claim in candidates if not claim.gang or all_[claim.gang] == selected[claim.gang]]

    def _decided(self, without: Sequence[NodeClaim]) -> ProvisioningDecision:
        """The decision as if these claims did not exist."""
        gone = {claim.name for claim in without}
        cluster = self.cluster
        claims = [claim for claim in cluster.claims if claim.name not in gone]
        known = existing(
            cluster.occupancy, claims, cluster.daemons, cluster.storage, cluster.learned, self.now
        )
        steps = {pod.key: count for pod in self._pending if (count := drops_of(pod.info, self._soft_taints))}
        return by_preference(steps, partial(self._planned, without, claims, known))

    def _planned(
        self,
        without: Sequence[NodeClaim],
        claims: Sequence[NodeClaim],
        known: ExistingNodes,
        drops: Drops,
    ) -> ProvisioningDecision:
        """The same beside the other claims, without some preferences of pods."""
        cluster = self.cluster
        prefer = partial(self._preferring, drops)
        assigned = assign(self._pending, known, cluster.pods, cluster.group_size, self.now, prefer)
        assigned = self._beside_launches(assigned, claims)
        if not assigned.unassigned:
            return ProvisioningDecision(assigned=assigned, reasons=assigned.reasons, released=without)
        offered = self._offers(assigned.unassigned)
        packing = pack(
            assigned.unassigned,
            [*offered.options, *offered.full],
            room=offered.room,
            refused=offered.refused,
            limits=pool_limits(
                [pool.pool for pool in self.pools], claims, cluster.occupancy.nodes, self._state.largest
            ),
            whole_limits={pool.pool.name: limit_amounts(pool.pool.spec.limits) for pool in self.pools},
            needed=self._needed(assigned),
            snapshot=assigned.snapshot,
            seconds=self.seconds,
            timer=self.timer,
        )
        return ProvisioningDecision(
            assigned=replace(assigned, taken={**assigned.taken, **packing.taken}),
            reasons={**assigned.reasons, **self._explained(packing, assigned.unassigned, offered)},
            created=self._created(packing, offered, claims, without),
            released=without,
            packing=packing,
            empty=empty_pools(assigned.unassigned, offered, [pool.pool for pool in self.pools], self._room),
            slots=any(offered.room.get(option.source) for option in offered.options if option.source),
        )

    def _preferring(self, drops: Drops, pod: PendingPod) -> PendingPod:
        if pod.key not in drops:
            return pod
        return replace(pod, info=preferring(pod.info, drops[pod.key], self._soft_taints))

    def _beside_launches(self, assigned: PodAssignment, claims: Sequence[NodeClaim]) -> PodAssignment:
        """Holds back the pods that a gang does not need while claims of it have no instance: these launch
        together, and would wait for more of them.
        """
        sizes = {pod.gang: pod.gang_size for pod in assigned.unassigned if pod.gang_size}
        launching = {claim.gang for claim in of_gangs(claims, sizes.keys())}
        before = self._placed(assigned, launching) if launching else Counter[str]()
        left = {gang: sizes[gang] - before[gang] for gang in launching}
        unassigned: list[PendingPod] = []
        reasons = dict(assigned.reasons)
        for pod in assigned.unassigned:
            if left.get(pod.gang, 1) <= 0:
                reasons[pod.key] = FOLLOWS.format(gang=pod.gang)
                continue
            unassigned.append(pod)
            if pod.gang in left:
                left[pod.gang] -= 1
        return replace(assigned, unassigned=unassigned, reasons=reasons)

    def _placed(self, assigned: PodAssignment, gangs: Iterable[str]) -> Counter[str]:
        """The number of pods of each gang that have a node or a claim."""
        without = {pod.key for pod in assigned.unassigned} | assigned.reasons.keys()
        bound = started(gangs, self.cluster.occupancy.pods, self.cluster.group_size)
        placed = (pod for pod in (*self.pending, *self.with_room) if pod.key not in without)
        return bound + Counter(pod.gang for pod in placed)

    def _needed(self, assigned: PodAssignment) -> dict[str, int]:
        """How many pods of each gang without a node must get a machine, where that is less than all."""
        waiting = {pod.gang: pod for pod in assigned.unassigned if pod.gang_size}
        counts = Counter(pod.gang for pod in assigned.unassigned)
        before = self._placed(assigned, waiting)
        needed = {gang: needed_of(pod, counts[gang], before) for gang, pod in waiting.items()}
        return {gang: least for gang, least in needed.items() if least < counts[gang]}

    def _explained(self, packing: Packing, pods: Sequence[PendingPod], offered: Offers) -> Mapping[str, str]:
        every = [pool.pool for pool in self.pools]
        reasons = pool_reasons(
            packing,
            pods,
            offered,
            every,
            self.faults,
            self.cluster.storage,
            self.cluster.pools,
            self._room,
        )
        return _with_smaller(reasons, pods, offered)

    def _since(self, packed: PackedBin, before: Sequence[NodeClaim]) -> datetime | None:
        """Since when the pods, or the pods of their gang, wait with these claims; None if with none."""
        keys, gang = {pod.key for pod in packed.pods}, packed.pods[0].gang
        begun = (
            waiting_since(claim, self._pods.get)
            for claim in before
            if (gang and claim.gang == gang) or not keys.isdisjoint(pods_of(claim))
        )
        return min(filter(None, begun), default=None)

    @cached_property
    def _pods(self) -> Mapping[str, Pod]:
        return {pod.key: pod for pod in self.cluster.pods}

    @cached_property
    def _pending(self) -> Sequence[PendingPod]:
        """The pods, without preferences if they do not count."""
        if self.respect:
            return self.pending
        return [replace(pod, info=ignoring(pod.info)) for pod in self.pending]

    @cached_property
    def _soft_taints(self) -> Sequence[NodeTaint]:
        """The taints of NodePools that pods prefer to stay off."""
        taints = (taint for pool in self.pools for taint in pool.pool.spec.template.spec.taints)
        return [taint for taint in node_taints(taints) if taint.effect == SOFT]

    @cached_property
    def _state(self) -> LaunchState:
        return self.launches()

    @cached_property
    def _room(self) -> TypeRoom:
        return TypeRoom(lambda: self._state.supply.types)

    @cached_property
    def _waiting(self) -> Sequence[NodeClaim]:
        return [claim for claim in self.cluster.claims if claim.waits and self._state.owns(claim)]

    @cached_property
    def _forecast(self) -> LaunchForecast:
        """The results of a launch plan for the claims that wait now."""
        state = self._state
        return forecast(
            self._waiting,
            state.supply_for(self._waiting),
            launched=in_gangs(self.cluster.claims),
            pod=self._pods.get,
            seconds=self.seconds,
            timer=self.timer,
        )

    def _offers(self, pods: Sequence[PendingPod]) -> Offers:
        supply = self._state.supply_for(self._waiting, machine_draws(self.pools, pods))
        return offers(
            self.pools,
            pods,
            self.cluster.daemons,
            replace(supply, entitlements=supply.entitlements.after(self._forecast.drawn)),
            taken=self._forecast.taken,
            reclaimed=self._forecast.reclaimed,
            learned=self.cluster.learned,
        )

    def _created(
        self, packing: Packing, offered: Offers, claims: Sequence[NodeClaim], without: Sequence[NodeClaim]
    ) -> list[NewClaim]:
        gangs = Counter(item.pods[0].gang for item in packing.bins)
        # The claims that an earlier run made before it was stopped.
        gangs.update(claim.annotations[names.GANG] for claim in of_gangs(claims, gangs.keys()))
        used_names = {claim.name for claim in claims if spent(claim)} | {claim.name for claim in without}
        # Those that a run before deleted belong to the claims that give way.
        before = [*without, *(claim for claim in claims if claim.deleting and not claim.status.provider_id)]
        by_name = {pool.pool.name: pool for pool in self.pools}
        new_claims = []
        for packed in packing.bins:
            pool = by_name[packed.option.pool]
            name = claim_name(pool.pool.name, (pod.info.uid for pod in packed.pods), used_names)
            body = manifest(
                name,
                packed,
                pool,
                offered.options,
                gang_claims=gangs[packed.pods[0].gang],
                since=self._since(packed, before),
            )
            new_claims.append(NewClaim(packed=packed, name=name, body=body))
        return new_claims


def of_gangs(claims: Sequence[NodeClaim], gangs: Set[str]) -> list[NodeClaim]:
    """The claims for pods of these gangs that have no instance yet."""
    return [
        claim
        for claim in claims
        if claim.gang in gangs - {""}
        and names.PODS in claim.annotations
        and not claim.status.provider_id
        and not claim.deleting
    ]


def _with_smaller(
    reasons: Mapping[str, str], pods: Sequence[PendingPod], offered: Offers
) -> Mapping[str, str]:
    """The reasons with the machines that turned out too small for the pod."""
    infos = {pod.key: pod.info for pod in pods} if offered.smaller else {}
    explained = dict(reasons)
    for key, text in reasons.items() if infos else ():
        lacks = (
            difference(infos[key], sort, item.expected, item.room, item.node)
            for sort, item in sorted(offered.smaller.items())
        )
        explained[key] = "; ".join([text, *islice(filter(None, lacks), MOST_NAMED)])
    return explained


def _kept(without: Sequence[NodeClaim], decision: ProvisioningDecision) -> Set[str]:
    """The names of the claims that cannot give way: a pod of theirs, or of their gang, gets no other room."""
    needed = [claim for claim in without if not decision.reasons.keys().isdisjoint(pods_of(claim))]
    gangs = {claim.gang for claim in needed if claim.gang}
    return {claim.name for claim in needed} | {claim.name for claim in without if claim.gang in gangs}
