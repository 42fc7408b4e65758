"""Builds the controllers of NodeClaims: launches, registration, terminations and trials."""

from __future__ import annotations

from concurrent.futures import Executor as Threads
from functools import partial

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.controllers.claim_caches import ClaimCaches, Ec2State
from broker.controllers.launch.execute import Executor
from broker.controllers.launch.launcher import Launcher, LaunchSteps
from broker.controllers.launch.planning import Planner
from broker.controllers.launch.published import PublishedShortages
from broker.controllers.launch.recovery import Recovery
from broker.controllers.launch.report import Reporter
from broker.controllers.launch.results import LaunchHooks, LaunchResults
from broker.controllers.launch.template import NodeBootstrap
from broker.controllers.launch.trial import LaunchTrials
from broker.controllers.launch.waves import FleetWaves
from broker.controllers.lifecycle.abandoned import AbandonedNodes
from broker.controllers.lifecycle.losses import LossDetector
from broker.controllers.lifecycle.registration import Registration
from broker.controllers.lifecycle.termination import Termination
from broker.controllers.lifecycle.terminations import Terminations
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nominations import nominate
from broker.controllers.slots.controller import PreemptionController
from broker.controllers.templates import TemplateSweeper
from broker.kube.context import ControllerContext
from broker.kube.writers import WriterPool
from broker.oncall.journal import Journal
from broker.settings import Settings
from broker.wiring.claims import ClaimControllers
from broker.wiring.signals import Signals


def launches_for(settings: Settings, pool: NodePool) -> bool:
    """Whether the broker launches the pool's claims."""
    group = pool.spec.template.spec.node_class_ref.group
    return group == names.BROKER or settings.take_over_karpenter


def claim_controllers(
    context: ControllerContext,
    caches: ClaimCaches,
    ec2: Ec2State,
    nodeclasses: NodeClassController,
    slots: PreemptionController,
    *,
    settings: Settings,
    signals: Signals,
    journal: Journal,
    templates: TemplateSweeper,
    threads: Threads | None,
) -> ClaimControllers:
    """`threads` makes the calls that launch; by default the broker's own."""
    client, clock = context.client, context.clock
    provider, inventory = ec2.provider, ec2.inventory
    reporter = Reporter(context, caches, nodeclasses)
    cluster = NodeBootstrap(
        name=settings.cluster_name,
        endpoint=settings.cluster_endpoint,
        ca_bundle=settings.cluster_ca,
    )
    trials = LaunchTrials(
        provider,
        nodeclasses,
        caches.pools,
        inventory,
        clock=clock,
        cluster=cluster,
        owns=partial(launches_for, settings),
    )
    writers = WriterPool("claims")
    executor = Executor(context, caches, ec2, journal, reporter, cluster=cluster, used=templates.used)
    hooks = LaunchHooks(
        doubt=nodeclasses.doubt, launched=trials.launched, template_limit=signals.template_limit
    )
    results = LaunchResults(caches, ec2, executor.binder, reporter, hooks, writers=writers, clock=clock)
    steps = LaunchSteps(
        losses=LossDetector(context, caches, end=reporter.lost),
        recovery=Recovery(caches, ec2, executor, reporter, clock=clock),
        planner=Planner(caches.claims, inventory, slots, seconds=settings.plan_seconds, clock=clock),
        waves=FleetWaves(ec2.view, executor, results, threads=threads),
        results=results,
        published=PublishedShortages(client),
    )
    launcher = Launcher(caches, ec2, nodeclasses, executor, reporter, steps, writers=writers, clock=clock)
    terminations = Terminations(provider, clock=clock, check=client.check, wake=signals.instance_changed)
    nominate_node = partial(nominate, client, caches.pods, others=settings.schedulers)
    return ClaimControllers(
        launcher=launcher,
        registration=Registration(context, caches, nominate=nominate_node),
        termination=Termination(
            context,
            caches,
            terminations,
            inventory,
            launching=launcher.launching,
            freed=signals.replan,
        ),
        terminations=terminations,
        trials=trials,
        abandoned=AbandonedNodes(client, caches, terminations),
    )
