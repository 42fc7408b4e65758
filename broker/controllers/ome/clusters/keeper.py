"""One pass over all dedicated clusters: who gets quota, and each cluster's next step.

Invariant: quota is decided jointly from one look, and what was decided is in a cluster's status before an
instance is asked for by it, or ended because of it: a broker that ends in between goes on from there. Quota
and object are let go only after the API server itself, not a cache, has shown that no claim is left. A pass
over clusters that are as they should be writes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition
from broker.apis.ome_clusters import DedicatedAICluster
from broker.capacity.sizing import FlavorProblem, Sized, Sizing, size
from broker.capacity.types import CPU
from broker.controllers.ome.borrowing.spared import borrows, spared
from broker.controllers.ome.clusters import machines, report
from broker.controllers.ome.clusters.marks import Marks
from broker.controllers.ome.clusters.queueing import Queueing
from broker.controllers.ome.clusters.settle import (
    PREEMPTED,
    Evicted,
    Facts,
    Settled,
    Size,
    preempted,
    settle,
)
from broker.controllers.ome.clusters.wanted import Wanted
from broker.controllers.ome.clusters.world import CLAIM, Asking, World, look
from broker.controllers.ome.holdings.wishes import flavors_of
from broker.controllers.ome.shared import Shared
from broker.controllers.reservations.each import each
from broker.kube.conditions import remove_finalizer
from broker.kube.controller import Again
from broker.kube.errors import AlreadyExists, Conflict, NotFound
from broker.quota.entitled import Entitled, Eviction, Verdict
from broker.quota.usage import Reserved
from providers.model import InstanceType

Json = dict[str, Any]

NOT_YET: Final = 1.0
_LARGEST: Final = "max"  # of the annotation that says how a reservation is counted in instances

_log = structlog.get_logger("dedicated")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """What one pass reads, and what it decided."""

    world: World
    decided: Entitled | None  # None where Kueue decides
    claims: Mapping[str, list[NodeClaim]]  # by the uid of their cluster
    down: frozenset[str]  # names of nodes that are not ready
    types: Mapping[str, InstanceType]
    sizes: Callable[[Asking], Size]


def down(node: Node) -> bool:
    """Whether a node of a dedicated cluster takes no pods."""
    ready = condition(node.status.conditions, names.READY)
    return names.DEDICATED in node.labels and (ready is None or ready.status != "True")


class ClusterKeeper:
    """`run` is one pass; it asks to be called at the next moment that matters."""

    def __init__(
        self,
        shared: Shared,
        *,
        priority: Callable[[str], int | None],
        kueue: Callable[[], bool],
        owners: Callable[[], Mapping[str, Reserved]],
    ) -> None:
        """`kueue`: whether Kueue counts quota here. `owners`: whose each of EC2's reservations is, by id."""
        self._shared = shared
        self._kueue = kueue
        self._owners = owners
        self._queueing = Queueing(shared.client, shared.reads, shared.clock)
        self._client, self._clock = shared.client, shared.clock
        self._cache = shared.reads.clusters.cache
        self._priority = priority
        self._marks = Marks(shared.client)

    def run(self) -> Again | None:
        """Raises ApiError, ProviderError; ApiError after each cluster had its turn."""
        if not len(self._cache):
            return None
        if self._kueue() and not self._queueing.known:
            return Again(NOT_YET)
        this = self._observe()
        if this.decided is not None:
            each(this.decided.evictions.items(), lambda item: self._evict(*item))
        waits: list[float] = []
        each(this.world.asking, lambda one: waits.extend(self._keep(this, one)))
        self._marks.forget({one.cluster.uid for one in this.world.asking})
        return Again(min(waits)) if waits else None

    def _observe(self) -> _Pass:
        shared, settings = self._shared, self._shared.settings
        types = shared.provider.instance_types()
        claims: dict[str, list[NodeClaim]] = defaultdict(list)
        drawing = []
        for claim in shared.claims.list():
            if names.DRAWS_FROM in claim.annotations:
                drawing.append(claim)
            if names.DEDICATED in claim.labels:
                for owner in claim.metadata.owner_references:
                    if owner.kind == DedicatedAICluster.KIND.kind:
                        claims[owner.uid].append(claim)
        world = look(
            shared.reads,
            drawing,
            priority=self._priority,
            default_cohort=settings.default_cohort,
            strict=settings.strict,
            firm=self._firm(),
        )
        if queues := self._kueue():
            self._queueing.look()
        return _Pass(
            world=world,
            decided=None if queues else world.decide(),
            claims=claims,
            down=frozenset(node.name for node in shared.nodes.list() if down(node)),
            types=types,
            sizes=self._sizes(world, types),
        )

    def _firm(self) -> Callable[[NodeClaim, Reserved], bool]:
        """Whether a claim of somebody else's is not to be drained: unless it borrows a slot, and may go."""
        shared, owners = self._shared, self._owners()

        def firm(claim: NodeClaim, reserved: Reserved) -> bool:
            return not borrows(claim, reserved, owners) or spared(
                claim, owns=shared.owns, nodes=shared.nodes, pods=shared.pods
            )

        return firm

    def _sizes(self, world: World, types: Mapping[str, InstanceType]) -> Callable[[Asking], Size]:
        """What quota comes to in instances, each flavor worked out once a pass."""
        # Which capacity type a cluster takes is its own or its flavor's word, and changes no count.
        labels = {
            name: {key: value for key, value in one.spec.node_labels.items() if key != names.CAPACITY_TYPE}
            for name, one in world.flavors.items()
        }
        zones = [zone for zone in self._shared.settings.buy_zones.split(",") if zone]
        flavor = flavors_of(labels, types, zones)

        def of(one: Asking) -> Size:
            mine = world.reservations.get(one.reserved) if isinstance(one.reserved, Reserved) else None
            most: Sizing = "accelerator"
            if mine is not None and mine.annotations.get(names.SIZING) == _LARGEST:
                most = "largest"

            def sized(name: str, amounts: Mapping[str, int]) -> Sized | FlavorProblem:
                found = flavor(name)
                if isinstance(found, FlavorProblem):
                    return found
                # Sizing counts cores, quota thousandths of them.
                base = {key: value / 1000 if key == CPU else float(value) for key, value in amounts.items()}
                return size(found, base, types, sizing=most)

            return sized

        return of

    def _keep(self, this: _Pass, one: Asking) -> list[float]:
        """One cluster's step; seconds after which it wants another look, whatever happens before."""
        now = self._clock.now()
        verdict, evicted = self._decided(this, one)
        facts = Facts(
            cluster=one.cluster,
            wanted=one.wanted,
            reserved=one.reserved,
            priority=one.priority,
            barred=one.barred,
            verdict=verdict,
            eviction=evicted,
            claims=this.claims.get(one.cluster.uid, ()),
            down=this.down,
        )
        settled = settle(facts, this.sizes(one), now=now, wait=self._shared.settings.dedicated_wait_seconds)
        lets_go = settled.over or (one.held is not None and settled.held != one.held)
        if lets_go and not settled.change.make and self._unseen(one.cluster, facts):
            return [NOT_YET]
        cluster = self._told(one.cluster, settled, one)
        for claim in settled.change.end:
            self._end(claim)
        for at, flavor in settled.change.make:
            self._make(this, one, cluster, settled, at, flavor)
        if this.decided is None:
            self._queueing.act(one, settled, evicted=evicted is not None)
        if settled.over:
            self._release(cluster)
        return [] if settled.patience is None else [max(settled.patience, NOT_YET)]

    def _decided(self, this: _Pass, one: Asking) -> tuple[Verdict | None, Evicted | None]:
        """By Kueue, where it is there; else by the broker, over all reservations at once."""
        if this.decided is None:
            return self._queueing.said(one, this.world)
        found = this.decided.evictions.get(one.cluster.name)
        return this.decided.verdicts.get(one.cluster.name), preempted(found) if found else None

    def _unseen(self, cluster: DedicatedAICluster, facts: Facts) -> bool:
        """Whether the API server has claims of the cluster that the cache does not show."""
        label = f"{names.DEDICATED}={machines.dedicated(cluster)}"
        listed, _ = self._client.list(NodeClaim.KIND, label_selector=label)
        known = {claim.uid for claim in facts.claims}
        unseen = [
            raw
            for raw in listed
            if raw["metadata"]["uid"] not in known
            and any(o.get("uid") == cluster.uid for o in raw["metadata"].get("ownerReferences", ()))
        ]
        for raw in unseen:
            self._shared.claims.observe(raw)
        return bool(unseen)

    def _told(self, cluster: DedicatedAICluster, settled: Settled, one: Asking) -> DedicatedAICluster:
        """The cluster with our marks and its status."""
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
        self, this: _Pass, one: Asking, cluster: DedicatedAICluster, settled: Settled, at: int, flavor: str
    ) -> None:
        """One more claim; that it is there already is an earlier try's, and is seen soon."""
        known, sized = this.world.flavors.get(flavor), settled.sized.get(flavor)
        if not isinstance(one.wanted, Wanted) or settled.held is None or known is None or sized is None:
            return  # what it holds is kept as it is, and nothing is added to it
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

    def _node_class(self, world: World, one: Asking) -> str:
        """By the cluster's own word, its profile's, its reservation's, the setting's."""
        mine = world.reservations.get(one.reserved) if isinstance(one.reserved, Reserved) else None
        for source in (one.cluster, one.profile, mine):
            if source is not None and (named := source.annotations.get(names.NODE_CLASS)):
                return named
        return self._shared.settings.dedicated_node_class

    def _end(self, claim: NodeClaim) -> None:
        """Drained and terminated as every claim is."""
        try:
            answer = self._client.delete(NodeClaim.KIND, claim.name, uid=claim.uid)
        except NotFound:
            return
        if answer.get("kind") == NodeClaim.KIND.kind:  # of one that nothing holds, a Status tells
            self._shared.claims.observe(answer)

    def _evict(self, name: str, eviction: Eviction) -> None:
        """A claim of somebody else, which holds quota that is wanted back. Clusters have their own turn."""
        if not name.startswith(CLAIM):
            return
        claim = self._shared.claims.get(name.removeprefix(CLAIM))
        if claim is None or claim.deleting:
            return
        self._shared.recorder.event(
            claim,
            "Warning",
            PREEMPTED,
            f"{eviction.reason}: preempted for {eviction.preemptor}; preemptor path: "
            f"{eviction.preemptor_path}; preemptee path: {eviction.preemptee_path}",
        )
        self._end(claim)

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
