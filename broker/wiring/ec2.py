"""The loops that describe EC2, and that sweep what no class uses any more."""

from __future__ import annotations

from collections.abc import Sequence

from broker.controllers.nodeclass.finalizer import ClassFinalizer, by_class
from broker.controllers.nodeclass.profiles import ProfileSweeper
from broker.controllers.nodeclass.templates import TemplateSweeper
from broker.controllers.prices import EVERY as PRICES
from broker.controllers.prices import PriceRefresher
from broker.memory import give_back
from broker.oncall.journal import forget_class
from broker.wiring.predicates import came_or_went, gone, key
from broker.wiring.term import Term

SWEEP_EVERY = 60.0
AT_LIMIT = "/at-limit"  # no class has this name


def add_inventory(term: Term) -> None:
    """Describes the reservations, and reads Karpenter's Lease."""
    inventory, signals = term.inventory, term.signals

    def poll(_items: Sequence[str]) -> None:
        if term.takeover.refresh():
            signals.owner_changed()
        first = not inventory.described
        inventory.refresh()
        if first:
            signals.described()

    manager, every = term.manager, term.settings.poll_seconds
    manager.singleton("inventory", poll, every=every).on(signals.describe.subscribe)
    manager.on_stop(inventory.close)
    # Resources in EC2 carry the UID, since another cluster may have the same name.
    term.read.system.on_change(lambda _, new: term.provider.identify(new.uid) if new else None)


def add_templates(term: Term) -> TemplateSweeper:
    """Sweeps the launch templates and the instance profiles of classes that are gone."""
    classes = term.read.classes

    def names() -> list[str]:
        return [*term.every_class(), *classes.cache.broken]

    templates = TemplateSweeper(term.provider, clock=term.clock, classes=names)
    profiles = ProfileSweeper(
        term.provider,
        clock=term.clock,
        classes=classes.cache.list,
        unreadable=lambda: classes.cache.broken,
    )

    def sweep(items: Sequence[str]) -> None:
        give_back()
        templates.sweep(at_limit=AT_LIMIT in items)

    def sweep_profiles(_items: Sequence[str]) -> None:
        profiles.sweep()

    (
        term.manager.singleton("templates", sweep, every=SWEEP_EVERY)
        .watches(classes, key, gone)
        .on(term.signals.template_limit.subscribe, lambda: (AT_LIMIT,))
    )
    term.manager.singleton("profiles", sweep_profiles, every=SWEEP_EVERY).watches(classes, key, gone)
    return templates


def add_prices(term: Term) -> None:
    """Refreshes prices; local AWS has none."""
    if not term.settings.aws_endpoint:
        prices = PriceRefresher(term.provider, clock=term.clock)
        term.manager.singleton("prices", prices.run, every=PRICES, synced=lambda: True)


def add_nodeclass(term: Term) -> None:
    """Resolves classes, and keeps them until their claims are gone."""
    manager, read, inventory, signals = term.manager, term.read, term.inventory, term.signals
    caches, nodeclasses = term.caches, term.nodeclasses
    finalizer = ClassFinalizer(term, caches, read.classes.cache)
    (
        manager.controller("nodeclass", nodeclasses.reconcile, workers=2, about=read.classes.cache.get)
        .watches(read.classes)
        .on(inventory.on_change, term.every_class)
        .on(signals.described.subscribe, term.every_class)
        .on(signals.reconcile_class.subscribe)
    )
    (
        manager.controller("finalizer", finalizer.reconcile, about=read.classes.cache.get)
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
    read.classes.on_change(lambda old, new: forget_class(old.name) if old and not new else None)
