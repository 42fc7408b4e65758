"""The loops about NodeClaims: launches for all of them at once, the life of each, nodes that lost theirs.

Invariant: what is marked dirty here is decided elsewhere; nothing runs before every cache is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor as Threads
from datetime import timedelta

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.capacity.model import Attempt
from broker.controllers.interruption.notices import BY_INSTANCE
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.nodeclaim.abandoned import AbandonedNodes
from broker.controllers.nodeclaim.calls import Calls
from broker.controllers.nodeclaim.execute import Executor
from broker.controllers.nodeclaim.instances import InstanceView
from broker.controllers.nodeclaim.launch import Launcher
from broker.controllers.nodeclaim.lifecycle import Lifecycle
from broker.controllers.nodeclaim.losses import Losses
from broker.controllers.nodeclaim.planning import Entitling
from broker.controllers.nodeclaim.registration import BY_PROVIDER_ID, MARK, Registration
from broker.controllers.nodeclaim.report import ATTEMPTS, Reporter, limit
from broker.controllers.nodeclaim.status import instance_id
from broker.controllers.nodeclaim.template import ClusterFacts
from broker.controllers.nodeclaim.termination import Termination
from broker.controllers.nodeclaim.terminations import Terminations
from broker.controllers.nodeclaim.trial import SETTLED, LaunchTrials
from broker.controllers.nodeclass.controller import NodeClassController
from broker.kube.batch import Batcher
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.conditions import ConditionUpdate
from broker.kube.controller import Controller
from broker.kube.events import Recorder
from broker.kube.queue import WorkQueue
from broker.kube.singleton import Singleton
from broker.oncall.journal import Journal
from broker.settings import Settings
from providers.base import CapacityProvider
from providers.model import ProviderError, TemplateRef

LONGEST = 60.0  # between two tries at one object, however often it failed
# Annotations that only the broker writes: no reason to look at a claim again.
BROKER_ANNOTATIONS = frozenset({names.LAUNCH, ATTEMPTS})


class NodeClaimLoops:
    """`loops` are started and stopped by whoever builds it; `close` ends what they leave.

    `dirty` marks a class, `describe` asks for EC2's reservations anew, `used` hears of each template, `sweep`
    deletes those that nothing uses.
    """

    def __init__(
        self,
        client: Client,
        provider: CapacityProvider,
        *,
        claims: Cache[NodeClaim],
        nodes: Cache[Node],
        pods: Cache[Pod],
        pools: Cache[NodePool],
        inventory: InventoryKeeper,
        resolved: NodeClassController,
        journal: Journal,
        settings: Settings,
        clock: Clock,
        recorder: Recorder,
        owns: Callable[[NodeClaim], bool],
        used: Callable[[TemplateRef], None],
        sweep: Callable[[], None],
        dirty: Callable[[str], None],
        describe: Callable[[], None],
        entitling: Callable[[], Entitling],
        synced: Callable[[], bool],
        threads: Threads | None = None,
    ) -> None:
        self._claims = claims
        self._inventory = inventory
        self._resolved = resolved
        self._owns = owns
        self._dirty = dirty
        self._describe = describe
        self._reporter = Reporter(client, claims, pools, pods, clock=clock, recorder=recorder)
        cluster = ClusterFacts(
            name=settings.cluster_name,
            endpoint=settings.cluster_endpoint,
            ca_bundle=settings.cluster_ca,
        )
        self.trials = LaunchTrials(
            provider,
            resolved,
            pools,
            inventory,
            clock=clock,
            cluster=cluster,
            dirty=dirty,
            ours=lambda pool: (
                pool.spec.template.spec.node_class_ref.group == names.BROKER or settings.take_over_karpenter
            ),
        )
        executor = Executor(
            client,
            provider,
            claims,
            inventory,
            journal,
            self._reporter,
            clock=clock,
            cluster=cluster,
            owns=owns,
            used=used,
            calls=Calls(client),
        )
        self.view = InstanceView(
            provider,
            clock=clock,
            grace=timedelta(seconds=settings.orphan_grace_seconds),
            check=client.check,
        )
        self.launcher = Launcher(
            provider,
            claims,
            nodes,
            resolved,
            inventory,
            self.view,
            executor,
            self._reporter,
            Losses(client, claims, nodes, clock=clock, recorder=recorder, end=self._reporter.lost),
            clock=clock,
            owns=owns,
            limits=self._limit,
            doubt=self._doubted,
            sweep=sweep,
            launched=self.trials.launched,
            plan_seconds=settings.plan_seconds,
            entitling=entitling,
            threads=threads,
        )
        self._terminations = Terminations(provider, clock=clock, check=client.check, wake=self._ended)
        lifecycle = Lifecycle(
            claims,
            Registration(client, claims, nodes, clock=clock, recorder=recorder),
            Termination(
                client,
                self._terminations,
                claims,
                nodes,
                pods,
                clock=clock,
                recorder=recorder,
                launching=self.launcher.launching,
                ending=self._ending,
            ),
            owns=owns,
        )
        abandoned = AbandonedNodes(client, self._terminations, claims, nodes)
        self._nodes = nodes
        self.launches = Batcher[str]("launch", clock=clock)
        self._node_queue = WorkQueue[str]("node", clock=clock, longest=LONGEST)
        self.queue = WorkQueue[str]("nodeclaim", clock=clock, longest=LONGEST)
        self._trial_queue = WorkQueue[str]("trial", clock=clock, longest=LONGEST)
        expected = (ProviderError,)
        self.loops: tuple[Singleton[str] | Controller[str], ...] = (
            Singleton(
                "launch",
                self.launcher.run,
                batcher=self.launches,
                clock=clock,
                synced=synced,
                every=60.0,
                expected=expected,
            ),
            Controller(
                "nodeclaim",
                lifecycle.reconcile,
                queue=self.queue,
                clock=clock,
                workers=4,
                synced=synced,
                expected=expected,
            ),
            Singleton(
                "terminations",
                self._terminations.run,
                batcher=self._terminations.batcher,
                clock=clock,
                synced=synced,
                expected=expected,
            ),
            Controller(
                "trial",
                self.trials.reconcile,
                queue=self._trial_queue,
                clock=clock,
                workers=1,
                synced=synced,
                expected=expected,
            ),
            Controller(
                "node",
                abandoned.reconcile,
                queue=self._node_queue,
                clock=clock,
                workers=1,
                synced=synced,
                expected=expected,
            ),
        )

    def close(self) -> None:
        self.launcher.close()

    def class_resolved(self, name: str) -> None:
        self.launches.add(name)
        self._trial_queue.add_after(name, SETTLED)

    def claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        one = new or old
        if one is None or not self._owns(one):
            return
        if new is not None and (new.status.provider_id or new.deleting):
            self.queue.add(one.name)
        if new is not None and not new.status.provider_id and (old is None or _asked(old) != _asked(new)):
            self.launches.add(one.name)
        if new is None:
            self._terminations.forget(instance_id(one))
            self._describe()  # its slot may be free
            for node in self._nodes.by(BY_PROVIDER_ID, one.status.provider_id or "-"):
                self._node_queue.add(node.name)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        one = new or old
        if one is None or not one.spec.provider_id:
            return
        claims = self._claims.by(BY_PROVIDER_ID, one.spec.provider_id)
        for claim in claims:
            self.queue.add(claim.name)
        if not claims and MARK in one.annotations:
            self._node_queue.add(one.name)

    def _ended(self, id_: str) -> None:
        """EC2 has news of an instance that a claim or a node waits for."""
        for claim in self._claims.by(BY_INSTANCE, id_):
            self.queue.add(claim.name)
        for node in self._nodes.list():
            if MARK in node.annotations and node.spec.provider_id.endswith(f"/{id_}"):
                self._node_queue.add(node.name)

    def _ending(self, claim: NodeClaim, alive: bool) -> None:
        """When the instance has ended its slot is free, and known to be before EC2 is asked for the count."""
        odcr_id = claim.labels.get(names.RESERVATION_ID, "")
        self._inventory.ending(instance_id=instance_id(claim), odcr_id=odcr_id, alive=alive)
        if odcr_id and not alive:
            self.launches.add("ended")

    def _doubted(self, name: str) -> None:
        """EC2 refused what the class names: reservations and class are looked up anew."""
        self._resolved.doubt(name)
        self._dirty(name)
        self._describe()

    def _limit(self, attempt: Attempt) -> None:
        """What an attempt says about reservations goes to its class and its pool."""
        change = limit(attempt)
        if change is None:
            return
        verdict = ConditionUpdate(
            type=change.type, status=change.status, reason=change.reason, message=change.message
        )
        self._resolved.limit(attempt.node_class, verdict)
        self._dirty(attempt.node_class)
        claim = self._claims.get(attempt.claim)
        if claim is not None and (pool := claim.labels.get(names.NODEPOOL)):
            self._reporter.pool_limit(pool, change)


def _asked(claim: NodeClaim) -> tuple[object, ...]:
    """What of a waiting claim decides whether and how it is launched."""
    annotations = {key: value for key, value in claim.annotations.items() if key not in BROKER_ANNOTATIONS}
    return claim.spec, claim.labels, annotations, claim.status.provider_id
