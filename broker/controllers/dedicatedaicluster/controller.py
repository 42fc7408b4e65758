"""Reconciles the dedicated clusters in passes: reads their state, then takes the next step of each.

Invariant: a decision (`broker.quota.joint`, or Kueue) is in the cluster's status before an instance is
requested or ended because of it. A broker that restarts in between continues from the status. Quota and
object are released only after the API server itself, not a cache, shows that no claim is left. A pass over
clusters in their desired state writes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import is_true
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.dedicatedaicluster import machines, status_body
from broker.controllers.dedicatedaicluster.demand import ClusterDemand
from broker.controllers.dedicatedaicluster.snapshot import (
    PREEMPTED,
    ClusterSnapshot,
    ClusterState,
    build_snapshot,
)
from broker.controllers.dedicatedaicluster.status import (
    ClusterEviction,
    ClusterFacts,
    ClusterStatus,
    next_status,
    preempted,
)
from broker.controllers.dedicatedaicluster.workloads import ClusterQueueing
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.newest import unchanged
from broker.controllers.owned_metadata import OwnedMetadata
from broker.controllers.snapshot import Snapshot
from broker.kube.errors import AlreadyExists, Conflict
from broker.kube.for_each import for_each
from broker.kube.partial import PartialObject
from broker.kube.refusals import tell_refusal
from broker.kube.removal import remove
from broker.quota.entitled import AdmissionDecision, AdmissionPhase
from broker.quota.joint import GROWTH, JointDecision, QuotaState
from broker.quota.model import AdmittedWorkload, Amounts, FlavorResource
from broker.quota.usage import ReservationKey
from broker.reservations.claims import cluster_of, occupied_odcr, occupied_queues
from broker.reservations.cluster_admission import ClusterAdmission, by_flavor
from broker.reservations.cluster_sizes import Size, sizes
from broker.reservations.kueue_objects import short
from broker.reservations.sizing import FlavorProblem
from providers.model import InstanceType

RETRY_SECONDS: Final = 1.0

_log = structlog.get_logger("dedicated")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPass:
    """The inputs of one pass."""

    snapshot: ClusterSnapshot
    claims: Mapping[str, list[NodeClaim]]  # by the uid of their cluster
    unready_nodes: frozenset[str]  # names of nodes that are not ready
    types: Mapping[str, InstanceType]
    size: Callable[[object], Size]  # by reservation
    owners: Mapping[str, ReservationKey]  # by ODCR id
    launch_limit: int = machines.LAUNCH_LIMIT  # of one cluster's claims without an instance at a time
    left_out: Mapping[str, Sequence[PartialObject]] = field(default_factory=dict)  # unreadable claims

    def backed_quota(self, state: ClusterState) -> Amounts | None:
        """The part of a cluster's quota that has instances; None if that is all, or nothing."""
        if state.held is None or state.cluster.status.dac_lifecycle_state not in ("ACTIVE", "UPDATING"):
            return None  # it was never complete, so it has no growth
        size, backed = self.size(state.held.reserved), dict(state.held.usage)
        counts = Counter(
            machines.flavor_name(claim)
            for claim in self.claims.get(state.cluster.uid, ())
            if claim.status.provider_id
        )
        counts.update(map(machines.flavor_name, self.left_out.get(state.cluster.uid, ())))
        for flavor, amounts in by_flavor(state.held.usage).items():
            sized = size(flavor, amounts)
            if isinstance(sized, FlavorProblem) or sized.count <= counts[flavor]:
                continue
            for resource, value in amounts.items():
                backed[FlavorResource(flavor, resource)] = value * counts[flavor] // sized.count
        if backed == state.held.usage or not any(backed.values()):
            return None
        return {key: value for key, value in backed.items() if value}

    def on_own_slots(self, state: ClusterState) -> bool:
        """Whether the cluster has claims, all of them in slots of its own reservation."""
        ids = [occupied_odcr(claim) for claim in self.claims.get(state.cluster.uid, ())]
        own = state.held.reserved if state.held else None
        return bool(ids) and all(self.owners.get(odcr_id) == own for odcr_id in ids)

    def occupied_queues(self, state: ClusterState) -> frozenset[str]:
        """The queues that own the slots of its instances."""
        return occupied_queues(self.claims.get(state.cluster.uid, ()), self.owners)


def is_unready_cluster_node(node: Node) -> bool:
    """Whether this is a node of a dedicated cluster and not ready."""
    return names.DEDICATED in node.labels and not is_true(node, names.READY)


class ClusterController:
    """The order of calls: `observe`, then a decision, then `reconcile`."""

    def __init__(self, shared: ReservationDependencies) -> None:
        self._shared = shared
        self._queueing = ClusterQueueing(shared.client, shared.reads, shared.clock)
        self._client, self._clock = shared.client, shared.clock
        self._cache = shared.reads.clusters.cache
        self._metadata = OwnedMetadata(shared.client, names.RESERVATION_LABEL)

    def observe(self, snapshot: Snapshot) -> ClusterPass | None:
        """The inputs of one pass; None without clusters, or before Kueue's objects are read. Raises
        ProviderError."""
        if not len(self._cache) or (self._shared.reads.kueue and not self._queueing.known):
            return None
        shared, settings = self._shared, self._shared.settings
        types = snapshot.types
        claims: dict[str, list[NodeClaim]] = defaultdict(list)
        drawing = []
        # Read before and after the claims: meanwhile a claim may be left out or come back.
        partial = {claim.uid: claim for claim in shared.caches.claims.left_out}
        listed = shared.caches.claims.list()
        partial |= {claim.uid: claim for claim in shared.caches.claims.left_out}
        for claim in listed:
            partial.pop(claim.uid, None)
            if names.DRAWS_FROM in claim.annotations:
                drawing.append(claim)
            if uid := cluster_of(claim)[0]:
                claims[uid].append(claim)
        cluster_snapshot = build_snapshot(
            snapshot,
            shared.reads.profiles.cache,
            drawing,
            shared.caches,
            priority=shared.reads.priority,
            now=self._clock.now(),
            guard=self._cache.guard,
        )
        if self._shared.reads.kueue:
            self._queueing.refresh()
        return ClusterPass(
            snapshot=cluster_snapshot,
            claims=claims,
            unready_nodes=frozenset(
                node.name for node in shared.caches.nodes.list() if is_unready_cluster_node(node)
            ),
            types=types,
            size=sizes(cluster_snapshot.flavors, cluster_snapshot.reservations, types, settings.bought_zones),
            owners=snapshot.odcrs.owned.owner,
            launch_limit=max(
                machines.LAUNCH_LIMIT,
                sum(odcr.total for odcr in snapshot.inventory.odcrs.values()),
            ),
            left_out={
                cluster.uid: [claim for claim in partial.values() if machines.claim_of(cluster, claim)]
                for cluster in self._cache.list()
            },
        )

    @property
    def waits_for_kueue(self) -> bool:
        """Whether clusters exist while Kueue's decisions about them are not read yet."""
        return bool(len(self._cache)) and self._shared.reads.kueue and not self._queueing.known

    def quota(self, observed: ClusterPass, launching: Iterable[AdmittedWorkload]) -> QuotaState | None:
        """The quota decision's input; None if Kueue decides. `launching`: see `ClusterSnapshot.quota`."""
        if self._shared.reads.kueue:
            return None
        on_own_slots = [
            state.cluster.name for state in observed.snapshot.clusters if observed.on_own_slots(state)
        ]
        return observed.snapshot.quota(
            backed_quota=observed.backed_quota,
            on_own_slots=on_own_slots,
            occupied_queues=observed.occupied_queues,
            launching=launching,
        )

    def new_quota(
        self, observed: ClusterPass, decided: JointDecision, phase: AdmissionPhase
    ) -> Mapping[str, ClusterAdmission]:
        """The new total quota, by uid, of clusters that get more than their status records. `phase`: selects
        the clusters that hold it from now on, or those that hold it once their victims have left."""
        quotas = {}
        for state in observed.snapshot.clusters:
            decision = decided.decisions.get(state.cluster.name)
            if (
                decision is None
                or decision.phase is not phase
                or state.cluster.name in decided.evictions
                or not isinstance(state.reserved, ReservationKey)
            ):
                continue
            before = state.held or ClusterAdmission(
                reserved=state.reserved, since=self._clock.now(), usage={}
            )
            quotas[state.cluster.uid] = replace(before, usage=decision.usage, priority=state.priority)
        return quotas

    def reconcile(self, observed: ClusterPass, decided: JointDecision | None) -> float | None:
        """Takes each cluster's next step; returns the seconds until the next timed one. `decided`: None if
        Kueue decides. Raises ApiError after all clusters had their turn."""
        waits: list[float] = []
        for_each(
            observed.snapshot.clusters,
            lambda state: waits.extend(self._reconcile(observed, decided, state)),
            refused=lambda state, error: tell_refusal(self._shared.recorder, state.cluster, error),
        )
        self._metadata.forget({state.cluster.uid for state in observed.snapshot.clusters})
        return min(waits, default=None)

    def _reconcile(
        self, observed: ClusterPass, decided: JointDecision | None, state: ClusterState
    ) -> list[float]:
        """Takes one cluster's step; returns at most one delay in seconds until its next reconcile."""
        now = self._clock.now()
        decision, eviction = self._decision(observed, decided, state)
        facts = ClusterFacts(
            state=state,
            decision=decision,
            eviction=eviction,
            claims=observed.claims.get(state.cluster.uid, ()),
            left_out=observed.left_out.get(state.cluster.uid, ()),
            unready_nodes=observed.unready_nodes,
            launch_limit=observed.launch_limit,
            **({"kept": lambda held: self._queueing.counted_usage(state, held)} if decided is None else {}),
        )
        status = next_status(
            facts, observed.size(state.reserved), now=now, wait=self._shared.settings.dedicated_wait_seconds
        )
        ended = status.changes.delete or self._outdated_claims(observed, facts)
        gives_back = status.releasable or (state.held is not None and status.held != state.held)
        gives_back = gives_back and not status.changes.create
        if gives_back and self._unseen(facts):
            return [RETRY_SECONDS]
        if (ended or gives_back) and not unchanged(self._client, observed.snapshot.rules(state)):
            return [RETRY_SECONDS]
        cluster = self._write_status(state.cluster, status, state)
        for claim in ended:
            self._delete_claim(claim)
        for claim_number, flavor in status.changes.create:
            self._create_claim(observed, state, cluster, status, claim_number, flavor)
        if self._shared.reads.kueue:
            self._queueing.update_workloads(
                state, status, evicted=eviction is not None and eviction.keeps is None
            )
        if status.releasable:
            self._metadata.release(self._cache, cluster)
        return [] if status.requeue_after is None else [max(status.requeue_after, RETRY_SECONDS)]

    def _decision(
        self, observed: ClusterPass, decided: JointDecision | None, state: ClusterState
    ) -> tuple[AdmissionDecision | None, ClusterEviction | None]:
        """The decision: Kueue's if it counts quota, else the broker's, which covers all reservations."""
        if decided is None:
            return self._queueing.decision(state, observed.snapshot)
        name = state.cluster.name
        if eviction := decided.evictions.get(name):
            return None, preempted(eviction)
        if eviction := decided.evictions.get(f"{name}{GROWTH}"):
            return None, preempted(eviction, keeps=observed.backed_quota(state))
        return decided.decisions.get(name), None

    def _unseen(self, facts: ClusterFacts) -> bool:
        """Whether the API server has claims of the cluster that the cache does not show."""
        cluster = facts.state.cluster
        label = f"{names.DEDICATED}={machines.dedicated(cluster)}"
        listed, _ = self._client.list(NodeClaim.KIND, label_selector=label)
        known = {claim.uid for claim in facts.all_claims}
        unseen = [
            raw
            for raw in listed
            if raw["metadata"]["uid"] not in known
            and any(o.get("uid") == cluster.uid for o in raw["metadata"].get("ownerReferences", ()))
        ]
        for raw in unseen:
            self._shared.caches.claims.observe(raw)
        return bool(unseen)

    def _write_status(
        self, cluster: DedicatedAICluster, status: ClusterStatus, state: ClusterState
    ) -> DedicatedAICluster:
        """Writes the cluster's finalizer, label and status; returns the cluster afterwards."""
        reserved = state.reserved.name if isinstance(state.reserved, ReservationKey) else ""
        cluster = self._metadata.apply(self._cache, cluster, short(reserved))
        before = cluster.status
        body = status_body.body(cluster, status, now=self._clock.now())
        if body is None:
            return cluster
        metadata = {"name": cluster.name, "uid": cluster.uid}
        answer = self._client.apply(
            DedicatedAICluster.KIND, {"metadata": metadata, "status": body}, subresource="status"
        )
        if status.state != before.dac_lifecycle_state:
            _log.info("cluster", cluster=cluster.name, state=status.state, why=status.detail)
            self._shared.recorder.event(
                cluster, "Warning" if status.state == "FAILED" else "Normal", status.state, status.detail
            )
        for update in status.conditions:
            if update.type == PREEMPTED and update.status == "True" and before.admission is not None:
                self._shared.recorder.event(cluster, "Warning", PREEMPTED, update.message)
        return self._cache.written(answer)

    def _create_claim(
        self,
        observed: ClusterPass,
        state: ClusterState,
        cluster: DedicatedAICluster,
        status: ClusterStatus,
        claim_number: int,
        flavor: str,
    ) -> None:
        """Creates one claim. If it exists, an earlier attempt made it, and the cache shows it soon."""
        known, sized = observed.snapshot.flavors.get(flavor), status.sized.get(flavor)
        if (
            not isinstance(state.demand, ClusterDemand)
            or status.held is None
            or known is None
            or sized is None
        ):
            return  # existing instances stay, and none are added
        body = machines.claim(
            cluster,
            claim_number,
            demand=state.demand,
            reserved=status.held.reserved,
            flavor=known,
            sized=sized,
            types=observed.types,
            node_class=self._node_class(observed.snapshot, state),
            priority=state.priority,
        )
        try:
            self._shared.caches.claims.observe(self._client.create(NodeClaim.KIND, body))
        except AlreadyExists:
            _log.info("claim exists already", cluster=cluster.name, claim=body["metadata"]["name"])

    def _outdated_claims(self, observed: ClusterPass, facts: ClusterFacts) -> list[NodeClaim]:
        """Claims without an instance that would be made differently today, and are replaced."""
        state = facts.state
        if not (isinstance(state.reserved, ReservationKey) and isinstance(state.demand, ClusterDemand)):
            return []  # today's request is unknown
        node_class, flavors = self._node_class(observed.snapshot, state), observed.snapshot.flavors
        return [
            claim
            for claim in facts.claims
            if machines.outdated(claim, flavors.get(machines.flavor_name(claim)), node_class)
        ]

    def _node_class(self, snapshot: ClusterSnapshot, state: ClusterState) -> str:
        """The first that names one: the cluster, its profile, its reservation; else the setting."""
        reservation = (
            snapshot.reservations.get(state.reserved) if isinstance(state.reserved, ReservationKey) else None
        )
        for source in (state.cluster, state.profile, reservation):
            if source is not None and (named := source.annotations.get(names.NODE_CLASS)):
                return named
        return self._shared.settings.dedicated_node_class

    def _delete_claim(self, claim: NodeClaim) -> None:
        """Deletes the claim; Karpenter drains and terminates it as any other."""
        with suppress(Conflict):  # one that waits may have been launched meanwhile: it is decided anew
            remove(self._client, claim, self._shared.caches.claims, unchanged=claim.waits)
