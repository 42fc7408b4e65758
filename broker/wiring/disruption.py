"""Triggers of the loop that disrupts nodes: changes that move it on, and a timer for the rest."""

from __future__ import annotations

from datetime import timedelta

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import is_true
from broker.apis.policy import PodDisruptionBudget
from broker.controllers.disruption.controller import EVERY, DisruptionController
from broker.controllers.disruption.sources import DisruptionSources
from broker.controllers.launch.launcher import Launcher
from broker.controllers.provisioning.reads import ProvisioningReads
from broker.controllers.slots.controller import PreemptionController
from broker.kube.batch import SETTLED
from broker.kube.informer import Informer
from broker.wiring.predicates import differ, spec
from broker.wiring.term import Term


def add_disruption(
    term: Term, slots: PreemptionController, launcher: Launcher, reads: ProvisioningReads
) -> None:
    """Declares the loop, which waits for budgets, DaemonSets and reservations on nodes as well."""
    manager, read = term.manager, term.read
    budgets = Informer(term.client, PodDisruptionBudget, clock=term.clock)
    manager.follow(budgets)
    sources = DisruptionSources(
        budgets=budgets.cache,
        reads=reads,
        nodeclasses=term.nodeclasses,
        ec2=term.ec2,
        health=term.provider,
        slots=slots,
        shortages=lambda: launcher.shortages,
        disrupts=term.launches_for,
        creating=launcher.creating,
        absorption=timedelta(seconds=term.settings.absorption_seconds),
        successions=term.successions,
    )
    disruption = DisruptionController(term, term.caches, sources)

    def complete() -> bool:
        rooms = reads.occupancy.synced() and reads.daemon_sets.complete
        return budgets.synced and rooms and term.synced()

    (
        manager.singleton(
            "disruption",
            disruption.run,
            every=EVERY,
            idle=SETTLED,
            synced=complete,
        )
        .watches(read.claims, predicate=differ(_progress))
        .watches(read.pools, predicate=differ(spec))
        .on(term.nodeclasses.on_change)
    )
    # Pods come and go too often to start a pass: the timer does, as in Karpenter.
    read.pods.on_change(lambda old, new: disruption.events.observe(old, new, term.clock.now()))


def _progress(claim: NodeClaim | None) -> object:
    """The parts of a claim that decide the next step of a disruption: before its node is ready, only that it
    replaces others."""
    if claim is None:
        return None
    ready = is_true(claim, names.INITIALIZED_CONDITION)
    marks = claim.annotations if ready or names.REPLACES in claim.annotations else {}
    return claim.uid, claim.deleting, marks, ready
