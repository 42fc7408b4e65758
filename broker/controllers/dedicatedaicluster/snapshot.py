"""The snapshot that decisions about dedicated clusters start from.

Invariant: quota is counted against the judged specs of the reservation snapshot, and every holder is counted.
Clusters count by their status, until their instances are gone. Without Kueue, other claims count that draw
from a reservation and have an instance. Of these a non-preemptible claim is never preempted, and a claim in
a slot of its own reservation only within that reservation. A cluster's own claims count as part of it. Its
priority stays as it was while no priority class defines it. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ResourceFlavor
from broker.apis.meta import Object, condition
from broker.apis.ome import ReservationSpec
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.dedicatedaicluster.demand import ClusterDemand, DemandError, cluster_demand
from broker.controllers.snapshot import Snapshot
from broker.kube.cache import Cache, Guard
from broker.quota.cycle import Head
from broker.quota.entitled import AdmissionDecision, AdmissionPhase, entitle, held_of
from broker.quota.flavors import Flavor
from broker.quota.joint import GROWTH, QuotaState
from broker.quota.model import AdmittedWorkload, Amounts
from broker.quota.resolve import ReservationNames, UnresolvedName
from broker.quota.slot_model import CLAIM
from broker.quota.usage import ReservationKey
from broker.reservations.claims import borrows, occupied_queues, unowned
from broker.reservations.cluster_admission import ClusterAdmission, by_flavor, held
from broker.reservations.queues import queues
from broker.reservations.spec import Reservation

PREEMPTED: Final = "Preempted"  # a condition of a cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A cluster, its demand and its reservation.

    `barred`: the reason why that reservation gives no quota; `full`: why it gives none beyond what is held.
    """

    cluster: DedicatedAICluster
    profile: DedicatedAIClusterProfile | None
    demand: ClusterDemand | DemandError
    reserved: ReservationKey | UnresolvedName
    held: ClusterAdmission | None
    barred: str = ""
    full: str = ""
    priority: int = 0

    @property
    def terminating(self) -> bool:
        return terminating(self.cluster, self.reserved)

    @property
    def request(self) -> Head | None:
        """The cluster's open request: all, or more than it holds; None if there is none."""
        if isinstance(self.demand, DemandError) or isinstance(self.reserved, UnresolvedName):
            return None
        if self.barred or self.full:
            return None
        has = held_of(self.held.usage) if self.held else {}
        if self.terminating:
            return None
        if all(value <= has.get(name, 0) for name, value in self.demand.requests.items()):
            return None
        return Head(
            name=self.cluster.name,
            queue=self.reserved.queue,
            request=self.demand.wants,
            priority=self.priority,
            queued=_queued(self.cluster),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """`reservations`: all that exist; `specs`: those judged without problems."""

    reservations: Mapping[ReservationKey, Reservation]
    specs: Mapping[ReservationKey, ReservationSpec]
    flavors: Mapping[str, ResourceFlavor]
    clusters: Sequence[ClusterState]
    other_holders: Sequence[AdmittedWorkload]

    def rules(self, state: ClusterState) -> list[Object]:
        """The objects that decide the size of a cluster with quota. Without Kueue, flavors are no objects."""
        held = by_flavor(state.held.usage) if state.held else ()
        decisive = (state.cluster, state.profile, *map(self.flavors.get, held))
        return [obj for obj in decisive if obj is not None and obj.uid]

    def permanent_refusal(self, state: ClusterState) -> AdmissionDecision | None:
        """The refusal of a request that would not fit empty queues; None if it would fit."""
        if (request := state.request) is None:
            return None
        result = entitle(queues(self.specs), holders=(), requests=(request,), flavors=self._flavors)
        decision = result.decisions[request.name]
        return decision if decision.phase is AdmissionPhase.NEVER else None

    @property
    def _flavors(self) -> Mapping[str, Flavor]:
        return {name: quota_flavor(flavor) for name, flavor in self.flavors.items()}

    def quota(
        self,
        *,
        backed_quota: Callable[[ClusterState], Amounts | None] = lambda _: None,
        on_own_slots: Collection[str] = (),
        occupied_queues: Callable[[ClusterState], frozenset[str]] = lambda _: frozenset(),
        launching: Iterable[AdmittedWorkload] = (),
    ) -> QuotaState:
        """The input of the quota decision.

        `backed_quota`: the part of a cluster's quota that has instances, unless that is all of it.
        `on_own_slots`: clusters only in slots of their own reservation. `occupied_queues`: the queues that
        own a cluster's slots. `launching`: other claims that will have an instance soon.
        """
        clusters = [
            part
            for state in self.clusters
            if state.held is not None
            for part in _parts(
                state,
                state.held,
                backed_quota(state),
                on_own_slots=state.cluster.name in on_own_slots,
                occupied_queues=occupied_queues(state),
            )
        ]
        return QuotaState(
            queues=queues(self.specs),
            flavors=self._flavors,
            holders=[*clusters, *self.other_holders, *launching],
            requests=[request for state in self.clusters if (request := state.request) is not None],
        )


def _parts(
    state: ClusterState,
    admission: ClusterAdmission,
    backed: Amounts | None,
    *,
    on_own_slots: bool,
    occupied_queues: frozenset[str],
) -> Iterable[AdmittedWorkload]:
    """A cluster as one quota holder, or with its growth as a second one, which is evicted first."""
    whole = AdmittedWorkload(
        name=state.cluster.name,
        queue=admission.reserved.queue,
        usage=admission.usage,
        priority=state.priority,
        queued=_queued(state.cluster),
        reserved=admission.since.timestamp(),
        evicted=state.terminating,
        on_own_slots=on_own_slots,
        occupied_queues=occupied_queues,
    )
    if backed is None or state.terminating or state.request is not None:
        yield whole
        return
    more = {key: value - backed.get(key, 0) for key, value in admission.usage.items()}
    yield replace(whole, usage=backed)
    yield replace(
        whole,
        name=f"{whole.name}{GROWTH}",
        usage={key: value for key, value in more.items() if value},
        reserved=float("inf"),
        on_own_slots=False,
        occupied_queues=frozenset(),
    )


def build_snapshot(
    snapshot: Snapshot,
    profiles: Cache[DedicatedAIClusterProfile],
    claims: Sequence[NodeClaim],
    caches: ClaimCaches,
    *,
    priority: Callable[[str], int | None],
    now: datetime,
    guard: Guard[DedicatedAICluster] = nullcontext,
) -> ClusterSnapshot:
    """Builds the clusters' part of a decision. `claims`: those that draw from a reservation."""
    known, specs, barred = snapshot.reservations, snapshot.specs, snapshot.barred
    flavors = snapshot.resource_flavors
    by_name = ReservationNames(known)

    def state_of(cluster: DedicatedAICluster) -> ClusterState:
        profile = profiles.get(cluster.spec.profile)
        demand = cluster_demand(cluster, profile)
        reserved = by_name.resolve(cluster.spec.capacity_reservation_id)
        reservation = None if isinstance(reserved, UnresolvedName) else known[reserved]
        named = demand.priority_class if isinstance(demand, ClusterDemand) else ""
        named_by = named or (reservation.spec.priority_class_name if reservation else "")
        value, admission = priority(named_by), held(cluster)
        unknown = isinstance(demand, DemandError) or (value is None and (named_by or reservation is None))
        if named and value is None and admission is None:
            demand = DemandError(
                "PriorityClassNotFound",
                f"spec.priorityClassName: there is no WorkloadPriorityClass and no PriorityClass {named}: "
                "create it, or name another",
            )
        return ClusterState(
            cluster=cluster,
            profile=profile,
            demand=demand,
            reserved=reserved,
            held=admission,
            barred=barred.get(reserved, "") if isinstance(reserved, ReservationKey) else "",
            full=snapshot.full.get(reserved, "") if isinstance(reserved, ReservationKey) else "",
            priority=admission.priority if unknown and admission else value or 0,
        )

    states: list[ClusterState] = []
    for cluster in sorted(snapshot.clusters, key=lambda cluster: cluster.name):
        with guard(cluster):
            if _is_managed(cluster):
                states.append(state_of(cluster))
    return ClusterSnapshot(
        reservations=known,
        specs=specs,
        flavors=flavors,
        clusters=states,
        other_holders=[*_other_holders(claims, snapshot, caches, now)],
    )


def quota_flavor(flavor: ResourceFlavor) -> Flavor:
    """The flavor in the form that quota assignment reads."""
    spec = flavor.spec
    return Flavor(
        name=flavor.name, labels=spec.node_labels, taints=spec.node_taints, tolerations=spec.tolerations
    )


def terminating(cluster: DedicatedAICluster, reserved: ReservationKey | UnresolvedName) -> bool:
    """Whether a cluster is to give its quota back: it is deleted, moved, or marked as preempted.

    A cluster that gave everything back, and waits again, still has its condition Preempted.
    """
    now, admission = condition(cluster.status.conditions, PREEMPTED), held(cluster)
    if admission is None or cluster.deleting:
        return cluster.deleting
    moved = isinstance(reserved, ReservationKey) and reserved != admission.reserved
    return moved or (now is not None and now.status == "True")


def _is_managed(cluster: DedicatedAICluster) -> bool:
    """Whether the broker manages the cluster: it names a reservation, holds quota, or has our finalizer."""
    return bool(
        cluster.spec.capacity_reservation_id
        or cluster.status.admission
        or names.RESERVED_FINALIZER in cluster.metadata.finalizers
    )


def _other_holders(
    claims: Sequence[NodeClaim], snapshot: Snapshot, caches: ClaimCaches, now: datetime
) -> Iterable[AdmittedWorkload]:
    """The claims outside clusters that hold quota."""
    by_name, owners = {claim.name: claim for claim in claims}, snapshot.odcrs.owned.owner
    for reserved, holders in snapshot.claim_holders(claims).items():
        for holder in holders:
            claim = by_name[holder.name]
            if unowned(claim, reserved, owners):
                continue
            yield AdmittedWorkload(
                name=f"{CLAIM}{holder.name}",
                queue=reserved.queue,
                usage=holder.usage,
                priority=holder.priority,
                reserved=holder.since,
                evicted=claim.deleting,
                non_preemptible=caches.non_preemptible(claim, now),
                on_own_slots=not borrows(claim, reserved, owners),
                occupied_queues=occupied_queues((claim,), owners),
            )


def _queued(cluster: DedicatedAICluster) -> float:
    created = cluster.metadata.creation_timestamp
    return created.timestamp() if created else 0.0
