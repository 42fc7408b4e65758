"""Builds everything that runs while this process leads; `wiring` declares the triggers.

Invariant: nothing acts before the caches it reads are complete, and nothing acts after `stop` has returned.
One Broker is one term of leadership: when the Lease is lost it is thrown away, and the next term builds
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor as Threads
from datetime import timedelta
from functools import partial

from broker import wiring
from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws_definition import NAME as CLASS_DEFINITION
from broker.apis.karpenter_aws_definition import CustomResourceDefinition
from broker.controllers.advisor.accepted import AcceptedKeeper
from broker.controllers.advisor.controller import Advisor
from broker.controllers.advisor.definition import DefinitionKeeper
from broker.controllers.annotations.loop import annotation_loop
from broker.controllers.interruption.notices import NoticeKeeper
from broker.controllers.interruption.reader import QueueReader
from broker.controllers.inventory import InventoryKeeper
from broker.controllers.nodeclaim.abandoned import AbandonedNodes
from broker.controllers.nodeclaim.caches import ClaimCaches, Ec2State
from broker.controllers.nodeclaim.execute import Executor
from broker.controllers.nodeclaim.feedback import ClassFeedback
from broker.controllers.nodeclaim.instances import InstanceView
from broker.controllers.nodeclaim.launch import Launcher, LaunchSteps
from broker.controllers.nodeclaim.lifecycle import Lifecycle
from broker.controllers.nodeclaim.losses import Losses
from broker.controllers.nodeclaim.planning import Planner
from broker.controllers.nodeclaim.recovery import Recovery
from broker.controllers.nodeclaim.registration import Registration
from broker.controllers.nodeclaim.report import Reporter
from broker.controllers.nodeclaim.results import LaunchResults
from broker.controllers.nodeclaim.takeover import TakeOver
from broker.controllers.nodeclaim.template import NodeBootstrap
from broker.controllers.nodeclaim.termination import Termination
from broker.controllers.nodeclaim.terminations import Terminations
from broker.controllers.nodeclaim.trial import LaunchTrials
from broker.controllers.nodeclaim.waves import FleetWaves
from broker.controllers.nodeclaim.writers import Writers
from broker.controllers.nodeclass.controller import NodeClassController, group_arns
from broker.controllers.nodeclass.finalizer import ClassFinalizer
from broker.controllers.nodeclass.network import NetworkReader
from broker.controllers.ome.loops import OmeLoops
from broker.controllers.ome.reads import OmeReads
from broker.controllers.ome.shared import ReservationDependencies
from broker.controllers.prices import PriceKeeper
from broker.controllers.profiles import ProfileSweeper
from broker.controllers.reservations.loops import ReservationLoops
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
from broker.oncall.journal import Journal
from broker.oncall.metrics import REGISTRY
from broker.settings import Settings
from broker.wiring import AT_LIMIT, ClaimControllers, Signals
from providers.base import CapacityProvider
from providers.model import ProviderError

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
        self._signals = signals = Signals()
        self._ownership = TakeOver(
            client, read.leases.cache, enabled=settings.take_over_karpenter, clock=clock
        )
        self._caches = ClaimCaches(
            claims=read.claims.cache,
            nodes=read.nodes.cache,
            pods=read.pods.cache,
            pools=read.pools.cache,
            owns=self._ownership.owns,
        )
        self.inventory = InventoryKeeper(
            provider, clock=clock, groups=partial(group_arns, read.classes.cache)
        )
        self._nodeclasses = NodeClassController(
            context,
            provider,
            self.inventory,
            read.classes.cache,
            describe=signals.describe,
            overhead=settings.overhead,
            network=NetworkReader(client, configured=settings.service_range).read,
        )
        self._templates = TemplateSweeper(provider, clock=clock, classes=self._class_names)
        self.ome = self._ome()
        view = InstanceView(
            provider,
            clock=clock,
            grace=timedelta(seconds=settings.orphan_grace_seconds),
            check=client.check,
        )
        ec2 = Ec2State(provider=provider, inventory=self.inventory, view=view)
        claims = self._claim_controllers(ec2, threads)
        self.launcher = claims.launcher

        self._manager = manager = ControllerManager(
            clock=clock, recorder=self.recorder, synced=read.synced, expected=(ProviderError,)
        )
        self.informers, self.loops, self.isolation = manager.informers, manager.loops, manager.isolation
        manager.follow(*read.named.values())
        wiring.watch_inventory(manager, signals, self._poll, every=settings.poll_seconds)
        finalizer = ClassFinalizer(
            client,
            read.classes.cache,
            read.claims.cache,
            clock=clock,
            recorder=self.recorder,
            owns=self._ownership.owns,
        )
        wiring.watch_classes(
            manager, read, self.inventory, signals, self._caches, self._nodeclasses, finalizer
        )
        wiring.watch_claims(manager, read, self.inventory, signals, self._caches, self._nodeclasses, claims)
        profiles = ProfileSweeper(
            provider,
            clock=clock,
            classes=read.classes.cache.list,
            unreadable=lambda: read.classes.cache.broken,
        )
        wiring.watch_sweeps(manager, read, signals, templates=self._sweep, profiles=profiles)
        self._add_reservations(view)
        if settings.advise:
            self._add_advisor()
        self._add_ome()
        if not settings.aws_endpoint:  # local AWS has no prices
            wiring.watch_prices(manager, PriceKeeper(provider, clock=clock))
        if settings.interruption_queue:
            self._add_interruption(settings.interruption_queue)
        read.system.on_change(lambda _, new: provider.identify(new.uid) if new else None)

    def start(self) -> None:
        self._manager.start()

    def stop(self) -> None:
        self._manager.stop()

    def ready(self) -> Mapping[str, bool]:
        """Everything that must be complete before the broker acts, by name."""
        return {
            **{name: informer.synced for name, informer in self.read.named.items()},
            "ec2-reservations": self.inventory.described,
        }

    # ---- building

    def _claim_controllers(self, ec2: Ec2State, threads: Threads | None) -> ClaimControllers:
        client, provider, settings, clock = self._client, self._provider, self._settings, self._clock
        caches, signals = self._caches, self._signals
        reporter = Reporter(
            client, caches.claims, caches.pools, caches.pods, clock=clock, recorder=self.recorder
        )
        cluster = NodeBootstrap(
            name=settings.cluster_name,
            endpoint=settings.cluster_endpoint,
            ca_bundle=settings.cluster_ca,
        )
        trials = LaunchTrials(
            provider,
            self._nodeclasses,
            caches.pools,
            self.inventory,
            clock=clock,
            cluster=cluster,
            dirty=signals.reconcile_class,
            ours=self._launches_for,
        )
        writers = Writers("claims")
        executor = Executor(
            self._context,
            caches,
            ec2,
            self.journal,
            reporter,
            cluster=cluster,
            used=self._templates.used,
        )
        feedback = ClassFeedback(
            caches,
            self._nodeclasses,
            reporter,
            reconcile_class=signals.reconcile_class,
            describe=signals.describe,
            launched=trials.launched,
            template_limit=signals.template_limit,
        )
        results = LaunchResults(
            caches, ec2, executor.binder, reporter, feedback, writers=writers, clock=clock
        )
        steps = LaunchSteps(
            losses=Losses(
                client,
                caches.claims,
                caches.nodes,
                clock=clock,
                recorder=self.recorder,
                end=reporter.lost,
            ),
            recovery=Recovery(caches, ec2, executor, reporter, feedback, clock=clock),
            planner=Planner(
                caches.claims,
                self.inventory,
                self.ome.borrowing,
                seconds=settings.plan_seconds,
                clock=clock,
            ),
            waves=FleetWaves(ec2.view, executor, results, threads=threads),
            results=results,
        )
        launcher = Launcher(
            caches, ec2, self._nodeclasses, executor, reporter, steps, writers=writers, clock=clock
        )
        terminations = Terminations(provider, clock=clock, check=client.check, wake=signals.instance_changed)
        lifecycle = Lifecycle(
            caches.claims,
            Registration(client, caches.claims, caches.nodes, clock=clock, recorder=self.recorder),
            Termination(
                self._context,
                caches,
                terminations,
                self.inventory,
                launching=launcher.launching,
                freed=signals.replan,
            ),
            owns=caches.owns,
        )
        return ClaimControllers(
            launcher=launcher,
            lifecycle=lifecycle,
            terminations=terminations,
            trials=trials,
            abandoned=AbandonedNodes(client, terminations, caches.claims, caches.nodes),
        )

    def _ome(self) -> OmeLoops:
        signals = self._signals
        return OmeLoops(
            ReservationDependencies(
                client=self._client,
                provider=self._provider,
                reads=OmeReads(self._client, clock=self._clock, settings=self._settings),
                claims=self._caches.claims,
                nodes=self._caches.nodes,
                pods=self._caches.pods,
                inventory=self.inventory,
                settings=self._settings,
                clock=self._clock,
                recorder=self.recorder,
                owns=self._caches.owns,
                describe=signals.describe,
                replan=signals.replan,
                synced=self.read.synced,
            )
        )

    def _add_ome(self) -> None:
        self._manager.follow(*self.ome.informers)
        annotations = annotation_loop(
            claims=self._caches.claims,
            pools=self._caches.pools,
            classes=self.read.classes.cache,
            reads=self.ome.reads,
            reserved=self.ome.reserved,
            clock=self._clock,
            recorder=self.recorder,
            synced=self.read.synced,
        )
        self._manager.add(*self.ome.loops, annotations)

    def _add_reservations(self, view: InstanceView) -> None:
        reservations = ReservationLoops(
            self._client,
            self._provider,
            claims=self._caches.claims,
            classes=self.read.classes.cache,
            nodes=self._caches.nodes,
            inventory=self.inventory,
            resolved=self._nodeclasses,
            view=view,
            clock=self._clock,
            recorder=self.recorder,
            owns=self._caches.owns,
            relist=self._signals.replan,
            synced=self.read.synced,
            every=self._settings.poll_seconds,
        )
        self._manager.follow(*reservations.informers)
        self._manager.add(*reservations.loops)

    def _add_advisor(self) -> None:
        client, clock, classes = self._client, self._clock, self.read.classes.cache
        definitions = Informer(
            client, CustomResourceDefinition, clock=clock, field_selector=f"metadata.name={CLASS_DEFINITION}"
        )
        definition = DefinitionKeeper(
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
            describe=self._signals.describe,
        )
        wiring.watch_advice(
            self._manager,
            self.read,
            self.inventory,
            self._nodeclasses,
            definitions,
            advisor=advisor,
            definition=definition,
            accepted=AcceptedKeeper(client, classes, definition, clock=clock, recorder=self.recorder),
        )

    def _add_interruption(self, queue: str) -> None:
        notices = NoticeKeeper(
            self._context,
            self._caches,
            self._nodeclasses,
            short=self.launcher.announced,
            describe=self._signals.describe,
        )
        self._manager.run(
            QueueReader(self._provider, queue, notices.take, clock=self._clock, synced=self.read.synced)
        )

    def _class_names(self) -> list[str]:
        classes = self.read.classes.cache
        return [*(node_class.name for node_class in classes.list()), *classes.broken]

    def _launches_for(self, pool: NodePool) -> bool:
        """Whether the broker launches the pool's claims."""
        group = pool.spec.template.spec.node_class_ref.group
        return group == names.BROKER or self._settings.take_over_karpenter

    # ---- periodic work

    def _poll(self, _items: Sequence[str]) -> None:
        if self._ownership.look():
            self._signals.owner_changed()
        first = not self.inventory.described
        self.inventory.refresh()
        if first:
            self._signals.described()

    def _sweep(self, items: Sequence[str]) -> None:
        give_back()
        self.isolation.readmit()
        self._templates.sweep(at_limit=AT_LIMIT in items)
