"""Builds everything that runs while this process leads; `wiring` declares the triggers.

Invariant: nothing acts before the caches it reads are complete, and no run begins after `stop` has returned.
One Broker is one term of leadership: when the Lease is lost it is thrown away, and the next term builds
another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor as Threads
from datetime import timedelta
from functools import partial

from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws_definition import NAME as CLASS_DEFINITION
from broker.apis.karpenter_aws_definition import CustomResourceDefinition
from broker.apis.policy import PodDisruptionBudget
from broker.controllers.advisor.accepted import AcceptedSpecController
from broker.controllers.advisor.controller import Advisor
from broker.controllers.advisor.definition import DefinitionController
from broker.controllers.claim_caches import ClaimCaches, Ec2State
from broker.controllers.dependencies import ReservationDependencies
from broker.controllers.disruption.controller import DisruptionController
from broker.controllers.disruption.sources import DisruptionSources
from broker.controllers.instances import InstanceView
from broker.controllers.interruption.notices import NoticeResponder
from broker.controllers.interruption.reader import QueueReader
from broker.controllers.inventory import InventoryCache
from broker.controllers.lifecycle.takeover import TakeOver
from broker.controllers.nodeclass.controller import NodeClassController, group_arns
from broker.controllers.nodeclass.finalizer import ClassFinalizer
from broker.controllers.nodeclass.network import NetworkReader
from broker.controllers.nodereservation.occupancy import OccupancyReader
from broker.controllers.nodereservation.reads import SchedulerReads
from broker.controllers.prices import PriceRefresher
from broker.controllers.profiles import ProfileSweeper
from broker.controllers.provisioning.pool_status import PoolStatusController
from broker.controllers.provisioning.provisioner import Provisioner
from broker.controllers.provisioning.reads import ProvisioningReads
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.templates import TemplateSweeper
from broker.informers import Informers
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.context import ControllerContext
from broker.kube.events import Recorder
from broker.kube.informer import Informer
from broker.kube.manager import ControllerManager
from broker.kube.metrics import REGISTRY as KUBE_REGISTRY
from broker.memory import give_back
from broker.oncall import state
from broker.oncall.journal import Journal, forget_class
from broker.oncall.metrics import REGISTRY, clear_tables, forget_object
from broker.placement.waiting import waiting_since
from broker.settings import Settings
from broker.wiring.claims import (
    AT_LIMIT,
    watch_advice,
    watch_claims,
    watch_classes,
    watch_inventory,
    watch_prices,
    watch_sweeps,
)
from broker.wiring.disruption import watch_disruption
from broker.wiring.kueue import watch_admissions, watch_check, watch_queues
from broker.wiring.launching import claim_controllers, launches_for
from broker.wiring.odcr_controllers import odcr_controllers
from broker.wiring.provisioning import watch_pods, watch_pool_status
from broker.wiring.reservation_controllers import ReservationControllers, reservation_controllers
from broker.wiring.reservations import (
    watch_annotations,
    watch_odcr_objects,
    watch_odcrs,
    watch_slots,
    watch_status,
)
from broker.wiring.signals import Signals
from providers.base import CapacityProvider
from providers.errors import ProviderError

LEASE = "capacity-broker"
# Shown by /metrics.
REGISTRIES = (REGISTRY, KUBE_REGISTRY)


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
        """`threads` makes the calls that launch; by default the broker's own."""
        self._client, self._provider, self._settings, self._clock = client, provider, settings, clock
        self.journal = Journal()
        self.read = read = Informers(client, clock=clock)
        self.recorder = Recorder(client, "capacity-broker", clock)
        self._context = context = ControllerContext(client=client, recorder=self.recorder, clock=clock)
        self.signals = signals = Signals()
        self._takeover = TakeOver(
            client, read.leases.cache, enabled=settings.take_over_karpenter, clock=clock
        )
        self.owns = self._takeover.owns
        self._caches = ClaimCaches(
            claims=read.claims.cache,
            nodes=read.nodes.cache,
            pods=read.pods.cache,
            pools=read.pools.cache,
            owns=self.owns,
        )
        self.inventory = InventoryCache(
            provider,
            clock=clock,
            groups=partial(group_arns, read.classes.cache),
            stale_after=timedelta(seconds=2 * settings.poll_seconds),
        )
        self._nodeclasses = NodeClassController(
            context,
            provider,
            self.inventory,
            read.classes.cache,
            describe=signals.describe,
            requeue=signals.reconcile_class,
            defaults=settings.launch_defaults,
            network=NetworkReader(client, configured=settings.service_range).read,
        )
        self._templates = TemplateSweeper(provider, clock=clock, classes=self._class_names)
        self.ome = self._reservation_controllers()
        view = InstanceView(
            provider,
            clock=clock,
            grace=timedelta(seconds=settings.orphan_grace_seconds),
            check=client.check,
        )
        ec2 = Ec2State(provider=provider, inventory=self.inventory, view=view)
        claims = claim_controllers(
            context,
            self._caches,
            ec2,
            self._nodeclasses,
            self.ome.slots,
            settings=settings,
            signals=signals,
            journal=self.journal,
            templates=self._templates,
            threads=threads,
        )
        self.launcher = claims.launcher

        self._manager = manager = ControllerManager(
            clock=clock, recorder=self.recorder, synced=read.synced, expected=(ProviderError,)
        )
        self.informers, self.loops, self.isolation = manager.informers, manager.loops, manager.isolation
        manager.follow(*read.named.values())
        manager.on_stop(self.inventory.close)
        manager.on_stop(clear_tables)
        read.classes.on_change(lambda old, new: forget_class(old.name) if old and not new else None)
        read.pools.on_change(
            lambda old, new: forget_object("nodepool", old.name) if old and not new else None
        )
        watch_inventory(manager, signals, self._poll, every=settings.poll_seconds)
        finalizer = ClassFinalizer(context, self._caches, read.classes.cache)
        watch_classes(manager, read, self.inventory, signals, self._caches, self._nodeclasses, finalizer)
        watch_claims(
            manager, read, self.inventory, signals, self._caches, self._nodeclasses, claims, self.ome
        )
        profiles = ProfileSweeper(
            provider,
            clock=clock,
            classes=read.classes.cache.list,
            unreadable=lambda: read.classes.cache.broken,
        )
        watch_sweeps(manager, read, signals, templates=self._sweep, profiles=profiles)
        self._watch_reservations(ec2)
        self.occupancy = self._occupancy()
        reads = ProvisioningReads(
            self._client,
            self.occupancy,
            clock=clock,
            leases=read.leases.cache,
            nodes=read.nodes.cache,
            settings=settings,
        )
        self._watch_pods(ec2, reads)
        self._watch_disruption(ec2, reads)
        if settings.advise:
            self._add_advisor()
        if not settings.aws_endpoint:  # local AWS has no prices
            watch_prices(manager, PriceRefresher(provider, clock=clock))
        if settings.interruption_queue:
            self._add_interruption(settings.interruption_queue)
        read.system.on_change(lambda _, new: provider.identify(new.uid) if new else None)

    def start(self) -> None:
        since = partial(waiting_since, pod=self._caches.pods.find)
        state.follow(lambda: self.launcher.shortages, self._owned_claims, since, self._clock.now)
        self._manager.start()

    def stop(self) -> None:
        self._manager.stop()

    @property
    def client(self) -> Client:
        """The client of this term of leadership: after it, writes are refused."""
        return self._client

    def ready(self) -> Mapping[str, bool]:
        """Everything that must be complete before the broker acts, by name."""
        return {
            **{informer.label(name): informer.synced for name, informer in self.read.named.items()},
            "ec2-reservations": self.inventory.described,
        }

    # ---- building

    def _reservation_controllers(self) -> ReservationControllers:
        shared = ReservationDependencies(
            client=self._client,
            provider=self._provider,
            reads=ReservationReads(self._client, clock=self._clock, settings=self._settings),
            caches=self._caches,
            inventory=self.inventory,
            settings=self._settings,
            clock=self._clock,
            recorder=self.recorder,
            describe=self.signals.describe,
        )
        return reservation_controllers(shared, classes=self.read.classes.cache)

    def _watch_reservations(self, ec2: Ec2State) -> None:
        manager, read, ome, every = self._manager, self.read, self.ome, self._settings.poll_seconds
        odcrs = odcr_controllers(
            self._context,
            self._caches,
            ec2,
            read.classes.cache,
            self._nodeclasses,
            relist=self.signals.replan,
        )
        self.mirrors = odcrs.mirrors.cache
        watch_odcr_objects(manager, read, self.inventory, self._nodeclasses, ec2.view, odcrs, every=every)
        manager.follow(*ome.reads.named.values())
        watch_status(manager, read, self.inventory, ome)
        watch_odcrs(manager, read, self.inventory, ome, every=every)
        watch_slots(manager, read, ome)
        watch_check(manager, ome)
        watch_queues(manager, ome)
        watch_admissions(manager, ome)
        watch_annotations(manager, read, ome)

    def _watch_pods(self, ec2: Ec2State, reads: ProvisioningReads) -> None:
        settings = self._settings
        provisioner = Provisioner(
            self._context,
            self._caches,
            ec2,
            self._nodeclasses,
            reads,
            self.ome.slots,
            launches=self.launcher,
            seconds=settings.plan_seconds,
        )
        watch_pods(
            self._manager,
            self.read,
            reads,
            provisioner,
            inventory=self.inventory,
            nodeclasses=self._nodeclasses,
            clock=self._clock,
            idle=settings.pod_batch_idle_seconds,
            longest=settings.pod_batch_max_seconds,
            synced=self.ome.reads.synced,
        )
        launches = partial(launches_for, settings)
        status = PoolStatusController(
            self._context,
            self._caches,
            self.read.classes.cache,
            rights=lambda: self.ome.slots.rights() if self.ome.reads.synced() else None,
            counts=launches,
        )
        watch_pool_status(self._manager, self.read, self.ome.reads, status)

    def _occupancy(self) -> OccupancyReader:
        """The reader of the room on nodes; without a scheduler's name, no reservation keeps any."""
        read, served = self.read, self._settings.schedulers
        reads = None
        if served:
            reads = SchedulerReads(
                self._client, read.pods.cache, clock=self._clock, names=served, places=False
            )
            self._manager.follow(*reads.rooms.values(), reads.resource_quotas)
        return OccupancyReader(
            reads,
            read.nodes.cache,
            read.pods.cache,
            self.ome.reads.namespaces,
            bounds=self._settings.room_bounds,
        )

    def _watch_disruption(self, ec2: Ec2State, reads: ProvisioningReads) -> None:
        budgets = Informer(self._client, PodDisruptionBudget, clock=self._clock)
        sources = DisruptionSources(
            budgets=budgets.cache,
            reads=reads,
            nodeclasses=self._nodeclasses,
            ec2=ec2,
            slots=self.ome.slots,
            shortages=lambda: self.launcher.shortages,
            disrupts=partial(launches_for, self._settings),
            creating=lambda: self.launcher.creating(),
            plan_seconds=self._settings.plan_seconds,
        )
        controller = DisruptionController(self._context, self._caches, sources)
        watch_disruption(
            self._manager,
            self.read,
            budgets,
            self._nodeclasses,
            controller,
            reads,
            clock=self._clock,
            synced=self.ome.reads.synced,
        )

    def _add_advisor(self) -> None:
        client, clock, classes = self._client, self._clock, self.read.classes.cache
        definitions = Informer(
            client, CustomResourceDefinition, clock=clock, field_selector=f"metadata.name={CLASS_DEFINITION}"
        )
        definition = DefinitionController(
            client, definitions.cache, classes, clock=clock, keep=self._settings.keep_definition
        )
        advisor = Advisor(
            self._context,
            self._provider,
            self.inventory,
            self._nodeclasses,
            classes,
            self._caches.pools,
            cluster=self._settings.cluster_name,
            describe=self.signals.describe,
        )
        watch_advice(
            self._manager,
            self.read,
            self.inventory,
            self._nodeclasses,
            definitions,
            advisor=advisor,
            definition=definition,
            accepted=AcceptedSpecController(client, classes, definition, clock=clock, recorder=self.recorder),
        )

    def _add_interruption(self, queue: str) -> None:
        notices = NoticeResponder(
            self._context,
            self._caches,
            self._nodeclasses,
            short=self.launcher.announced,
            describe=self.signals.describe,
        )
        self._manager.run(
            QueueReader(self._provider, queue, notices.take, clock=self._clock, synced=self.read.synced)
        )

    def _class_names(self) -> list[str]:
        classes = self.read.classes.cache
        return [*(node_class.name for node_class in classes.list()), *classes.broken]

    def _owned_claims(self) -> Iterator[NodeClaim]:
        return (claim for claim in self._caches.claims.list() if self.owns(claim))

    # ---- periodic work

    def _poll(self, _items: Sequence[str]) -> None:
        if self._takeover.refresh():
            self.signals.owner_changed()
        first = not self.inventory.described
        self.inventory.refresh()
        if first:
            self.signals.described()

    def _sweep(self, items: Sequence[str]) -> None:
        give_back()
        self.isolation.readmit()
        self._templates.sweep(at_limit=AT_LIMIT in items)
