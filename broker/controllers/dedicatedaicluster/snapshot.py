"""The snapshot that decisions about dedicated clusters start from.

Invariant: quota is counted against the judged specs of the reservation snapshot, and every holder is counted.
Clusters count by their status, until their instances are gone. Without Kueue, other claims count that draw
from a reservation and have an instance. Of these a claim that is `firm` is never preempted, and a claim in a
slot of its own reservation (`home`) only within that reservation. A cluster's own claims count as part
of it. Its priority stays as it was while no priority class defines it. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import ReservationSpec
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.controllers.dedicatedaicluster.demand import ClusterDemand, DemandError, cluster_demand
from broker.controllers.dedicatedaicluster.drawing import drawing
from broker.controllers.dedicatedaicluster.flavors import rule
from broker.controllers.dedicatedaicluster.status import terminating
from broker.controllers.snapshot import Snapshot
from broker.kube.cache import Cache
from broker.quota.assign import SharingRules
from broker.quota.entitled import AdmissionDecision, AdmissionPhase, ClusterRequest, entitle, held_of
from broker.quota.joint import GROWTH, QuotaState
from broker.quota.model import AdmittedWorkload, Amounts, Strategy
from broker.quota.resolve import ReservationNames, UnresolvedName
from broker.quota.slot_model import CLAIM
from broker.quota.usage import Reserved
from broker.reservations.cluster_admission import ClusterAdmission, held
from broker.reservations.queues import queues
from broker.reservations.spec import Reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A cluster, its demand and its reservation. `barred`: the reason why that reservation gives no quota."""

    cluster: DedicatedAICluster
    profile: DedicatedAIClusterProfile | None
    wanted: ClusterDemand | DemandError
    reserved: Reserved | UnresolvedName
    held: ClusterAdmission | None
    barred: str = ""
    priority: int = 0

    @property
    def leaves(self) -> bool:
        return terminating(self.cluster, self.reserved)

    @property
    def want(self) -> ClusterRequest | None:
        """The cluster's open request: all, or more than it holds; None if there is none."""
        if isinstance(self.wanted, DemandError) or isinstance(self.reserved, UnresolvedName) or self.barred:
            return None
        has = held_of(self.held.usage) if self.held else {}
        if self.leaves and (self.held or self.cluster.deleting):
            return None
        if all(value <= has.get(name, 0) for name, value in self.wanted.requests.items()):
            return None
        return ClusterRequest(
            name=self.cluster.name,
            queue=self.reserved.queue,
            pods=self.wanted.pods,
            priority=self.priority,
            queued=_queued(self.cluster),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """`reservations`: all that exist; `specs`: those judged without problems."""

    reservations: Mapping[Reserved, Reservation]
    specs: Mapping[Reserved, ReservationSpec]
    flavors: Mapping[str, ResourceFlavor]
    asking: Sequence[ClusterState]
    others: Sequence[AdmittedWorkload]
    strategies: Sequence[Strategy] = ()

    def never(self, one: ClusterState) -> AdmissionDecision | None:
        """The refusal of a request that would not fit empty queues; None if it would fit."""
        if (want := one.want) is None:
            return None
        made, cohorts = queues(self.specs)
        found = entitle(made, cohorts, holders=(), wants=(want,), rules=self._rules).decisions[want.name]
        return found if found.phase is AdmissionPhase.NEVER else None

    @property
    def _rules(self) -> SharingRules:
        flavors = {name: rule(one) for name, one in self.flavors.items()}
        if not self.strategies:
            return SharingRules(flavors=flavors)
        return SharingRules(flavors=flavors, fair=True, strategies=self.strategies)

    def quota(
        self,
        *,
        settled: Callable[[ClusterState], Amounts | None] = lambda _: None,
        homes: Collection[str] = (),
        at: Callable[[ClusterState], frozenset[str]] = lambda _: frozenset(),
        launching: Iterable[AdmittedWorkload] = (),
    ) -> QuotaState:
        """The input of the quota decision. `settled`: the part of a cluster's quota that its instances stand
        for, unless that is all of it. `homes`: clusters only in slots of their own reservation. `at`: the
        queues that own a cluster's slots. `launching`: other claims that will have an instance soon."""
        made, cohorts = queues(self.specs)
        clusters = [
            part
            for each in self.asking
            if each.held is not None
            for part in _parts(each, each.held, settled(each), home=each.cluster.name in homes, at=at(each))
        ]
        return QuotaState(
            queues=made,
            cohorts=cohorts,
            rules=self._rules,
            holders=[*clusters, *self.others, *launching],
            wants=[want for each in self.asking if (want := each.want) is not None],
        )


def _parts(
    one: ClusterState, has: ClusterAdmission, settled: Amounts | None, *, home: bool, at: frozenset[str]
) -> Iterable[AdmittedWorkload]:
    """A cluster as one quota holder, or with its growth as a second one, which is evicted first."""
    whole = AdmittedWorkload(
        name=one.cluster.name,
        queue=has.reserved.queue,
        usage=has.usage,
        priority=one.priority,
        queued=_queued(one.cluster),
        reserved=has.since.timestamp(),
        evicted=one.leaves,
        on_own_slots=home,
        occupied_queues=at,
    )
    if settled is None or one.leaves or one.want is not None:
        yield whole
        return
    more = {key: value - settled.get(key, 0) for key, value in has.usage.items()}
    yield replace(whole, usage=settled)
    yield replace(
        whole,
        name=f"{whole.name}{GROWTH}",
        usage={key: value for key, value in more.items() if value},
        reserved=float("inf"),
        on_own_slots=False,
        occupied_queues=frozenset(),
    )


def look(
    snapshot: Snapshot,
    profiles: Cache[DedicatedAIClusterProfile],
    claims: Sequence[NodeClaim],
    *,
    priority: Callable[[str], int | None],
    firm: Callable[[NodeClaim], bool],
    home: Callable[[NodeClaim, Reserved], bool],
    at: Callable[[NodeClaim], frozenset[str]] = lambda _: frozenset(),
    apart: Callable[[NodeClaim, Reserved], bool] = lambda *_: False,
    strategies: Sequence[Strategy] = (),
) -> ClusterSnapshot:
    """Builds the clusters' part of a decision. `claims`: those that draw from a reservation. `firm`: whether
    a claim is non-preemptible. `home`: whether its slot belongs to no other reservation. `at`: the queue that
    owns its slot. `apart`: whether its slot is none of those that its reservation's quota stands for."""
    known, specs, barred = snapshot.reservations, snapshot.specs, snapshot.barred
    flavors = snapshot.resource_flavors
    by_name = ReservationNames(known)

    def asking(cluster: DedicatedAICluster) -> ClusterState:
        profile = profiles.get(cluster.spec.profile) if cluster.spec.profile else None
        asked = cluster_demand(cluster, profile)
        reserved = by_name.resolve(cluster.spec.capacity_reservation_id)
        mine = None if isinstance(reserved, UnresolvedName) else known[reserved]
        named = asked.priority_class if isinstance(asked, ClusterDemand) else ""
        named_by = named or (mine.spec.priority_class_name if mine else "")
        worth, has = priority(named_by), held(cluster)
        lost = isinstance(asked, DemandError) or (worth is None and (named_by or mine is None))
        if named and worth is None and has is None:
            asked = DemandError(
                "PriorityClassNotFound",
                f"spec.priorityClassName: there is no WorkloadPriorityClass and no PriorityClass {named}: "
                "create it, or name another",
            )
        return ClusterState(
            cluster=cluster,
            profile=profile,
            wanted=asked,
            reserved=reserved,
            held=has,
            barred=barred.get(reserved, "") if isinstance(reserved, Reserved) else "",
            priority=has.priority if lost and has else worth or 0,
        )

    return ClusterSnapshot(
        reservations=known,
        specs=specs,
        flavors=flavors,
        asking=[asking(each) for each in sorted(snapshot.clusters, key=lambda one: one.name) if _ours(each)],
        strategies=strategies,
        others=[*_others(claims, snapshot, firm, home, at, apart)],
    )


def _ours(cluster: DedicatedAICluster) -> bool:
    """Whether the broker manages the cluster: it names a reservation, holds quota, or has our finalizer."""
    return bool(
        cluster.spec.capacity_reservation_id
        or cluster.status.admission
        or names.RESERVED_FINALIZER in cluster.metadata.finalizers
    )


def _others(
    claims: Sequence[NodeClaim],
    snapshot: Snapshot,
    firm: Callable[[NodeClaim], bool],
    home: Callable[[NodeClaim, Reserved], bool],
    at: Callable[[NodeClaim], frozenset[str]],
    apart: Callable[[NodeClaim, Reserved], bool],
) -> Iterable[AdmittedWorkload]:
    by_name = {claim.name: claim for claim in claims}
    for reserved, holders in drawing(claims, snapshot).items():
        for each in holders:
            if apart(by_name[each.name], reserved):
                continue
            yield AdmittedWorkload(
                name=f"{CLAIM}{each.name}",
                queue=reserved.queue,
                usage=each.usage,
                priority=each.priority,
                reserved=each.since,
                evicted=by_name[each.name].deleting,
                non_preemptible=firm(by_name[each.name]),
                on_own_slots=home(by_name[each.name], reserved),
                occupied_queues=at(by_name[each.name]),
            )


def _queued(cluster: DedicatedAICluster) -> float:
    created = cluster.metadata.creation_timestamp
    return created.timestamp() if created else 0.0
