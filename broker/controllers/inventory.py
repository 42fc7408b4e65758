"""EC2's reservations and groups as last described, with debits for later launches and credits for later ends.

EC2 is the truth: every poll replaces the known state with one paginated describe, whatever the number of
reservations. A debit only bridges the time from a launch to the next description that began after it; a
credit does so from an instance's end.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import structlog
from prometheus_client import Gauge

from broker.capacity.model import Inventory
from broker.kube.clock import Clock
from broker.oncall.metrics import REGISTRY
from providers.base import CapacityProvider
from providers.model import ErrorClass, Odcr, ProviderError, ReservationGroup

# An end that EC2 does not show within this time is left to the next description.
REMEMBERED = timedelta(hours=1)

_log = structlog.get_logger("inventory")
_SLOTS = Gauge(
    "capacity_broker_odcr_instances",
    "Slots of an EC2 capacity reservation, as EC2 last described it.",
    ["odcr", "instance_type", "zone", "state", "count"],
    registry=REGISTRY,
)
_AGE = Gauge(
    "capacity_broker_inventory_described_timestamp_seconds",
    "When EC2 last described the reservations.",
    registry=REGISTRY,
)


class InventoryKeeper:
    """Holds the last description; `refresh` makes a new one, `snapshot` is safe to plan on."""

    def __init__(
        self, provider: CapacityProvider, *, clock: Clock, groups: Callable[[], Collection[str]]
    ) -> None:
        self._provider = provider
        self._clock = clock
        self._groups = groups
        self._lock = threading.Lock()
        self._inventory = Inventory()
        self._debits: dict[str, tuple[str, datetime]] = {}  # instance id -> reservation id, when launched
        self._credits: dict[str, tuple[str, datetime]] = {}  # of ended ones; when last seen alive
        self._ending: dict[str, datetime] = {}  # instance id -> when it was last seen alive
        self._corrected = False  # a launch contradicted the last description, which the readers do not know
        self._readers: list[Callable[[], None]] = []
        self.group_errors: dict[str, ProviderError] = {}
        self.error: ProviderError | None = None  # why the last description failed

    def on_change(self, reader: Callable[[], None]) -> None:
        """Calls `reader` after a description with changes, or one that succeeds after a failure."""
        self._readers.append(reader)

    @property
    def described(self) -> bool:
        return self._inventory.described is not None

    def refresh(self) -> None:
        """Describes everything again. Raises ProviderError, and keeps the known state."""
        began = self._clock.now()
        try:
            odcrs = {odcr.id: odcr for odcr in self._provider.reservations()}
        except ProviderError as error:
            self.error = error
            raise
        recovered, self.error = self.error is not None, None
        groups: dict[str, ReservationGroup] = {}
        errors: dict[str, ProviderError] = {}
        for arn in sorted(set(self._groups())):
            try:
                groups[arn] = self._provider.group(arn)
            except ProviderError as error:
                errors[arn] = error
                known = self._inventory.groups.get(arn)
                if known and error.class_ in (ErrorClass.THROTTLING, ErrorClass.TRANSIENT):
                    groups[arn] = known
        with self._lock:
            debits, self._debits = self._debits, {i: d for i, d in self._debits.items() if d[1] >= began}
            self._credits = {i: c for i, c in self._credits.items() if c[1] >= began}
            self._ending = {i: at for i, at in self._ending.items() if at >= began - REMEMBERED}
            before, known_errors = self._inventory, self.group_errors
            self.group_errors = errors
            corrected, self._corrected = self._corrected, False
            self._inventory = Inventory(odcrs=odcrs, groups=groups, described=began)
        _report(self._inventory)
        same = (before.odcrs, before.groups, _texts(known_errors)) == (odcrs, groups, _texts(errors))
        if recovered or corrected or debits.keys() != self._debits.keys() or not same:
            for reader in self._readers:
                reader()

    def snapshot(self) -> Inventory:
        with self._lock:
            return replace(
                self._inventory,
                debits=Counter(r for r, _ in self._debits.values()),
                credits=Counter(r for r, _ in self._credits.values()),
            )

    def odcr(self, odcr_id: str) -> Odcr | None:
        """One reservation, as last described."""
        return self._inventory.odcrs.get(odcr_id)

    def launched(self, *, instance_id: str, odcr_id: str) -> None:
        """Debits a slot that was taken too late for the last description."""
        with self._lock:
            self._debits[instance_id] = (odcr_id, self._clock.now())

    def ending(self, *, instance_id: str, odcr_id: str, alive: bool) -> None:
        """Records whether EC2 shows an ending instance alive. If it has ended, its slot is free.

        A slot is credited only if no description began since the instance was last seen alive: a later one
        may count the slot already.
        """
        with self._lock:
            if alive:
                self._ending[instance_id] = self._clock.now()
                return
            last, described = self._ending.pop(instance_id, None), self._inventory.described
            if self._debits.pop(instance_id, None) is not None:
                return  # no description has shown it as taken
            if odcr_id and last and described and last >= described:
                self._credits[instance_id] = (odcr_id, last)

    def full(self, odcr_id: str) -> None:
        """Records EC2's refusal for a full reservation: it counts as full until the next description."""
        with self._lock:
            odcr = self._inventory.odcrs.get(odcr_id)
            if odcr and odcr.available:
                self._corrected = True
                odcrs = {**self._inventory.odcrs, odcr_id: replace(odcr, available=0)}
                self._inventory = replace(self._inventory, odcrs=odcrs)
            self._credits = {i: c for i, c in self._credits.items() if c[0] != odcr_id}


def _texts(errors: Mapping[str, ProviderError]) -> dict[str, str]:
    return {arn: str(error) for arn, error in errors.items()}


def _report(inventory: Inventory) -> None:
    _SLOTS.clear()
    for odcr in inventory.odcrs.values():
        for count, value in (("total", odcr.total), ("available", odcr.available)):
            _SLOTS.labels(odcr.id, odcr.instance_type, odcr.zone, odcr.state, count).set(value)
    if inventory.described:
        _AGE.set(inventory.described.timestamp())
