"""Reconciles the dedicated clusters in passes: reads their state, then takes the next step of each.

Invariant: a decision (`broker.quota.joint`, or Kueue) is in the cluster's status before an instance is
requested or ended because of it. A broker that restarts in between continues from the status. Quota and
object are released only after the API server itself, not a cache, shows that no claim is left. A pass over
clusters in their desired state writes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition
from broker.apis.ome_clusters import DedicatedAICluster
from broker.controllers.dedicatedaicluster import machines, status_body
from broker.controllers.dedicatedaicluster.demand import ClusterDemand
from broker.controllers.dedicatedaicluster.marks import ClusterLabels
from broker.controllers.dedicatedaicluster.sizes import sizes
from broker.controllers.dedicatedaicluster.snapshot import ClusterSnapshot, ClusterState, look
from broker.controllers.dedicatedaicluster.status import (
    PREEMPTED,
    ClusterEviction,
    ClusterFacts,
    ClusterStatus,
    Size,
    preempted,
    settle,
)
from broker.controllers.dedicatedaicluster.workloads import ClusterQueueing
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.preemption.claims import (
    borrows,
    cluster_of,
    non_preemptible,
    occupied_queues,
    unowned,
)
from broker.controllers.snapshot import Snapshot
from broker.kube.conditions import remove_finalizer
from broker.kube.errors import AlreadyExists, Conflict, NotFound
from broker.kube.for_each import each
from broker.kube.partial import PartialObject
from broker.quota.entitled import AdmissionDecision, AdmissionPhase
from broker.quota.joint import GROWTH, JointDecision, QuotaState
from broker.quota.model import AdmittedWorkload, Amounts, FlavorResource
from broker.quota.usage import Reserved
from broker.reservations.cluster_admission import ClusterAdmission, by_flavor
from broker.reservations.sizing import FlavorProblem
from providers.model import InstanceType

Json = dict[str, Any]

NOT_YET: Final = 1.0

_log = structlog.get_logger("dedicated")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPass:
    """The inputs of one pass."""

    world: ClusterSnapshot
    claims: Mapping[str, list[NodeClaim]]  # by the uid of their cluster
    down: frozenset[str]  # names of nodes that are not ready
    types: Mapping[str, InstanceType]
    size: Callable[[object], Size]  # by reservation
    owners: Mapping[str, Reserved]  # by ODCR id
    waiting: int = machines.AT_ONCE  # claims of one cluster that may be without an instance at a time
    left_out: Mapping[str, Sequence[PartialObject]] = field(default_factory=dict)  # unreadable claims

    def settled(self, state: ClusterState) -> Amounts | None:
        """The part of a cluster's quota that its instances stand for; None if that is all, or nothing."""
        if state.held is None or state.cluster.status.dac_lifecycle_state not in ("ACTIVE", "UPDATING"):
            return None  # it was never complete, so it has no growth
        size, settled = self.size(state.held.reserved), dict(state.held.usage)
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
                settled[FlavorResource(flavor, resource)] = value * counts[flavor] // sized.count
        if settled == state.held.usage or not any(settled.values()):
            return None
        return {key: value for key, value in settled.items() if value}

    def home(self, state: ClusterState) -> bool:
        """Whether the cluster has claims, all of them in slots of its own reservation."""
        ids = [claim.labels.get(names.RESERVATION_ID, "") for claim in self.claims.get(state.cluster.uid, ())]
        own = state.held.reserved if state.held else None
        return bool(ids) and all(self.owners.get(odcr_id) == own for odcr_id in ids)

    def at(self, state: ClusterState) -> frozenset[str]:
        """The queues that own the slots of its instances."""
        return occupied_queues(self.claims.get(state.cluster.uid, ()), self.owners)


def down(node: Node) -> bool:
    """Whether this is a node of a dedicated cluster and not ready."""
    ready = condition(node.status.conditions, names.READY)
    return names.DEDICATED in node.labels and (ready is None or ready.status != "True")


class ClusterController:
    """The order of calls: `observe`, then a decision, then `act` on it."""

    def __init__(self, shared: ReservationDependencies, *, priority: Callable[[str], int | None]) -> None:
        self._shared = shared
        self._queueing = ClusterQueueing(shared.client, shared.reads, shared.clock)
        self._client, self._clock = shared.client, shared.clock
        self._cache = shared.reads.clusters.cache
        self._priority = priority
        self._marks = ClusterLabels(shared.client)

    def observe(self, snapshot: Snapshot) -> ClusterPass | None:
        """The inputs of one pass; None without clusters, or before Kueue's objects are read. Raises
        ProviderError."""
        if not len(self._cache) or (self._shared.reads.kueue and not self._queueing.known):
            return None
        shared, settings = self._shared, self._shared.settings
        types = shared.provider.instance_types()
        claims: dict[str, list[NodeClaim]] = defaultdict(list)
        drawing = []
        # Read before and after the claims: meanwhile a claim may be left out or readmitted.
        partial = {each.uid: each for each in shared.caches.claims.left_out}
        listed = shared.caches.claims.list()
        partial |= {each.uid: each for each in shared.caches.claims.left_out}
        for claim in listed:
            partial.pop(claim.uid, None)
            if names.DRAWS_FROM in claim.annotations:
                drawing.append(claim)
            if uid := cluster_of(claim)[0]:
                claims[uid].append(claim)
        owners = snapshot.odcrs.owned.owner
        world = look(
            snapshot,
            shared.reads.profiles.cache,
            drawing,
            priority=self._priority,
            firm=lambda claim: non_preemptible(claim, shared.caches),
            home=lambda claim, reserved: not borrows(claim, reserved, owners),
            at=lambda claim: occupied_queues((claim,), owners),
            strategies=settings.strategies,
            apart=lambda claim, reserved: unowned(claim, reserved, owners),
        )
        if self._shared.reads.kueue:
            self._queueing.look()
        return ClusterPass(
            world=world,
            claims=claims,
            down=frozenset(node.name for node in shared.caches.nodes.list() if down(node)),
            types=types,
            size=sizes(world.flavors, world.reservations, types, settings),
            owners=owners,
            waiting=max(
                machines.AT_ONCE,
                sum(odcr.total for odcr in shared.inventory.snapshot().odcrs.values()),
            ),
            left_out={
                cluster.uid: [each for each in partial.values() if machines.claim_of(cluster, each)]
                for cluster in self._cache.list()
            },
        )

    @property
    def waits(self) -> bool:
        """Whether clusters exist while Kueue's decisions about them are not read yet."""
        return bool(len(self._cache)) and self._shared.reads.kueue and not self._queueing.known

    def quota(self, observed: ClusterPass, launching: Iterable[AdmittedWorkload]) -> QuotaState | None:
        """The quota decision's input; None if Kueue decides. `launching`: see `ClusterSnapshot.quota`."""
        if self._shared.reads.kueue:
            return None
        homes = [each.cluster.name for each in observed.world.asking if observed.home(each)]
        return observed.world.quota(
            settled=observed.settled, homes=homes, at=observed.at, launching=launching
        )

    def given(
        self, observed: ClusterPass, decided: JointDecision, phase: AdmissionPhase
    ) -> Mapping[str, ClusterAdmission]:
        """The new total quota, by uid, of clusters that get more than their status records. `phase`: selects
        the clusters that hold it from now on, or those that hold it once their victims have left."""
        given = {}
        for state in observed.world.asking:
            decision = decided.decisions.get(state.cluster.name)
            if (
                decision is None
                or decision.phase is not phase
                or state.cluster.name in decided.evictions
                or not isinstance(state.reserved, Reserved)
            ):
                continue
            before = state.held or ClusterAdmission(
                reserved=state.reserved, since=self._clock.now(), usage={}
            )
            given[state.cluster.uid] = replace(before, usage=decision.usage, priority=state.priority)
        return given

    def act(self, observed: ClusterPass, decided: JointDecision | None) -> float | None:
        """Takes each cluster's next step; returns the seconds until the next timed one. `decided`: None if
        Kueue decides. Raises ApiError after all clusters had their turn."""
        waits: list[float] = []
        each(observed.world.asking, lambda state: waits.extend(self._reconcile(observed, decided, state)))
        self._marks.forget({state.cluster.uid for state in observed.world.asking})
        return min(waits, default=None)

    def _reconcile(
        self, observed: ClusterPass, decided: JointDecision | None, state: ClusterState
    ) -> list[float]:
        """Takes one cluster's step; returns at most one delay in seconds until its next reconcile."""
        now = self._clock.now()
        decision, evicted = self._decided(observed, decided, state)
        facts = ClusterFacts(
            cluster=state.cluster,
            wanted=state.wanted,
            reserved=state.reserved,
            priority=state.priority,
            barred=state.barred,
            verdict=decision,
            eviction=evicted,
            claims=observed.claims.get(state.cluster.uid, ()),
            left_out=observed.left_out.get(state.cluster.uid, ()),
            down=observed.down,
            waiting=observed.waiting,
            **({"kept": lambda held: self._queueing.kept(state, held)} if decided is None else {}),
        )
        settled = settle(
            facts, observed.size(state.reserved), now=now, wait=self._shared.settings.dedicated_wait_seconds
        )
        lets_go = settled.over or (state.held is not None and settled.held != state.held)
        if lets_go and not settled.change.make and self._unseen(state.cluster, facts):
            return [NOT_YET]
        cluster = self._write_status(state.cluster, settled, state)
        for claim in settled.change.end or self._mended(observed, state, facts):
            self._end(claim)
        for at, flavor in settled.change.make:
            self._make(observed, state, cluster, settled, at, flavor)
        if self._shared.reads.kueue:
            self._queueing.act(state, settled, evicted=evicted is not None and evicted.keeps is None)
        if settled.over:
            self._release(cluster)
        return [] if settled.patience is None else [max(settled.patience, NOT_YET)]

    def _decided(
        self, observed: ClusterPass, decided: JointDecision | None, state: ClusterState
    ) -> tuple[AdmissionDecision | None, ClusterEviction | None]:
        """The decision: Kueue's if it counts quota, else the broker's, which covers all reservations."""
        if decided is None:
            return self._queueing.said(state, observed.world)
        name = state.cluster.name
        if found := decided.evictions.get(name):
            return None, preempted(found)
        if found := decided.evictions.get(f"{name}{GROWTH}"):
            return None, preempted(found, keeps=observed.settled(state))
        return decided.decisions.get(name), None

    def _unseen(self, cluster: DedicatedAICluster, facts: ClusterFacts) -> bool:
        """Whether the API server has claims of the cluster that the cache does not show."""
        label = f"{names.DEDICATED}={machines.dedicated(cluster)}"
        listed, _ = self._client.list(NodeClaim.KIND, label_selector=label)
        known = {each.uid for each in facts.there}
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
        self, cluster: DedicatedAICluster, settled: ClusterStatus, state: ClusterState
    ) -> DedicatedAICluster:
        """Writes the cluster's finalizer, label and status; returns the cluster afterwards."""
        reserved = state.reserved.name if isinstance(state.reserved, Reserved) else ""
        cluster = self._cached(cluster, self._marks.keep(cluster, reserved))
        before = cluster.status
        status = status_body.body(cluster, settled, now=self._clock.now())
        if status is None:
            return cluster
        metadata = {"name": cluster.name, "uid": cluster.uid}
        answer = self._client.apply(
            DedicatedAICluster.KIND, {"metadata": metadata, "status": status}, subresource="status"
        )
        if settled.state != before.dac_lifecycle_state:
            _log.info("cluster", cluster=cluster.name, state=settled.state, why=settled.detail)
            self._shared.recorder.event(
                cluster, "Warning" if settled.state == "FAILED" else "Normal", settled.state, settled.detail
            )
        for update in settled.said:
            if update.type == PREEMPTED and update.status == "True" and before.admission is not None:
                self._shared.recorder.event(cluster, "Warning", PREEMPTED, update.message)
        return self._cached(cluster, answer)

    def _cached(self, cluster: DedicatedAICluster, answer: Json | None) -> DedicatedAICluster:
        if answer is None:
            return cluster
        self._cache.observe(answer)
        return DedicatedAICluster.decode(answer)

    def _make(
        self,
        observed: ClusterPass,
        state: ClusterState,
        cluster: DedicatedAICluster,
        settled: ClusterStatus,
        at: int,
        flavor: str,
    ) -> None:
        """Creates one claim. If it exists, an earlier attempt made it, and the cache shows it soon."""
        known, sized = observed.world.flavors.get(flavor), settled.sized.get(flavor)
        if (
            not isinstance(state.wanted, ClusterDemand)
            or settled.held is None
            or known is None
            or sized is None
        ):
            return  # existing instances stay, and none are added
        body = machines.claim(
            cluster,
            at,
            wanted=state.wanted,
            reserved=settled.held.reserved,
            flavor=known,
            sized=sized,
            types=observed.types,
            node_class=self._node_class(observed.world, state),
            priority=state.priority,
        )
        try:
            self._shared.caches.claims.observe(self._client.create(NodeClaim.KIND, body))
        except AlreadyExists:
            _log.info("claim is there already", cluster=cluster.name, claim=body["metadata"]["name"])

    def _mended(self, observed: ClusterPass, state: ClusterState, facts: ClusterFacts) -> list[NodeClaim]:
        """Claims without an instance that would be made differently today, and are replaced."""
        if not (isinstance(state.reserved, Reserved) and isinstance(state.wanted, ClusterDemand)):
            return []  # today's request is unknown
        wanted, flavors = self._node_class(observed.world, state), observed.world.flavors
        return [
            each
            for each in facts.claims
            if machines.mended(each, flavors.get(machines.flavor_name(each)), wanted)
        ]

    def _node_class(self, world: ClusterSnapshot, state: ClusterState) -> str:
        """The first that names one: the cluster, its profile, its reservation; else the setting."""
        reservation = world.reservations.get(state.reserved) if isinstance(state.reserved, Reserved) else None
        for source in (state.cluster, state.profile, reservation):
            if source is not None and (named := source.annotations.get(names.NODE_CLASS)):
                return named
        return self._shared.settings.dedicated_node_class

    def _end(self, claim: NodeClaim) -> None:
        """Deletes the claim; Karpenter drains and terminates it as any other."""
        try:
            answer = self._client.delete(NodeClaim.KIND, claim.name, uid=claim.uid)
        except NotFound:
            return
        if answer.get("kind") == NodeClaim.KIND.kind:  # a claim without finalizers is answered by a Status
            self._shared.caches.claims.observe(answer)

    def _release(self, cluster: DedicatedAICluster) -> None:
        patch = remove_finalizer(cluster, names.RESERVED_FINALIZER)
        if patch is None:
            return
        try:
            self._cache.observe(self._client.patch(DedicatedAICluster.KIND, cluster.name, patch))
        except (Conflict, NotFound) as error:
            _log.info("cluster changed meanwhile, looked at again", cluster=cluster.name, error=str(error))
            return
        _log.info("cluster released", cluster=cluster.name)
