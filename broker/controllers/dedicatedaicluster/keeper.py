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
from broker.controllers.dedicatedaicluster import machines, report
from broker.controllers.dedicatedaicluster.admission import ClusterAdmission, by_flavor
from broker.controllers.dedicatedaicluster.marks import ClusterLabels
from broker.controllers.dedicatedaicluster.queueing import ClusterQueueing
from broker.controllers.dedicatedaicluster.settle import (
    PREEMPTED,
    ClusterFacts,
    ClusterStatus,
    Evicted,
    Size,
    preempted,
    settle,
)
from broker.controllers.dedicatedaicluster.sizes import sizes
from broker.controllers.dedicatedaicluster.wanted import ClusterDemand
from broker.controllers.dedicatedaicluster.world import ClusterSnapshot, ClusterState, look
from broker.controllers.ome.shared import ReservationDependencies
from broker.controllers.preemption.promised import cluster_of
from broker.controllers.preemption.spared import borrows, non_preemptible, occupied_queues, unowned
from broker.controllers.reservations.each import each
from broker.kube.conditions import remove_finalizer
from broker.kube.errors import AlreadyExists, Conflict, NotFound
from broker.kube.partial import PartialObject
from broker.quota.entitled import AdmissionDecision, AdmissionPhase
from broker.quota.joint import GROWTH, JointDecision, QuotaState
from broker.quota.model import AdmittedWorkload, Amounts, FlavorResource
from broker.quota.usage import Reserved
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

    def settled(self, one: ClusterState) -> Amounts | None:
        """The part of a cluster's quota that its instances stand for; None if that is all, or nothing."""
        if one.held is None or one.cluster.status.dac_lifecycle_state not in ("ACTIVE", "UPDATING"):
            return None  # it was never complete, so it has no growth
        size, found = self.size(one.held.reserved), dict(one.held.usage)
        there = Counter(
            machines.flavor_name(each)
            for each in self.claims.get(one.cluster.uid, ())
            if each.status.provider_id
        )
        there.update(map(machines.flavor_name, self.left_out.get(one.cluster.uid, ())))
        for flavor, amounts in by_flavor(one.held.usage).items():
            sized = size(flavor, amounts)
            if isinstance(sized, FlavorProblem) or sized.count <= there[flavor]:
                continue
            for resource, value in amounts.items():
                found[FlavorResource(flavor, resource)] = value * there[flavor] // sized.count
        if found == one.held.usage or not any(found.values()):
            return None
        return {key: value for key, value in found.items() if value}

    def home(self, one: ClusterState) -> bool:
        """Whether the cluster has claims, all of them in slots of its own reservation."""
        ids = [each.labels.get(names.RESERVATION_ID, "") for each in self.claims.get(one.cluster.uid, ())]
        mine = one.held.reserved if one.held else None
        return bool(ids) and all(self.owners.get(each) == mine for each in ids)

    def at(self, one: ClusterState) -> frozenset[str]:
        """The queues that own the slots of its instances."""
        return occupied_queues(self.claims.get(one.cluster.uid, ()), self.owners)


def down(node: Node) -> bool:
    """Whether this is a node of a dedicated cluster and not ready."""
    ready = condition(node.status.conditions, names.READY)
    return names.DEDICATED in node.labels and (ready is None or ready.status != "True")


class ClusterController:
    """The order of calls: `observe`, then a decision, then `act` on it."""

    def __init__(
        self,
        shared: ReservationDependencies,
        *,
        priority: Callable[[str], int | None],
        kueue: Callable[[], bool],
        owners: Callable[[], Mapping[str, Reserved]],
    ) -> None:
        """`kueue`: whether Kueue counts quota here. `owners`: the owner of each ODCR, by its id."""
        self._shared = shared
        self._kueue = kueue
        self._owners = owners
        self._queueing = ClusterQueueing(shared.client, shared.reads, shared.clock)
        self._client, self._clock = shared.client, shared.clock
        self._cache = shared.reads.clusters.cache
        self._priority = priority
        self._marks = ClusterLabels(shared.client)

    def observe(self) -> ClusterPass | None:
        """The inputs of one pass; None without clusters, or before Kueue's objects are read. Raises
        ProviderError."""
        if not len(self._cache) or (self._kueue() and not self._queueing.known):
            return None
        shared, settings = self._shared, self._shared.settings
        types = shared.provider.instance_types()
        claims: dict[str, list[NodeClaim]] = defaultdict(list)
        drawing = []
        # Read before and after the claims: meanwhile a claim may be left out or readmitted.
        partial = {each.uid: each for each in shared.claims.left_out}
        listed = shared.claims.list()
        partial |= {each.uid: each for each in shared.claims.left_out}
        for claim in listed:
            partial.pop(claim.uid, None)
            if names.DRAWS_FROM in claim.annotations:
                drawing.append(claim)
            if uid := cluster_of(claim)[0]:
                claims[uid].append(claim)
        owners = self._owners()
        world = look(
            shared.reads,
            drawing,
            priority=self._priority,
            firm=lambda claim: non_preemptible(claim, owns=shared.owns, nodes=shared.nodes, pods=shared.pods),
            home=lambda claim, reserved: not borrows(claim, reserved, owners),
            at=lambda claim: occupied_queues((claim,), owners),
            strategies=settings.strategies,
            apart=lambda claim, reserved: unowned(claim, reserved, owners),
        )
        if self._kueue():
            self._queueing.look()
        return ClusterPass(
            world=world,
            claims=claims,
            down=frozenset(node.name for node in shared.nodes.list() if down(node)),
            types=types,
            size=sizes(world.flavors, world.reservations, types, settings),
            owners=owners,
            waiting=max(
                machines.AT_ONCE,
                sum(odcr.total for odcr in shared.inventory.snapshot().odcrs.values()),
            ),
            left_out={
                one.uid: [each for each in partial.values() if machines.claim_of(one, each)]
                for one in self._cache.list()
            },
        )

    @property
    def waits(self) -> bool:
        """Whether clusters exist while Kueue's decisions about them are not read yet."""
        return bool(len(self._cache)) and self._kueue() and not self._queueing.known

    def quota(self, this: ClusterPass, launching: Iterable[AdmittedWorkload]) -> QuotaState | None:
        """The quota decision's input; None if Kueue decides. `launching`: see `ClusterSnapshot.quota`."""
        if self._kueue():
            return None
        homes = [each.cluster.name for each in this.world.asking if this.home(each)]
        return this.world.quota(settled=this.settled, homes=homes, at=this.at, launching=launching)

    def given(
        self, this: ClusterPass, decided: JointDecision, phase: AdmissionPhase
    ) -> Mapping[str, ClusterAdmission]:
        """The new total quota, by uid, of clusters that get more than their status records. `phase`: selects
        the clusters that hold it from now on, or those that hold it once their victims have left."""
        found = {}
        for one in this.world.asking:
            verdict = decided.decisions.get(one.cluster.name)
            if (
                verdict is None
                or verdict.phase is not phase
                or one.cluster.name in decided.evictions
                or not isinstance(one.reserved, Reserved)
            ):
                continue
            before = one.held or ClusterAdmission(reserved=one.reserved, since=self._clock.now(), usage={})
            found[one.cluster.uid] = replace(before, usage=verdict.usage, priority=one.priority)
        return found

    def act(self, this: ClusterPass, decided: JointDecision | None) -> float | None:
        """Takes each cluster's next step; returns the seconds until the next timed one. `decided`: None if
        Kueue decides. Raises ApiError after all clusters had their turn."""
        waits: list[float] = []
        each(this.world.asking, lambda one: waits.extend(self._keep(this, decided, one)))
        self._marks.forget({one.cluster.uid for one in this.world.asking})
        return min(waits, default=None)

    def _keep(self, this: ClusterPass, decided: JointDecision | None, one: ClusterState) -> list[float]:
        """Takes one cluster's step; returns at most one delay in seconds until its next reconcile."""
        now = self._clock.now()
        verdict, evicted = self._decided(this, decided, one)
        facts = ClusterFacts(
            cluster=one.cluster,
            wanted=one.wanted,
            reserved=one.reserved,
            priority=one.priority,
            barred=one.barred,
            verdict=verdict,
            eviction=evicted,
            claims=this.claims.get(one.cluster.uid, ()),
            left_out=this.left_out.get(one.cluster.uid, ()),
            down=this.down,
            waiting=this.waiting,
            **({"kept": lambda held: self._queueing.kept(one, held)} if decided is None else {}),
        )
        settled = settle(
            facts, this.size(one.reserved), now=now, wait=self._shared.settings.dedicated_wait_seconds
        )
        lets_go = settled.over or (one.held is not None and settled.held != one.held)
        if lets_go and not settled.change.make and self._unseen(one.cluster, facts):
            return [NOT_YET]
        cluster = self._told(one.cluster, settled, one)
        for claim in settled.change.end or self._mended(this, one, facts):
            self._end(claim)
        for at, flavor in settled.change.make:
            self._make(this, one, cluster, settled, at, flavor)
        if self._kueue():
            self._queueing.act(one, settled, evicted=evicted is not None and evicted.keeps is None)
        if settled.over:
            self._release(cluster)
        return [] if settled.patience is None else [max(settled.patience, NOT_YET)]

    def _decided(
        self, this: ClusterPass, decided: JointDecision | None, one: ClusterState
    ) -> tuple[AdmissionDecision | None, Evicted | None]:
        """The decision: Kueue's if it counts quota, else the broker's, which covers all reservations."""
        if decided is None:
            return self._queueing.said(one, this.world)
        name = one.cluster.name
        if found := decided.evictions.get(name):
            return None, preempted(found)
        if found := decided.evictions.get(f"{name}{GROWTH}"):
            return None, preempted(found, keeps=this.settled(one))
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
            self._shared.claims.observe(raw)
        return bool(unseen)

    def _told(
        self, cluster: DedicatedAICluster, settled: ClusterStatus, one: ClusterState
    ) -> DedicatedAICluster:
        """Writes the cluster's finalizer, label and status; returns the cluster afterwards."""
        reserved = one.reserved.name if isinstance(one.reserved, Reserved) else ""
        cluster = self._cached(cluster, self._marks.keep(cluster, reserved))
        before = cluster.status
        made = report.body(cluster, settled, now=self._clock.now())
        if made is None:
            return cluster
        metadata = {"name": cluster.name, "uid": cluster.uid}
        answer = self._client.apply(
            DedicatedAICluster.KIND, {"metadata": metadata, "status": made}, subresource="status"
        )
        if settled.state != before.dac_lifecycle_state:
            _log.info("cluster", cluster=cluster.name, state=settled.state, why=settled.detail)
            self._shared.recorder.event(
                cluster, "Warning" if settled.state == "FAILED" else "Normal", settled.state, settled.detail
            )
        for said in settled.said:
            if said.type == PREEMPTED and said.status == "True" and before.admission is not None:
                self._shared.recorder.event(cluster, "Warning", PREEMPTED, said.message)
        return self._cached(cluster, answer)

    def _cached(self, cluster: DedicatedAICluster, answer: Json | None) -> DedicatedAICluster:
        if answer is None:
            return cluster
        self._cache.observe(answer)
        return DedicatedAICluster.decode(answer)

    def _make(
        self,
        this: ClusterPass,
        one: ClusterState,
        cluster: DedicatedAICluster,
        settled: ClusterStatus,
        at: int,
        flavor: str,
    ) -> None:
        """Creates one claim. If it exists, an earlier attempt made it, and the cache shows it soon."""
        known, sized = this.world.flavors.get(flavor), settled.sized.get(flavor)
        if (
            not isinstance(one.wanted, ClusterDemand)
            or settled.held is None
            or known is None
            or sized is None
        ):
            return  # existing instances stay, and none are added
        body = machines.claim(
            cluster,
            at,
            wanted=one.wanted,
            reserved=settled.held.reserved,
            flavor=known,
            sized=sized,
            types=this.types,
            node_class=self._node_class(this.world, one),
            priority=one.priority,
        )
        try:
            self._shared.claims.observe(self._client.create(NodeClaim.KIND, body))
        except AlreadyExists:
            _log.info("claim is there already", cluster=cluster.name, claim=body["metadata"]["name"])

    def _mended(self, this: ClusterPass, one: ClusterState, facts: ClusterFacts) -> list[NodeClaim]:
        """Claims without an instance that would be made differently today, and are replaced."""
        if not (isinstance(one.reserved, Reserved) and isinstance(one.wanted, ClusterDemand)):
            return []  # today's request is unknown
        wanted, flavors = self._node_class(this.world, one), this.world.flavors
        return [
            each
            for each in facts.claims
            if machines.mended(each, flavors.get(machines.flavor_name(each)), wanted)
        ]

    def _node_class(self, world: ClusterSnapshot, one: ClusterState) -> str:
        """The first that names one: the cluster, its profile, its reservation; else the setting."""
        mine = world.reservations.get(one.reserved) if isinstance(one.reserved, Reserved) else None
        for source in (one.cluster, one.profile, mine):
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
            self._shared.claims.observe(answer)

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
