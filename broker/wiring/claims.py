"""The triggers of the loops about claims, their classes and the description of EC2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.controllers.advisor.accepted import AcceptedSpecController
from broker.controllers.advisor.controller import Advisor
from broker.controllers.advisor.definition import DefinitionController
from broker.controllers.advisor.pools import class_of
from broker.controllers.claim_caches import BY_PROVIDER_ID, ClaimCaches
from broker.controllers.claim_status import instance_id
from broker.controllers.interruption.notices import BY_INSTANCE
from broker.controllers.inventory import InventoryCache
from broker.controllers.launch.launcher import Launcher
from broker.controllers.launch.trial import FIRST_TRIAL_DELAY, LaunchTrials
from broker.controllers.lifecycle.abandoned import AbandonedNodes
from broker.controllers.lifecycle.registration import MARK, Registration
from broker.controllers.lifecycle.termination import Termination
from broker.controllers.lifecycle.terminations import Terminations
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.finalizer import ClassFinalizer, by_class
from broker.controllers.prices import EVERY as PRICES
from broker.controllers.prices import PriceRefresher
from broker.controllers.profiles import ProfileSweeper
from broker.informers import Informers
from broker.kube.controller import Result
from broker.kube.informer import Informer
from broker.kube.manager import ControllerManager
from broker.wiring.predicates import came_or_went, differ, gone, key, spec
from broker.wiring.reservation_controllers import ReservationControllers
from broker.wiring.signals import Signals

Run = Callable[[Sequence[str]], None]

LAUNCH_EVERY = SWEEP_EVERY = 60.0
AT_LIMIT = "/at-limit"  # no class has this name


@dataclass(frozen=True, kw_only=True)
class ClaimControllers:
    """The controllers of NodeClaims and of their nodes."""

    launcher: Launcher
    registration: Registration
    termination: Termination
    terminations: Terminations
    trials: LaunchTrials
    abandoned: AbandonedNodes


def class_names(read: Informers) -> Callable[..., list[str]]:
    """A map of any change to every class."""
    return lambda *_: [node_class.name for node_class in read.classes.cache.list()]


def watch_inventory(manager: ControllerManager, signals: Signals, poll: Run, *, every: float) -> None:
    manager.singleton("inventory", poll, every=every).on(signals.describe.subscribe)


def watch_classes(
    manager: ControllerManager,
    read: Informers,
    inventory: InventoryCache,
    signals: Signals,
    caches: ClaimCaches,
    nodeclasses: NodeClassController,
    finalizer: ClassFinalizer,
) -> None:
    every_class = class_names(read)

    (
        manager.controller("nodeclass", nodeclasses.reconcile, workers=2)
        .watches(read.classes)
        .on(inventory.on_change, every_class)
        .on(signals.described.subscribe, every_class)
        .on(signals.reconcile_class.subscribe)
    )
    (
        manager.controller("finalizer", finalizer.reconcile)
        .watches(read.classes)
        .watches(
            read.claims,
            by_class,
            lambda old, new: came_or_went(old, new) and any(caches.owns(c) for c in (new or old,) if c),
        )
        .on(
            signals.owner_changed.subscribe,
            lambda: dict.fromkeys(claim.spec.node_class_ref.name for claim in read.claims.cache.list()),
        )
    )


def watch_claims(
    manager: ControllerManager,
    read: Informers,
    inventory: InventoryCache,
    signals: Signals,
    caches: ClaimCaches,
    nodeclasses: NodeClassController,
    controllers: ClaimControllers,
    ome: ReservationControllers,
) -> None:
    claims, nodes = caches.claims, caches.nodes

    def waits_anew(old: NodeClaim | None, new: NodeClaim | None) -> bool:
        if new is None or new.status.provider_id or not caches.owns(new):
            return False
        return old is None or _launch_inputs(old) != _launch_inputs(new)

    def lives_or_ends(_: NodeClaim | None, new: NodeClaim | None) -> bool:
        return new is not None and caches.owns(new) and not new.waits

    def owned_gone(old: NodeClaim | None, new: NodeClaim | None) -> bool:
        return new is None and old is not None and caches.owns(old)

    def claims_of_node(node: Node) -> Iterable[str]:
        id_ = node.spec.provider_id
        return [claim.name for claim in claims.by(BY_PROVIDER_ID, id_)] if id_ else ()

    def claims_of_instance(id_: str) -> Iterable[str]:
        return [claim.name for claim in claims.by(BY_INSTANCE, id_)]

    def without_claim(node: Node) -> Iterable[str]:
        id_ = node.spec.provider_id
        return (node.name,) if id_ and MARK in node.annotations and not claims.by(BY_PROVIDER_ID, id_) else ()

    def nodes_of_claim(claim: NodeClaim) -> Iterable[str]:
        return [node.name for node in nodes.by(BY_PROVIDER_ID, claim.status.provider_id or "-")]

    def nodes_of_instance(id_: str) -> Iterable[str]:
        registered = (node for node in nodes.list() if MARK in node.annotations)
        return [node.name for node in registered if node.spec.provider_id.endswith(f"/{id_}")]

    (
        manager.singleton("launch", controllers.launcher.run, every=LAUNCH_EVERY)
        .watches(read.claims, key, waits_anew)
        .watches(read.classes, key, gone)
        .on(nodeclasses.on_change)
        .on(inventory.on_change)
        .on(signals.described.subscribe)
        .on(signals.owner_changed.subscribe)
        .on(signals.replan.subscribe)
        .on(ome.reads.snapshots.on_odcrs)
        .watches(ome.reads.quotas, predicate=differ(spec))
    )
    manager.on_stop(controllers.launcher.close)

    def reconcile(name: str) -> Result | None:
        """Moves one claim from its launch to its end: it joins, becomes ready, ends."""
        claim = claims.get(name)
        if claim is None or not caches.owns(claim):
            return None
        if claim.deleting:
            return controllers.termination.reconcile(claim)
        return controllers.registration.reconcile(claim) if claim.status.provider_id else None

    (
        manager.controller("nodeclaim", reconcile, workers=4)
        .watches(read.claims, key, lives_or_ends)
        .watches(read.nodes, claims_of_node)
        .on(signals.instance_changed.subscribe, claims_of_instance)
        .on(signals.owner_changed.subscribe, lambda: [claim.name for claim in claims.list()])
    )

    def forget(old: NodeClaim | None, new: NodeClaim | None) -> None:
        if old is not None and owned_gone(old, new):
            controllers.terminations.forget(instance_id(old))

    read.claims.on_change(forget)
    # `terminations` enqueues its own instances: those that its callers look up or end.
    manager.singleton("terminations", controllers.terminations.run, batcher=controllers.terminations.batcher)
    trials = manager.controller("trial", controllers.trials.reconcile)
    # The claims that wait for the class are launched before it is tried.
    nodeclasses.on_change(lambda name: trials.queue.add_after(name, FIRST_TRIAL_DELAY))
    (
        manager.controller("node", controllers.abandoned.reconcile)
        .watches(read.nodes, without_claim)
        .watches(read.claims, nodes_of_claim, owned_gone)
        .on(signals.instance_changed.subscribe, nodes_of_instance)
    )
    # The slot of a claim that is gone may be free.
    read.claims.on_change(lambda old, new: signals.describe() if owned_gone(old, new) else None)


def watch_sweeps(
    manager: ControllerManager, read: Informers, signals: Signals, *, templates: Run, profiles: ProfileSweeper
) -> None:
    (
        manager.singleton("templates", templates, every=SWEEP_EVERY)
        .watches(read.classes, key, gone)
        .on(signals.template_limit.subscribe, lambda: (AT_LIMIT,))
    )

    def sweep_profiles(_: Sequence[str]) -> None:
        profiles.sweep()

    manager.singleton("profiles", sweep_profiles, every=SWEEP_EVERY).watches(read.classes, key, gone)


def watch_advice(
    manager: ControllerManager,
    read: Informers,
    inventory: InventoryCache,
    nodeclasses: NodeClassController,
    definitions: Informer[Any],
    *,
    advisor: Advisor,
    definition: DefinitionController,
    accepted: AcceptedSpecController,
) -> None:
    """The loops that work on classes for Karpenter. The broker's own launches wait for none of them."""

    every_class = class_names(read)

    manager.follow(definitions)
    (
        manager.controller("advisor", advisor.reconcile)
        .watches(read.classes)
        .watches(read.pools, lambda pool: filter(None, (class_of(pool),)))
        # A new description may show a tag, or the tag of a class that is gone.
        .on(inventory.on_change, lambda: sorted({*every_class(), *advisor.tags.classes()}))
        .on(nodeclasses.on_change)
    )
    manager.singleton("definition", lambda _: definition.run(), synced=lambda: True).watches(definitions)
    (
        manager.controller("accepted", accepted.reconcile)
        .watches(read.classes)
        .watches(definitions, every_class)
    )


def watch_prices(manager: ControllerManager, prices: PriceRefresher) -> None:
    manager.singleton("prices", prices.run, every=PRICES, synced=lambda: True)


def _launch_inputs(claim: NodeClaim) -> tuple[object, ...]:
    """The parts of a waiting claim that decide whether and how it is launched."""
    written = names.WRITTEN_BY_BROKER[NodeClaim.KIND.kind]
    annotations = {name: text for name, text in claim.annotations.items() if name not in written}
    return claim.spec, claim.labels, annotations, claim.status.provider_id
