"""Mirrors each known EC2 reservation as an object (`kubectl get odcr`), by EC2's last description.

Invariant: it describes no reservation itself, and writes an object only if it differs. It deletes only its
own objects (known by their label), once EC2 no longer shows the reservation. An object that a person made
stays, since deleting it would hide the mistake. If it is named after a reservation, it mirrors that
reservation; otherwise a condition reports that it mirrors nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

import structlog

from broker.apis.capacity_broker import (
    MIRRORED,
    OnDemandCapacityReservation,
    OnDemandCapacityReservationStatus,
)
from broker.apis.meta import ConditionUpdate
from broker.capacity.inventory import Inventory
from broker.capacity.matching import ends_at
from broker.capacity.model import Resolved
from broker.controllers.inventory import InventoryCache
from broker.controllers.nodeclass.resolve import Unresolved
from broker.controllers.odcr.metrics import measure
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.conditions import set_conditions
from broker.kube.controller import Result
from broker.kube.for_each import for_each
from broker.kube.panics import guarded
from broker.reservations.idle import idle_since
from broker.reservations.odcr_view import OdcrView, view_of
from providers.base import AccountFacts
from providers.errors import ProviderError
from providers.model import InstanceType, Odcr
from providers.names import MANAGER

# The recommended Kubernetes label. It marks the broker's own objects, which it may delete.
MANAGED_BY = "app.kubernetes.io/managed-by"
NOT_YET = 1.0
TYPES_AGAIN = 10.0  # seconds, until types are known

_log = structlog.get_logger("mirror")


class MirrorController:
    """`run` is one pass over all reservations and all objects."""

    def __init__(
        self,
        client: Client,
        provider: AccountFacts,
        mirrors: Cache[OnDemandCapacityReservation],
        inventory: InventoryCache,
        *,
        clock: Clock,
        users: Callable[[], Mapping[str, Iterable[str]]],
        unresolved: Callable[[], Collection[str]],
    ) -> None:
        self._client = client
        self._provider = provider
        self._mirrors = mirrors
        self._inventory = inventory
        self._clock = clock
        self._users = users  # reservation id -> names of the classes that use it
        self._unresolved = unresolved  # classes with a temporarily unknown selection: they keep the shown one
        self.types: Mapping[str, InstanceType] = {}  # as last read, for those who must not wait for EC2
        self.account = ""

    def run(self) -> Result | None:
        """Raises ApiError, after every object had its turn unless the API server is unavailable."""
        inventory = self._inventory.snapshot()
        if inventory.described is None:
            if self._inventory.unreadable is not None:
                for_each(self._mirrors.list(), self._unread)
            return Result(requeue_after=NOT_YET)
        again = self._read_types()
        users, unresolved, now = self._users(), self._unresolved(), self._clock.now()
        views: list[OdcrView] = []
        for odcr in inventory.odcrs.values():
            known = self._mirrors.get(odcr.id)
            with self._mirrors.guard(known) if known else guarded("mirror", odcr=odcr.id):
                since = self._idle_since(odcr, now)
                views.append(view_of(odcr, self.types, account=self.account, since=since))
        measure(views, self.types)
        stale = inventory.described if self._inventory.unreadable else None
        for_each(views, lambda view: self._reconcile(view, {*users.get(view.odcr.id, ())}, unresolved, stale))
        for_each(self._left_over(inventory), self._end)
        return again

    def _read_types(self) -> Result | None:
        """When to read again; the types stay as they were if EC2 cannot be read."""
        try:
            self.types = self._provider.instance_types()
            self.account = self._provider.account_id()
        except ProviderError as error:
            _log.info("prices as they were", error=str(error))
            return None if self.types else Result(requeue_after=TYPES_AGAIN)
        return None

    def _idle_since(self, odcr: Odcr, now: datetime) -> datetime | None:
        """The object keeps the time, so that it survives a restart of the broker."""
        known = self._mirrors.get(odcr.id)
        status = known.status if known else OnDemandCapacityReservationStatus()
        return idle_since(odcr, before=status.idle, since=status.idle_since, now=now)

    def _reconcile(
        self, view: OdcrView, users: Collection[str], unresolved: Collection[str], stale: datetime | None
    ) -> None:
        known = self._mirrors.get(view.odcr.id)
        if known is None and not self._mirrors.lacks(view.odcr.id):
            return  # it is left out
        known = known or self._create(view.odcr.id)
        node_classes = sorted({*users, *(n for n in known.status.node_classes if n in unresolved)})
        wanted = status_of(view, node_classes, stale=stale)
        if known.status != wanted:
            self._write(known, wanted)

    def _unread(self, mirror: OnDemandCapacityReservation) -> None:
        """Marks an object that an earlier process wrote, since this one never read EC2."""
        if mirror.status.stale_since is None and mirror.labels.get(MANAGED_BY) == MANAGER:
            now = self._clock.now().replace(microsecond=0)
            self._write(mirror, mirror.status.model_copy(update={"stale_since": now}))

    def _create(self, id_: str) -> OnDemandCapacityReservation:
        body = {"metadata": {"name": id_, "labels": {MANAGED_BY: MANAGER}}}
        return self._mirrors.written(self._client.create(OnDemandCapacityReservation.KIND, body))

    def _left_over(self, inventory: Inventory) -> list[OnDemandCapacityReservation]:
        return [
            mirror
            for mirror in self._mirrors.list()
            if mirror.name not in inventory.odcrs and not mirror.deleting
        ]

    def _end(self, mirror: OnDemandCapacityReservation) -> None:
        if mirror.labels.get(MANAGED_BY) == MANAGER:
            self._client.delete(OnDemandCapacityReservation.KIND, mirror.name, uid=mirror.uid)
            _log.info("reservation is gone from EC2", odcr=mirror.name)
            return
        conditions = set_conditions(
            mirror.status.conditions,
            ConditionUpdate(
                type=MIRRORED,
                status="False",
                reason="ReservationNotFound",
                message=f"EC2 shows this account no reservation {mirror.name}; an "
                "OnDemandCapacityReservation mirrors one, and reserves nothing: delete it, or name it after "
                "a reservation's id",
            ),
            now=self._clock.now(),
            observed_generation=mirror.metadata.generation,
        )
        wanted = OnDemandCapacityReservationStatus(conditions=conditions)
        if mirror.status != wanted:
            self._write(mirror, wanted)

    def _write(self, mirror: OnDemandCapacityReservation, status: OnDemandCapacityReservationStatus) -> None:
        body = {
            "metadata": {"name": mirror.name, "uid": mirror.uid},
            "status": status.wire(),
        }
        self._mirrors.observe(
            self._client.apply(OnDemandCapacityReservation.KIND, body, subresource="status")
        )


def users(classes: Iterable[str], resolve: Callable[[str], Resolved]) -> Mapping[str, list[str]]:
    """The classes that launch into each reservation (by id), now or once it begins, also through
    Karpenter.
    """
    using: dict[str, list[str]] = defaultdict(list)
    for name in sorted(classes):
        try:
            resolved = resolve(name)
        except Unresolved:
            continue
        for odcr in (*resolved.usable, *resolved.pending):
            using[odcr.id].append(name)
    return using


def temporarily_unresolved(classes: Iterable[str], resolve: Callable[[str], Resolved]) -> frozenset[str]:
    """The classes with a selection that is unknown for now."""
    unresolved = set()
    for name in classes:
        try:
            resolve(name)
        except Unresolved as error:
            if error.passing:
                unresolved.add(name)
    return frozenset(unresolved)


def status_of(
    view: OdcrView, node_classes: Iterable[str], *, stale: datetime | None = None
) -> OnDemandCapacityReservationStatus:
    """`stale`: the time of the last description while EC2 cannot be read."""
    odcr = view.odcr
    return OnDemandCapacityReservationStatus(
        type=odcr.instance_type,
        zone=odcr.zone,
        total=odcr.total,
        available=odcr.available,
        lent=odcr.lent,
        lent_to=odcr.lent_to,
        state=odcr.state,
        start=_seconds(odcr.start),
        end=_seconds(odcr.end),
        drain=_seconds(ends_at(odcr)) if odcr.prepaid else None,
        source=odcr.maker,
        reservation_type=odcr.kind,
        match_criteria=odcr.match_criteria,
        platform=odcr.platform,
        tenancy=odcr.tenancy,
        owner_id=odcr.owner_id,
        node_classes=(named := tuple(node_classes)),
        node_class_names=",".join(named),
        idle_cost_per_hour="" if view.cost is None else f"{view.cost:.2f}",
        idle_since=view.since,
        stale_since=_seconds(stale),
    )


def _seconds(moment: datetime | None) -> datetime | None:
    """Kubernetes keeps whole seconds."""
    return moment.replace(microsecond=0) if moment else None
