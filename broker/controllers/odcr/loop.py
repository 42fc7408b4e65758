"""The loop that provisions ODCRs.

Invariant: it decides only after every object that it reads is cached and EC2 is described. At rest it makes
no call to EC2.
"""

from __future__ import annotations

from broker.apis.meta import Object
from broker.controllers.odcr.keeper import OdcrProvisioner
from broker.controllers.odcr.view import OwnershipView
from broker.controllers.ome.shared import ReservationDependencies
from broker.kube.batch import Batcher
from broker.kube.singleton import Singleton
from providers.model import ProviderError


def odcr_loop(shared: ReservationDependencies, view: OwnershipView) -> Singleton[str]:
    """Fills the view, and provisions ODCRs for objects with the policy Manage."""
    keeper = OdcrProvisioner(
        shared.client,
        shared.provider,
        shared.reads,
        shared.inventory,
        view,
        settings=shared.settings,
        clock=shared.clock,
        recorder=shared.recorder,
        describe=shared.describe,
    )
    batcher = Batcher[str]("holdings", clock=shared.clock)

    def asked(old: Object | None, new: Object | None) -> None:
        if old is None or new is None or _told(old) != _told(new):
            batcher.add("objects")

    for informer in (shared.reads.reservations, shared.reads.cluster_reservations, shared.reads.flavors):
        informer.on_change(asked)
    shared.reads.quotas.on_change(asked)
    shared.inventory.on_change(lambda: batcher.add("inventory"))
    return Singleton(
        "holdings",
        lambda _items: keeper.run(),
        batcher=batcher,
        clock=shared.clock,
        synced=lambda: shared.synced() and shared.reads.synced(),
        every=shared.settings.poll_seconds,
        expected=(ProviderError,),
    )


def _told(one: Object) -> tuple[object, ...]:
    """The parts of an object that a pass reads: all but its status."""
    meta = one.metadata
    spec = getattr(one, "spec", None)
    return spec, meta.uid, meta.annotations, meta.labels, meta.finalizers, meta.deletion_timestamp
