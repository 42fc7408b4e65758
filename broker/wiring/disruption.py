"""Triggers of the loop that disrupts nodes: changes that move it on, and a timer for the rest."""

from __future__ import annotations

from collections.abc import Callable

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import is_true
from broker.apis.policy import PodDisruptionBudget
from broker.controllers.disruption.controller import EVERY, DisruptionController
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.provisioning.reads import ProvisioningReads
from broker.informers import Informers
from broker.kube.clock import Clock
from broker.kube.informer import Informer
from broker.kube.manager import ControllerManager
from broker.wiring.predicates import differ, spec


def watch_disruption(
    manager: ControllerManager,
    read: Informers,
    budgets: Informer[PodDisruptionBudget],
    nodeclasses: NodeClassController,
    disruption: DisruptionController,
    reads: ProvisioningReads,
    *,
    clock: Clock,
    synced: Callable[[], bool],
) -> None:
    """Declares the loop, which waits for budgets, DaemonSets and reservations on nodes as well.

    `synced`: whether the reservations are read, which decide what a replacement draws from.
    """
    manager.follow(budgets)

    def complete() -> bool:
        rooms = reads.occupancy.synced() and reads.daemon_sets.complete
        return read.synced() and budgets.synced and rooms and synced()

    (
        manager.singleton(
            "disruption",
            disruption.run,
            every=EVERY,
            synced=complete,
        )
        .watches(read.claims, predicate=differ(_progress))
        .watches(read.pools, predicate=differ(spec))
        .on(nodeclasses.on_change)
    )
    # Pods come and go too often to start a pass: the timer does, as in Karpenter.
    read.pods.on_change(lambda old, new: disruption.events.observe(old, new, clock.now()))


def _progress(claim: NodeClaim | None) -> object:
    """The parts of a claim that decide the next step of a disruption."""
    if claim is None:
        return None
    return claim.uid, claim.deleting, claim.annotations, is_true(claim, names.INITIALIZED_CONDITION)
