"""The loops about classes: their resolution, and their end."""

from __future__ import annotations

from broker.controllers.nodeclass.finalizer import ClassFinalizer, by_class
from broker.oncall.journal import forget_class
from broker.wiring.predicates import came_or_went
from broker.wiring.term import Term


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
