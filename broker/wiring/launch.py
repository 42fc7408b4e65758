"""The launch loop, and the trials of classes that nothing has launched with."""

from __future__ import annotations

from concurrent.futures import Executor as Threads

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.controllers.launch.execute import Executor
from broker.controllers.launch.launcher import Launcher, LaunchSteps
from broker.controllers.launch.planning import Planner
from broker.controllers.launch.published import PublishedShortages
from broker.controllers.launch.recovery import Recovery
from broker.controllers.launch.report import Reporter
from broker.controllers.launch.results import LaunchHooks, LaunchResults
from broker.controllers.launch.template import NodeBootstrap
from broker.controllers.launch.trial import FIRST_TRIAL_DELAY, LaunchTrials
from broker.controllers.launch.waves import FleetWaves
from broker.controllers.lifecycle.losses import LossDetector
from broker.controllers.nodeclass.templates import TemplateSweeper
from broker.controllers.slots.controller import PreemptionController
from broker.kube.writers import WriterPool
from broker.oncall.journal import Journal
from broker.wiring.predicates import gone, key
from broker.wiring.slots import watch_slot_rules
from broker.wiring.term import Term

EVERY = 60.0


def add_launch(
    term: Term,
    slots: PreemptionController,
    templates: TemplateSweeper,
    journal: Journal,
    *,
    threads: Threads | None,
) -> Launcher:
    """Launches the claims that wait. `threads` makes the calls that launch; by default the broker's own."""
    cluster = NodeBootstrap(
        name=term.settings.cluster_name,
        endpoint=term.settings.cluster_endpoint,
        ca_bundle=term.settings.cluster_ca,
    )
    trials = LaunchTrials(
        term.provider,
        term.nodeclasses,
        term.caches.pools,
        term.inventory,
        clock=term.clock,
        cluster=cluster,
        types=lambda: term.provider.instance_types(),
        owns=term.launches_for,
    )
    launcher = _launcher(term, slots, templates, journal, trials, cluster=cluster, threads=threads)
    _watch_launches(term, launcher)
    trial_loop = term.manager.controller("trial", trials.reconcile)
    # The claims that wait for the class are launched before it is tried.
    term.nodeclasses.on_change(lambda name: trial_loop.queue.add_after(name, FIRST_TRIAL_DELAY))
    return launcher


def _launcher(
    term: Term,
    slots: PreemptionController,
    templates: TemplateSweeper,
    journal: Journal,
    trials: LaunchTrials,
    *,
    cluster: NodeBootstrap,
    threads: Threads | None,
) -> Launcher:
    caches, ec2, nodeclasses, clock = term.caches, term.ec2, term.nodeclasses, term.clock
    reporter = Reporter(term, caches, nodeclasses, lambda: term.provider.instance_types())
    writers = WriterPool("claims")
    executor = Executor(
        term,
        caches,
        term.provider,
        ec2.inventory,
        journal,
        reporter,
        cluster=cluster,
        used=templates.used,
    )
    hooks = LaunchHooks(
        doubt=nodeclasses.doubt, launched=trials.launched, template_limit=term.signals.template_limit
    )
    results = LaunchResults(caches, ec2, executor.binder, reporter, hooks, writers=writers, clock=clock)
    steps = LaunchSteps(
        losses=LossDetector(term, caches, end=reporter.lost),
        recovery=Recovery(caches, ec2, executor, reporter, clock=clock),
        planner=Planner(caches.claims, slots, seconds=term.settings.plan_seconds, clock=clock),
        waves=FleetWaves(ec2.view, executor, results, threads=threads),
        results=results,
        published=PublishedShortages(term.client),
    )
    return Launcher(caches, ec2, nodeclasses, executor, reporter, steps, writers=writers, clock=clock)


def _watch_launches(term: Term, launcher: Launcher) -> None:
    manager, read, caches = term.manager, term.read, term.caches

    def waits_anew(old: NodeClaim | None, new: NodeClaim | None) -> bool:
        if new is None or new.status.provider_id or not caches.owns(new):
            return False
        return old is None or _launch_inputs(old) != _launch_inputs(new)

    loop = (
        manager.singleton("launch", launcher.run, every=EVERY)
        .watches(read.claims, key, waits_anew)
        .watches(read.classes, key, gone)
        .on(term.nodeclasses.on_change)
        .on(term.inventory.on_change)
        .on(term.signals.described.subscribe)
        .on(term.signals.owner_changed.subscribe)
        .on(term.signals.replan.subscribe)
    )
    watch_slot_rules(loop, term.reads)
    manager.on_stop(launcher.close)


def _launch_inputs(claim: NodeClaim) -> tuple[object, ...]:
    """The parts of a waiting claim that decide whether and how it is launched."""
    written = names.WRITTEN_BY_BROKER[NodeClaim.KIND.kind]
    annotations = {name: text for name, text in claim.annotations.items() if name not in written}
    return claim.spec, claim.labels, annotations, claim.status.provider_id
