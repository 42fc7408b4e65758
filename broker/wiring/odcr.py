"""The loops about ODCRs and the claims in them: purchases, labels, endings, mirror.

None of them describes reservations or lists instances: they share the launch loop's description and listing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.controllers.odcr.endings import EndingController
from broker.controllers.odcr.instance_labels import InstanceLabelController
from broker.controllers.odcr.mirror import MirrorController, temporarily_unresolved, users
from broker.controllers.odcr.provisioner import OdcrProvisioner
from broker.kube.cache import Cache
from broker.kube.informer import Informer
from broker.kube.manager import Synced
from broker.kube.singleton import Singleton
from broker.wiring.predicates import differ, without_status
from broker.wiring.term import Term
from providers.model import InstanceType

MIRROR_EVERY = 300.0  # prices change without an event


class Mirrored(NamedTuple):
    """EC2's reservations as Kubernetes has them, and EC2's instance types and the account as last read:
    reading it makes no call."""

    reservations: Cache[OnDemandCapacityReservation]
    types: Callable[[], Mapping[str, InstanceType]]
    account: Callable[[], str]  # empty while it is unknown


def add_odcr(term: Term) -> Mirrored:
    mirrors = Informer(term.client, OnDemandCapacityReservation, clock=term.clock)
    mirror = _add_mirror(term, mirrors)
    _add_purchases(term)
    return Mirrored(mirrors.cache, lambda: mirror.types, lambda: mirror.account)


def _add_purchases(term: Term) -> None:
    """At rest a pass makes no call to EC2."""
    manager, reads = term.manager, term.reads
    provisioner = OdcrProvisioner(term, term.provider, lambda: term.ec2.view.listing)
    loop: Singleton[str] = manager.singleton(
        "odcrs",
        lambda _: provisioner.run(),
        every=term.settings.poll_seconds,
        synced=term.synced,
    ).on(term.inventory.on_change)
    for kind in (reads.reservations, reads.cluster_reservations, reads.flavors, reads.quotas):
        loop.watches(kind, predicate=differ(without_status))


def _add_mirror(term: Term, mirrors: Informer[OnDemandCapacityReservation]) -> MirrorController:
    manager, read, inventory, view = term.manager, term.read, term.inventory, term.ec2.view
    nodeclasses, every = term.nodeclasses, term.settings.poll_seconds
    instance_labels = InstanceLabelController(term, term.caches, inventory, view, relist=term.signals.replan)
    endings, mirror = _endings_and_mirror(term, mirrors)

    def mirrored() -> bool:
        return read.synced() and mirrors.synced

    def loop(
        name: str, run: Callable[[], Any], period: float, synced: Synced | None = None
    ) -> Singleton[str]:
        singleton: Singleton[str] = manager.singleton(name, lambda _: run(), every=period, synced=synced)
        return singleton.on(inventory.on_change)

    def sizes_known() -> bool:
        """Whether the sizes that an earlier process recorded are read, or cannot be."""
        return read.synced() and (mirrors.complete or bool(mirrors.error))

    def first_seen(old: OnDemandCapacityReservation | None, new: OnDemandCapacityReservation | None) -> None:
        if old is None and new is not None:
            inventory.recorded(new.name, new.status.total + new.status.lent)

    mirrors.on_change(first_seen)
    manager.follow(mirrors)
    loop("instance-labels", instance_labels.run, every, sizes_known).on(view.on_listing)
    loop("endings", endings.run, every)
    loop("mirror", mirror.run, MIRROR_EVERY, mirrored).on(nodeclasses.on_change).watches(mirrors)
    return mirror


def _endings_and_mirror(
    term: Term, mirrors: Informer[OnDemandCapacityReservation]
) -> tuple[EndingController, MirrorController]:
    def class_users() -> Mapping[str, Sequence[str]]:
        return users(term.every_class(), term.nodeclasses.used_reservations)

    def unresolved_classes() -> Collection[str]:
        return temporarily_unresolved(term.every_class(), term.nodeclasses.resolved_reservations)

    endings = EndingController(
        term.client,
        term.caches,
        term.read.classes.cache,
        term.inventory,
        clock=term.clock,
        recorder=term.recorder,
        users=class_users,
    )
    mirror = MirrorController(
        term.client,
        term.provider,
        mirrors.cache,
        term.inventory,
        clock=term.clock,
        users=class_users,
        unresolved=unresolved_classes,
    )
    return endings, mirror
