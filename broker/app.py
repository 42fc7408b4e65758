"""The only place that builds and wires things, and that owns their start and stop.

Invariant: nothing acts before the caches it reads are complete, and nothing acts after `stop` has returned.
One Broker is one term of leadership: when the Lease is lost it is thrown away, and the next term builds
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor as Threads
from typing import Any

from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.controllers.advisor.loops import AdvisorLoops
from broker.controllers.annotations.loop import annotation_loop
from broker.controllers.interruption.notices import NoticeKeeper
from broker.controllers.interruption.reader import QueueReader
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.nodeclaim.loops import LONGEST, NodeClaimLoops
from broker.controllers.nodeclaim.takeover import TakeOver
from broker.controllers.nodeclaim.translate import asked_tenancy
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.finalizer import ClassFinalizer
from broker.controllers.nodeclass.network import NetworkReader
from broker.controllers.nodeclass.resolve import Unresolved
from broker.controllers.ome.loops import OmeLoops
from broker.controllers.ome.reads import OmeReads
from broker.controllers.ome.shared import ReservationDependencies
from broker.controllers.prices import EVERY as PRICES
from broker.controllers.prices import PriceKeeper
from broker.controllers.profiles import ProfileSweeper
from broker.controllers.reservations.loops import ReservationLoops
from broker.controllers.templates import TemplateSweeper
from broker.informers import Informers
from broker.kube.batch import Batcher
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.controller import Controller, Result
from broker.kube.events import Recorder
from broker.kube.informer import Informer
from broker.kube.isolation import Isolation
from broker.kube.metrics import REGISTRY as KUBE_REGISTRY
from broker.kube.queue import WorkQueue
from broker.kube.singleton import Singleton
from broker.memory import give_back
from broker.oncall.journal import Journal
from broker.oncall.metrics import REGISTRY
from broker.settings import Settings
from providers.base import CapacityProvider
from providers.model import ProviderError

LEASE = "capacity-broker"
# What /metrics shows.
REGISTRIES = (REGISTRY, KUBE_REGISTRY)
SWEEP = 60.0
AT_LIMIT = "/at-limit"  # no class has this name


class Broker:
    """Everything that runs while this process leads."""

    def __init__(
        self,
        client: Client,
        provider: CapacityProvider,
        settings: Settings,
        *,
        clock: Clock,
        threads: Threads | None = None,
    ) -> None:
        """`threads` makes the calls that launch; the broker's own where none is given."""
        self.journal = Journal()
        self.read = Informers(client, clock=clock)
        self.informers: tuple[Informer[Any], ...] = tuple(self.read.named.values())
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
            network=NetworkReader(client, configured=settings.service_range).read,
        )
        self._sweeper = TemplateSweeper(
            provider,
            clock=clock,
            classes=lambda: [
                *(c.name for c in self.read.classes.cache.list()),
                *self.read.classes.cache.broken,
            ],
        )
        self._profiles = ProfileSweeper(
            provider,
            clock=clock,
            classes=self.read.classes.cache.list,
            unreadable=lambda: self.read.classes.cache.broken,
        )
        held = ClassFinalizer(
            client,
            self.read.classes.cache,
            self.read.claims.cache,
            clock=clock,
            recorder=self.recorder,
            owns=self._owns,
        )
        expected = (ProviderError,)

        self._nodeclaims = NodeClaimLoops(
            client,
            provider,
            claims=self.read.claims.cache,
            nodes=self.read.nodes.cache,
            pods=self.read.pods.cache,
            pools=self.read.pools.cache,
            inventory=self.inventory,
            resolved=self._nodeclass,
            journal=self.journal,
            settings=settings,
            clock=clock,
            recorder=self.recorder,
            owns=self._owns,
            used=self._sweeper.used,
            sweep=self._templates_at_limit,
            dirty=lambda name: self._class_queue.add(name),
            describe=lambda: self._polls.add("launch"),
            entitling=lambda: self.ome.borrowing,
            synced=self.read.synced,
            threads=threads,
        )
        self.launcher, self._launches = self._nodeclaims.launcher, self._nodeclaims.launches
        reservations = ReservationLoops(
            client,
            provider,
            claims=self.read.claims.cache,
            classes=self.read.classes.cache,
            nodes=self.read.nodes.cache,
            inventory=self.inventory,
            resolved=self._nodeclass,
            view=self._nodeclaims.view,
            clock=clock,
            recorder=self.recorder,
            owns=self._owns,
            relist=lambda: self._launches.add("listing"),
            synced=self.read.synced,
            every=settings.poll_seconds,
        )
        self.informers += reservations.informers
        self.ome = OmeLoops(
            ReservationDependencies(
                client=client,
                provider=provider,
                reads=OmeReads(
                    client,
                    clock=clock,
                    settings=settings,
                ),
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
        self.informers += self.ome.informers
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
        self.informers += advisor.informers
        self._polls = Batcher[str]("inventory", clock=clock)
        self._sweeps = Batcher[str]("templates", clock=clock)
        self._profile_sweeps = Batcher[str]("profiles", clock=clock)
        self._class_queue = WorkQueue[str]("nodeclass", clock=clock, longest=LONGEST)
        self._hold_queue = WorkQueue[str]("finalizer", clock=clock, longest=LONGEST)
        self.loops: tuple[Singleton[Any] | Controller[str], ...] = (
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
            *self._nodeclaims.loops,
            Singleton(
                "templates",
                self._sweep,
                batcher=self._sweeps,
                clock=clock,
                synced=self.read.synced,
                every=SWEEP,
                expected=expected,
            ),
            Singleton(
                "profiles",
                self._sweep_profiles,
                batcher=self._profile_sweeps,
                clock=clock,
                synced=self.read.synced,
                every=SWEEP,
                expected=expected,
            ),
            *reservations.loops,
            *advisor.loops,
            *self.ome.loops,
            annotation_loop(
                claims=self.read.claims.cache,
                pools=self.read.pools.cache,
                classes=self.read.classes.cache,
                reads=self.ome.reads,
                reserved=self.ome.reserved,
                clock=clock,
                recorder=self.recorder,
                synced=self.read.synced,
            ),
        )
        if not settings.aws_endpoint:  # what stands in for AWS has prices of nothing
            keeper = PriceKeeper(provider, clock=clock)
            batcher = Batcher[str]("prices", clock=clock)
            self.loops += (Singleton("prices", keeper.run, batcher=batcher, clock=clock, every=PRICES),)
        notices = NoticeKeeper(
            client,
            self.read.claims.cache,
            self.read.nodes.cache,
            clock=clock,
            recorder=self.recorder,
            owns=self._owns,
            short=self.launcher.announced,
            placement=self._placement,
            describe=lambda: self._polls.add("notice"),
        )
        queue = settings.interruption_queue
        self.reader = (
            QueueReader(provider, queue, notices.take, clock=clock, synced=self.read.synced)
            if queue
            else None
        )
        self.isolation = Isolation((each.cache for each in self.informers), self.recorder, clock=clock)
        for loop in self.loops:
            loop.isolate = self.isolation.search
        if self.reader is not None:
            self.reader.isolate = self.isolation.search
        self.read.system.on_change(lambda _, new: provider.identify(new.uid) if new else None)
        self._wire()

    def start(self) -> None:
        for informer in self.informers:
            informer.start()
        self.recorder.start()
        for loop in self.loops:
            loop.start()
        if self.reader is not None:
            self.reader.start()

    def stop(self) -> None:
        """Lets what is under way end, then stops reading."""
        if self.reader is not None:
            self.reader.stop()
        for loop in reversed(self.loops):
            loop.stop()
        self._nodeclaims.close()
        self.recorder.stop()
        for informer in self.informers:
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
        self.read.claims.on_change(self._claim_came_or_went)
        self.read.claims.on_change(self._nodeclaims.claim_changed)
        self.read.nodes.on_change(self._nodeclaims.node_changed)
        self.inventory.on_change(self._inventory_changed)
        self._nodeclass.on_change(self._nodeclaims.class_resolved)

    def _class_changed(self, old: EC2NodeClass | None, new: EC2NodeClass | None) -> None:
        one = new or old
        if one is None:
            return
        self._class_queue.add(one.name)
        self._hold_queue.add(one.name)
        if new is None:
            self._sweeps.add(one.name)
            self._profile_sweeps.add(one.name)
            self._launches.add(one.name)

    def _claim_came_or_went(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        one = new or old
        if one is not None and (old is None or new is None) and self._owns(one):
            self._hold_queue.add(one.spec.node_class_ref.name)

    def _inventory_changed(self) -> None:
        for node_class in self.read.classes.cache.list():
            self._class_queue.add(node_class.name)
        self._launches.add("inventory")

    def _placement(self, claim: NodeClaim) -> str:
        try:
            plan = self._nodeclass.ready(claim.spec.node_class_ref.name).plan
            return plan.of_tenancy(asked_tenancy(claim)).placement
        except Unresolved:
            return ""  # nothing is launched from it now

    def _poll(self, _items: Sequence[str]) -> Result | None:
        if self._ownership.look():
            for claim in self.read.claims.cache.list():
                self._nodeclaims.queue.add(claim.name)
                self._hold_queue.add(claim.spec.node_class_ref.name)
            self._launches.add("karpenter")
        first = not self.inventory.described
        self.inventory.refresh()
        if first:
            self._inventory_changed()
        return None

    def _sweep(self, items: Sequence[str]) -> Result | None:
        give_back()
        self.isolation.readmit()
        self._sweeper.sweep(at_limit=AT_LIMIT in items)
        return None

    def _sweep_profiles(self, _items: Sequence[str]) -> Result | None:
        self._profiles.sweep()
        return None

    def _templates_at_limit(self) -> None:
        self._sweeps.add(AT_LIMIT)
