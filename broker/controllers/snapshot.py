"""One immutable snapshot of reservations, their specs and flavors, for every loop that decides about them.

Invariant: loops that read snapshots of one version decide by the same reservations, judged specs, quota
refusals and flavors. A snapshot never changes. The next one has a higher version, and is built only after
one of these kinds has changed.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count

from broker.apis.core import ResourceQuota
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation, ReservationSpec
from broker.apis.ome_quotas import over_quota
from broker.apis.ome_rules import Judged
from broker.kube.informer import Informer
from broker.quota.usage import Reserved
from broker.reservations.flavors import NO_FLAVORS, FlavorCatalog
from broker.reservations.spec import JudgedSpecs, Reservation, reserved_of


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """`quotas`: the ResourceQuotas of all namespaces."""

    version: int
    reservations: Mapping[Reserved, Reservation]
    flavors: FlavorCatalog = NO_FLAVORS
    quotas: Sequence[ResourceQuota] = ()
    _judged: JudgedSpecs = field(default_factory=JudgedSpecs, repr=False)

    def judged(self, reservation: Reservation) -> Judged:
        """The judged spec of a reservation."""
        return self._judged.of(reservation)

    @cached_property
    def refusals(self) -> Mapping[Reserved, tuple[str, ...]]:
        """Reservations that the ResourceQuotas of their namespace do not allow, with the reasons.

        The webhook checks quotas too. Two creates at the same time may pass it, and so may objects older than
        the quota or the webhook. The younger object is refused here. It keeps the slots that it holds.
        """
        namespaces = {quota.namespace for quota in self.quotas}
        reservations: dict[str, list[CapacityReservation]] = defaultdict(list)
        for reservation in self.reservations.values() if namespaces else ():
            if isinstance(reservation, CapacityReservation) and reservation.namespace in namespaces:
                reservations[reservation.namespace].append(reservation)
        return {
            Reserved(namespace, name): reasons
            for namespace, listed in reservations.items()
            for name, reasons in over_quota(namespace, listed, self.quotas).items()
        }

    @cached_property
    def barred(self) -> Mapping[Reserved, str]:
        """Reservations that grant nothing new, with the reason."""
        barred: dict[Reserved, str] = {}
        for reserved, reservation in self.reservations.items():
            if problems := self._problems(reserved, reservation):
                barred[reserved] = "; ".join(problems)
            elif reservation.deleting:
                barred[reserved] = "it is deleted"
        return barred

    @cached_property
    def specs(self) -> Mapping[Reserved, ReservationSpec]:
        """Judged specs of reservations without problems. A deleted one counts until it is gone."""
        return {
            reserved: self.judged(reservation).spec
            for reserved, reservation in self.reservations.items()
            if not self._problems(reserved, reservation)
        }

    @cached_property
    def resource_flavors(self) -> Mapping[str, ResourceFlavor]:
        """The ResourceFlavors by name; without Kueue, one for each flavor that `specs` name."""
        return self.flavors.usable(
            {
                flavor.name
                for spec in self.specs.values()
                for group in spec.resource_groups
                for flavor in group.flavors
            }
        )

    def _problems(self, reserved: Reserved, reservation: Reservation) -> tuple[str, ...]:
        return (*self.judged(reservation).problems, *self.refusals.get(reserved, ()))


class SnapshotBuilder:
    """Builds snapshots from the informers' caches. Safe to call from any loop."""

    def __init__(
        self,
        reservations: Informer[CapacityReservation],
        cluster_reservations: Informer[ClusterCapacityReservation],
        flavors: Informer[ResourceFlavor],
        quotas: Informer[ResourceQuota],
        specs: JudgedSpecs,
    ) -> None:
        self._reservations = reservations
        self._cluster_reservations = cluster_reservations
        self._flavors = flavors
        self._quotas = quotas
        self._specs = specs
        self._lock = threading.Lock()
        # Each informer's thread draws its own number, so that no two states have the same one.
        self._numbers = count(1)
        self._changes = 0
        self._flavor_changes = 0
        self._built: tuple[int, bool, Snapshot] | None = None
        self._catalog: tuple[int, bool, FlavorCatalog] | None = None
        for informer in (reservations, cluster_reservations, quotas):
            informer.on_change(self._changed)
        flavors.on_change(self._flavor_changed)

    def take(self) -> Snapshot:
        """The snapshot of the caches' present content."""
        with self._lock:
            changes, missing = self._changes, self._flavors.missing
            if self._built is not None and self._built[:2] == (changes, missing):
                return self._built[2]
            listed: tuple[Reservation, ...] = (
                *self._reservations.cache.list(),
                *self._cluster_reservations.cache.list(),
            )
            snapshot = Snapshot(
                version=self._built[2].version + 1 if self._built is not None else 1,
                reservations={reserved_of(reservation): reservation for reservation in listed},
                flavors=self._flavor_catalog(missing=missing),
                quotas=self._quotas.cache.list(),
                _judged=self._specs,
            )
            self._built = changes, missing, snapshot
            return snapshot

    def _flavor_catalog(self, *, missing: bool) -> FlavorCatalog:
        """The same object until a flavor changes."""
        changes = self._flavor_changes
        if self._catalog is None or self._catalog[:2] != (changes, missing):
            listed = None if missing else {flavor.name: flavor for flavor in self._flavors.cache.list()}
            self._catalog = changes, missing, FlavorCatalog(listed)
        return self._catalog[2]

    def _changed(self, *_: object) -> None:
        self._changes = next(self._numbers)

    def _flavor_changed(self, *_: object) -> None:
        self._flavor_changes = self._changes = next(self._numbers)
