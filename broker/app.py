"""The only place that builds and wires things, and that owns their start and stop.

Invariant: nothing acts before the caches it reads are complete, and nothing acts after `stop` has returned.
One Broker is one term of leadership: when the Lease is lost it is thrown away, and the next term builds
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.capacity.model import Attempt
from broker.controllers.advisor.loops import AdvisorLoops
from broker.controllers.interruption.notices import NoticeKeeper
from broker.controllers.interruption.reader import QueueReader
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.nodeclaim.abandoned import AbandonedNodes
from broker.controllers.nodeclaim.execute import Executor
from broker.controllers.nodeclaim.instances import InstanceView
from broker.controllers.nodeclaim.launch import Launcher
from broker.controllers.nodeclaim.lifecycle import Lifecycle
from broker.controllers.nodeclaim.registration import BY_PROVIDER_ID, MARK, Registration
from broker.controllers.nodeclaim.report import ATTEMPTS, Reporter, limit
from broker.controllers.nodeclaim.status import instance_id
from broker.controllers.nodeclaim.takeover import TakeOver
from broker.controllers.nodeclaim.template import ClusterFacts
from broker.controllers.nodeclaim.termination import Termination
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.finalizer import ClassFinalizer
from broker.controllers.nodeclass.status import Verdict
from broker.controllers.ome.loops import OmeLoops
from broker.controllers.ome.reads import OmeReads
from broker.controllers.ome.shared import Shared
from broker.controllers.prices import EVERY as PRICES
from broker.controllers.prices import PriceKeeper
from broker.controllers.reservations.loops import ReservationLoops
from broker.controllers.templates import TemplateSweeper
from broker.informers import Informers
from broker.kube.batch import Batcher
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.controller import Again, Controller
from broker.kube.events import Recorder
from broker.kube.informer import Informer
from broker.kube.metrics import REGISTRY as KUBE_REGISTRY
from broker.kube.queue import WorkQueue
from broker.kube.singleton import Singleton
from broker.oncall.journal import Journal
from broker.oncall.metrics import REGISTRY
from broker.settings import Settings
from providers.base import CapacityProvider
from providers.model import ProviderError

LEASE = "capacity-broker"
# What /metrics shows.
REGISTRIES = (REGISTRY, KUBE_REGISTRY)
SWEEP = 60.0
LONGEST = 60.0  # between two tries at one object, however often it failed
# Annotations that only the broker writes: no reason to look at a claim again.
OURS = frozenset({names.LAUNCH, names.LAUNCH_REQUEST, ATTEMPTS})


class Broker:
    """Everything that runs while this process leads."""

    def __init__(
        self, client: Client, provider: CapacityProvider, settings: Settings, *, clock: Clock
    ) -> None:
        self.journal = Journal()
        self.read = Informers(client, clock=clock)
        self._informers: tuple[Informer[Any], ...] = tuple(self.read.named.values())
        self._ownership = TakeOver(
            client, self.read.leases.cache, enabled=settings.take_over_karpenter, clock=clock
        )
        self._owns = self._ownership.owns

        self.recorder = Recorder(client, "capacity-broker", clock)
        self.inventory = InventoryKeeper(provider, clock=clock, groups=lambda: self._nodeclass.group_arns())
        self._nodeclass = NodeClassController(
            client,
            provider,
            self.inventory,
            self.read.classes.cache,
            clock=clock,
            recorder=self.recorder,
            describe=lambda: self._polls.add("class"),
            overhead=settings.overhead,
        )
        self._sweeper = TemplateSweeper(
            provider,
            clock=clock,
            classes=lambda: [
                *(c.name for c in self.read.classes.cache.list()),
                *self.read.classes.cache.broken,
            ],
        )
        reporter = Reporter(
            client,
            self.read.claims.cache,
            self.read.pools.cache,
            self.read.pods.cache,
            clock=clock,
            recorder=self.recorder,
        )
        self._reporter = reporter
        executor = Executor(
            client,
            provider,
            self.read.claims.cache,
            self.inventory,
            self.journal,
            reporter,
            clock=clock,
            cluster=ClusterFacts(
                name=settings.cluster_name,
                endpoint=settings.cluster_endpoint,
                ca_bundle=settings.cluster_ca,
                service_cidr=settings.service_cidr,
            ),
            used=self._sweeper.used,
        )
        view = InstanceView(
            provider,
            clock=clock,
            grace=timedelta(seconds=settings.orphan_grace_seconds),
            check=client.check,
        )
        self.launcher = Launcher(
            provider,
            self.read.claims.cache,
            self._nodeclass,
            self.inventory,
            view,
            executor,
            reporter,
            clock=clock,
            owns=self._owns,
            limits=self._limit,
            doubt=self._doubted,
            plan_seconds=settings.plan_seconds,
            entitling=lambda: self.ome.borrowing,
        )
        lifecycle = Lifecycle(
            self.read.claims.cache,
            Registration(
                client, self.read.claims.cache, self.read.nodes.cache, clock=clock, recorder=self.recorder
            ),
            Termination(
                client,
                provider,
                self.read.claims.cache,
                self.read.nodes.cache,
                self.read.pods.cache,
                clock=clock,
                recorder=self.recorder,
                launching=self.launcher.launching,
                ending=self._ending,
            ),
            owns=self._owns,
        )
        held = ClassFinalizer(
            client,
            self.read.classes.cache,
            self.read.claims.cache,
            clock=clock,
            recorder=self.recorder,
            owns=self._owns,
        )
        abandoned = AbandonedNodes(client, provider, self.read.claims.cache, self.read.nodes.cache)
        expected = (ProviderError,)

        reservations = ReservationLoops(
            client,
            provider,
            claims=self.read.claims.cache,
            classes=self.read.classes.cache,
            nodes=self.read.nodes.cache,
            inventory=self.inventory,
            resolved=self._nodeclass,
            view=view,
            clock=clock,
            recorder=self.recorder,
            owns=self._owns,
            relist=lambda: self._launches.add("listing"),
            synced=self.read.synced,
            every=settings.poll_seconds,
        )
        self._informers += reservations.informers
        self.ome = OmeLoops(
            Shared(
                client=client,
                provider=provider,
                reads=OmeReads(client, clock=clock),
                claims=self.read.claims.cache,
                nodes=self.read.nodes.cache,
                pods=self.read.pods.cache,
                inventory=self.inventory,
                settings=settings,
                clock=clock,
                recorder=self.recorder,
                owns=self._owns,
                describe=lambda: self._polls.add("reserved"),
                replan=lambda: self._launches.add("reserved"),
                synced=self.read.synced,
            )
        )
        self._informers += self.ome.informers
        advisor = AdvisorLoops(
            client,
            provider,
            classes=self.read.classes.cache,
            pools=self.read.pools.cache,
            inventory=self.inventory,
            resolved=self._nodeclass,
            clock=clock,
            recorder=self.recorder,
            cluster=settings.cluster_name,
            describe=lambda: self._polls.add("tags"),
            synced=self.read.synced,
            enabled=settings.advise,
            keep_definition=settings.keep_definition,
        )
        self._informers += advisor.informers
        self._launches = Batcher[str]("launch", clock=clock)
        self._polls = Batcher[str]("inventory", clock=clock)
        self._sweeps = Batcher[str]("templates", clock=clock)
        self._class_queue = WorkQueue[str]("nodeclass", clock=clock, longest=LONGEST)
        self._hold_queue = WorkQueue[str]("finalizer", clock=clock, longest=LONGEST)
        self._node_queue = WorkQueue[str]("node", clock=clock, longest=LONGEST)
        self._claim_queue = WorkQueue[str]("nodeclaim", clock=clock, longest=LONGEST)
        self._loops: tuple[Singleton[str] | Controller[str], ...] = (
            Singleton(
                "inventory",
                self._poll,
                batcher=self._polls,
                clock=clock,
                synced=self.read.synced,
                every=settings.poll_seconds,
                expected=expected,
            ),
            Controller(
                "nodeclass",
                self._nodeclass.reconcile,
                queue=self._class_queue,
                clock=clock,
                workers=2,
                synced=self.read.synced,
                expected=expected,
            ),
            Controller(
                "finalizer",
                held.reconcile,
                queue=self._hold_queue,
                clock=clock,
                workers=1,
                synced=self.read.synced,
            ),
            Singleton(
                "launch",
                self.launcher.run,
                batcher=self._launches,
                clock=clock,
                synced=self.read.synced,
                every=60.0,
                expected=expected,
            ),
            Controller(
                "nodeclaim",
                lifecycle.reconcile,
                queue=self._claim_queue,
                clock=clock,
                workers=4,
                synced=self.read.synced,
                expected=expected,
            ),
            Controller(
                "node",
                abandoned.reconcile,
                queue=self._node_queue,
                clock=clock,
                workers=1,
                synced=self.read.synced,
                expected=expected,
            ),
            Singleton(
                "templates",
                self._sweep,
                batcher=self._sweeps,
                clock=clock,
                synced=self.read.synced,
                every=SWEEP,
                expected=expected,
            ),
            *reservations.loops,
            *advisor.loops,
            *self.ome.loops,
        )
        if not settings.aws_endpoint:  # what stands in for AWS has prices of nothing
            keeper = PriceKeeper(provider, clock=clock)
            batcher = Batcher[str]("prices", clock=clock)
            self._loops += (Singleton("prices", keeper.run, batcher=batcher, clock=clock, every=PRICES),)
        notices = NoticeKeeper(
            client,
            self.read.claims.cache,
            self.read.nodes.cache,
            clock=clock,
            recorder=self.recorder,
            owns=self._owns,
            short=self.launcher.announced,
            describe=lambda: self._polls.add("notice"),
        )
        queue = settings.interruption_queue
        self._reader = (
            QueueReader(provider, queue, notices.take, clock=clock, synced=self.read.synced)
            if queue
            else None
        )
        self._wire()

    def start(self) -> None:
        for informer in self._informers:
            informer.start()
        self.recorder.start()
        for loop in self._loops:
            loop.start()
        if self._reader is not None:
            self._reader.start()

    def stop(self) -> None:
        """Lets what is under way end, then stops reading."""
        if self._reader is not None:
            self._reader.stop()
        for loop in reversed(self._loops):
            loop.stop()
        self.launcher.close()
        self.recorder.stop()
        for informer in self._informers:
            informer.stop()

    def ready(self) -> Mapping[str, bool]:
        """What must be complete before the broker acts, by name."""
        return {
            **{name: each.synced for name, each in self.read.named.items()},
            "ec2-reservations": self.inventory.described,
        }

    def _wire(self) -> None:
        """Informers and loops mark keys dirty; nothing is decided here."""
        self.read.classes.on_change(self._class_changed)
        self.read.claims.on_change(self._claim_changed)
        self.read.nodes.on_change(self._node_changed)
        self.inventory.on_change(self._inventory_changed)
        self._nodeclass.on_change(self._class_resolved)

    def _class_changed(self, old: EC2NodeClass | None, new: EC2NodeClass | None) -> None:
        one = new or old
        if one is None:
            return
        self._class_queue.add(one.name)
        self._hold_queue.add(one.name)
        if new is None:
            self._sweeps.add(one.name)
            self._launches.add(one.name)

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        one = new or old
        if one is None or not self._owns(one):
            return
        self._claim_queue.add(one.name)
        if old is None or new is None:
            self._hold_queue.add(one.spec.node_class_ref.name)
        if new is not None and not new.status.provider_id and (old is None or _asked(old) != _asked(new)):
            self._launches.add(one.name)
        if new is None:
            self._polls.add(one.name)  # its slot may be free
            for node in self.read.nodes.cache.by(BY_PROVIDER_ID, one.status.provider_id or "-"):
                self._node_queue.add(node.name)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        one = new or old
        if one is None or not one.spec.provider_id:
            return
        claims = self.read.claims.cache.by(BY_PROVIDER_ID, one.spec.provider_id)
        for claim in claims:
            self._claim_queue.add(claim.name)
        if not claims and MARK in one.annotations:
            self._node_queue.add(one.name)

    def _inventory_changed(self) -> None:
        for node_class in self.read.classes.cache.list():
            self._class_queue.add(node_class.name)
        self._launches.add("inventory")

    def _ending(self, claim: NodeClaim, alive: bool) -> None:
        """When the instance has ended its slot is free, and known to be before EC2 is asked for the count."""
        odcr_id = claim.labels.get(names.RESERVATION_ID, "")
        self.inventory.ending(instance_id=instance_id(claim), odcr_id=odcr_id, alive=alive)
        if odcr_id and not alive:
            self._launches.add("ended")

    def _class_resolved(self, name: str) -> None:
        self._launches.add(name)

    def _doubted(self, name: str) -> None:
        """EC2 refused what the class names: reservations and class are looked up anew."""
        self._nodeclass.doubt(name)
        self._class_queue.add(name)
        self._polls.add(name)

    def _limit(self, attempt: Attempt) -> None:
        """What an attempt says about reservations goes to its class and its pool."""
        change = limit(attempt)
        if change is None:
            return
        verdict = Verdict(
            type=change.type, status=change.status, reason=change.reason, message=change.message
        )
        self._nodeclass.limit(attempt.node_class, verdict)
        self._class_queue.add(attempt.node_class)
        claim = self.read.claims.cache.get(attempt.claim)
        if claim is not None and (pool := claim.labels.get(names.NODEPOOL)):
            self._reporter.pool_limit(pool, change)

    def _poll(self, _items: Sequence[str]) -> Again | None:
        if self._ownership.look():
            for claim in self.read.claims.cache.list():
                self._claim_queue.add(claim.name)
                self._hold_queue.add(claim.spec.node_class_ref.name)
            self._launches.add("karpenter")
        first = not self.inventory.described
        self.inventory.refresh()
        if first:
            self._inventory_changed()
        return None

    def _sweep(self, _items: Sequence[str]) -> Again | None:
        self._sweeper.sweep()
        return None


def _asked(claim: NodeClaim) -> tuple[object, ...]:
    """What of a waiting claim decides whether and how it is launched."""
    annotations = {key: value for key, value in claim.annotations.items() if key not in OURS}
    return claim.spec, claim.labels, annotations, claim.status.provider_id
