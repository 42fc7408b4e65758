"""EC2's reservations and groups as last described, with debits for later launches and credits for later ends.

EC2 is the truth: every poll replaces the known state with one paginated describe, whatever the number of
reservations. A debit only bridges the time from a launch to the next description that began after it; a
credit does so from an instance's end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

from prometheus_client import Gauge

from broker.capacity.inventory import Inventory
from broker.controllers.assumed import AssumptionStore
from broker.controllers.block_ends import BlockEnds
from broker.kube.clock import Clock
from broker.kube.watches import Signal
from broker.lists import lists_by_key
from broker.oncall.journal import forget_pools
from broker.oncall.metrics import REGISTRY, GaugeTable
from providers.base import ReservationListing
from providers.errors import ProviderError
from providers.model import Odcr, ReservationGroup

# Two polls: the third one in a row that fails shows it.
STALE_AFTER = timedelta(seconds=60)

Promised = tuple[Mapping[str, int], Mapping[str, int], Mapping[str, str]]

_LABELS = ("odcr", "instance_type", "zone", "state")
_SLOTS = GaugeTable(
    "capacity_broker_odcr_slots",
    "All slots of an EC2 capacity reservation, as EC2 last described it.",
    _LABELS,
)
_USED = GaugeTable(
    "capacity_broker_odcr_used_slots",
    "Slots of an EC2 capacity reservation that instances use, as EC2 last described it.",
    _LABELS,
)
_UNREADABLE = Gauge(
    "capacity_broker_inventory_unreadable",
    "1 while EC2's reservations cannot be described and the last description is too old.",
    registry=REGISTRY,
)
_AGE = Gauge(
    "capacity_broker_inventory_described_timestamp_seconds",
    "When EC2 last described the reservations.",
    registry=REGISTRY,
)


def read_groups(
    listing: ReservationListing, arns: Iterable[str]
) -> tuple[dict[str, ReservationGroup], dict[str, ProviderError]]:
    """The groups by ARN, and the errors of those that cannot be read."""
    groups, errors = {}, {}
    for arn in sorted(set(arns)):
        try:
            groups[arn] = listing.group(arn)
        except ProviderError as error:
            errors[arn] = error
    return groups, errors


class InventoryCache:
    """Holds the last description; `refresh` makes a new one, `snapshot` is safe to plan on."""

    def __init__(
        self,
        provider: ReservationListing,
        *,
        clock: Clock,
        groups: Callable[[], Collection[str]],
        stale_after: timedelta = STALE_AFTER,
    ) -> None:
        """`stale_after`: the age from which a description counts as old if the next one fails."""
        self._provider = provider
        self._clock = clock
        self._groups = groups
        self._block_ends = BlockEnds(provider)
        self._stale_after = stale_after
        self.assumed = AssumptionStore(clock)
        self._inventory = Inventory()
        self._described_until: datetime | None = None
        self._started = 0.0  # when the last description began, by the monotonic clock
        # By id, the fleet calls without an answer, and the slots that a description showed as taken by them.
        self._calling: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()
        self._corrected = False  # a launch contradicted the last description, which the readers do not know
        self._readers = Signal()
        self.odds: Callable[[], Mapping[str, int]] = dict  # of pools, from a history if there is one
        self.kept: Callable[[datetime], Mapping[str, str]] = lambda _: {}  # as in `Inventory`
        self.occupied: Callable[[], Mapping[str, int]] = dict  # as in `Inventory`
        self.group_errors: dict[str, ProviderError] = {}
        # By id, the size before and after the last change of each reservation that was seen to shrink.
        self.resized: Mapping[str, tuple[int, int]] = {}
        # By id, the sizes that an earlier process recorded, until the next description.
        self._recorded: dict[str, int] = {}
        self._promised: Promised = ({}, {}, {})  # the slots that were left then
        self.error: ProviderError | None = None  # why the last description failed
        # Why the reservations cannot be described, once the last description is old.
        self.unreadable: ProviderError | None = None

    def on_change(self, reader: Callable[[], None]) -> None:
        """Calls `reader` after a description with changes, after one that succeeds after a failure, and once
        EC2 counts as unreadable."""
        self._readers.subscribe(reader)

    @property
    def extensions_refused(self) -> Mapping[str, ProviderError]:
        """Why EC2 gives no extension of blocks that end soon, if that does not pass by itself, by block."""
        return self._block_ends.refused

    @property
    def described(self) -> bool:
        return self._inventory.described is not None

    def refresh(self) -> None:
        """Describes everything again. Raises ProviderError, and keeps the known state."""
        began, started = self._clock.now(), self._clock.monotonic()
        try:
            described = {odcr.id: odcr for odcr in self._provider.reservations()}
        except ProviderError as error:
            self.error = error
            self._failed(error, began)
            raise
        until = self._clock.now()
        known_refused = {*self._block_ends.refused}
        odcrs = self._block_ends.applied(described, began)
        recovered, self.error, self.unreadable = self.error is not None, None, None
        _UNREADABLE.set(0)
        groups, errors = read_groups(self._provider, self._groups())
        for arn, refusal in errors.items():
            known = self._inventory.groups.get(arn)
            if known and refusal.class_.passes:
                groups[arn] = known
        assumed = self.assumed
        with assumed.lock:
            if started < self._started:
                return  # another loop has a newer description
            self._started = started
            debits = assumed.debits.values().keys()
            self._update_assumptions(odcrs, began, until)
            confirmed = debits != assumed.debits.values().keys()
            before, known_errors = self._inventory, self.group_errors
            self.group_errors = errors
            corrected, self._corrected = self._corrected, False
            sizes = self._recorded | {id_: odcr.reserved for id_, odcr in before.odcrs.items()}
            self.resized, self._recorded = _resized(self.resized, sizes, odcrs), {}
            self._inventory = Inventory(odcrs=odcrs, groups=groups, described=began)
            self._described_until = until
            known_promised, self._promised = self._promised, self._promised_now()
        _report(self._inventory)
        forget_pools((before.odcrs.keys() - odcrs.keys()) | (before.groups.keys() - groups.keys()))
        same = (before.odcrs, before.groups, _texts(known_errors)) == (odcrs, groups, _texts(errors))
        same = same and known_promised == self._promised
        same = same and known_refused == {*self._block_ends.refused}
        if recovered or corrected or confirmed or not same:
            self._readers()

    def _update_assumptions(self, odcrs: Mapping[str, Odcr], began: datetime, until: datetime) -> None:
        """Drops the assumptions that this description shows, and the ends that it may show.

        A launch during the description may be in it or not, answered or not. It is in it if fewer slots are
        free than the launches and ends before leave. If another client took the slot, EC2 refuses the next
        launch there.
        """
        debits, credits_ = self.assumed.debits, self.assumed.credits
        expected = Counter({id_: odcr.available for id_, odcr in self._inventory.odcrs.items()})
        expected.subtract(debits.values().values())
        expected.update(credits_.values().values())
        for table in (debits, self.assumed.alive):
            table.expire(began)
        credits_.expire(until + timedelta.resolution)
        expected.subtract(credits_.values().values())
        overlapping = lists_by_key((odcr_id, id_) for id_, odcr_id in debits.values().items())
        for odcr_id in overlapping.keys() | self._calling.keys():
            instances = overlapping.get(odcr_id, [])
            before, odcr = self._inventory.odcrs.get(odcr_id), odcrs.get(odcr_id)
            if before is not None and odcr is not None and before.total == odcr.total:
                counted = max(0, min(odcr.total, expected[odcr_id] + len(instances)) - odcr.available)
                debits.forget(instances[:counted])
                if odcr_id in self._calling:
                    self._counted[odcr_id] += max(0, counted - len(instances))

    def close(self) -> None:
        """Ends its part of the metrics: another process leads."""
        _UNREADABLE.set(0)

    def _failed(self, error: ProviderError, now: datetime) -> None:
        described = self._inventory.described
        if described is not None and now - described < self._stale_after:
            return
        before, self.unreadable = self.unreadable, error
        _UNREADABLE.set(1)
        if before is None or str(before) != str(error):
            self._readers()

    def snapshot(self) -> Inventory:
        with self.assumed.lock:
            left, joining, kept = self._promised_now()
            return replace(
                self._inventory,
                debits=Counter(self.assumed.debits.values().values()),
                occupied=self.occupied(),
                credits=Counter(self.assumed.credits.values().values()),
                left=left,
                joining=joining,
                kept=kept,
                odds=self.odds(),
            )

    def _promised_now(self) -> Promised:
        """The slots left to other launchers, those that instances outside are to join, and those kept."""
        return *self.assumed.promised(self._inventory.described), self.kept(self._clock.now())

    def recorded(self, odcr_id: str, reserved: int) -> None:
        """Notes the size of a reservation that an earlier process recorded, so that a reservation that shrank
        while no broker ran is known as shrunk.
        """
        with self.assumed.lock:
            odcr = self._inventory.odcrs.get(odcr_id)
            if odcr is None:
                self._recorded[odcr_id] = reserved
            elif odcr.reserved < reserved:
                self.resized = {odcr_id: (reserved, odcr.reserved), **self.resized}

    def odcr(self, odcr_id: str) -> Odcr | None:
        """One reservation, as last described."""
        return self._inventory.odcrs.get(odcr_id)

    @contextmanager
    def calling(self, odcr_ids: Collection[str]) -> Iterator[None]:
        """Encloses a fleet call into these reservations, from before it until its launches are debited."""
        with self.assumed.lock:
            self._calling.update(odcr_ids)
        try:
            yield
        finally:
            with self.assumed.lock:
                self._calling -= Counter(odcr_ids)  # without those at zero
                for odcr_id in self._counted.keys() - self._calling.keys():
                    del self._counted[odcr_id]

    def launched(self, *, instance_id: str, odcr_id: str) -> None:
        """Debits a slot that was taken too late for the last description.

        One that was taken by an open call (`calling`), and that a description has counted, is not.
        """
        with self.assumed.lock:
            if self._counted[odcr_id] > 0:
                self._counted[odcr_id] -= 1
            else:
                self.assumed.debits.assume(instance_id, odcr_id)

    def ending(self, *, instance_id: str, odcr_id: str, alive: bool, began: datetime) -> None:
        """Records whether EC2 shows an ending instance alive. If it has ended, its slot is free.

        `began`: when that was read. A slot is credited only if the last description was over before the read
        that last showed the instance alive began: any later one may count the slot already.
        """
        assumed = self.assumed
        with assumed.lock:
            if alive:
                assumed.alive.assume(instance_id, None, at=began)
                return
            last, described = assumed.alive.since(instance_id), self._described_until
            assumed.alive.forget((instance_id,))
            if assumed.debits.forget((instance_id,)):
                return  # no description has shown it as taken
            if odcr_id and last and described and last > described:
                assumed.credits.assume(instance_id, odcr_id, at=last)

    def full(self, odcr_id: str) -> None:
        """Records EC2's refusal for a full reservation: it counts as full until the next description."""
        with self.assumed.lock:
            odcr = self._inventory.odcrs.get(odcr_id)
            if odcr and odcr.available:
                self._corrected = True
                odcrs = {**self._inventory.odcrs, odcr_id: replace(odcr, available=0)}
                self._inventory = replace(self._inventory, odcrs=odcrs)
            credited = self.assumed.credits
            credited.forget(id_ for id_, slot in credited.values().items() if slot == odcr_id)


def _texts(errors: Mapping[str, ProviderError]) -> dict[str, str]:
    return {arn: str(error) for arn, error in errors.items()}


def _resized(
    known: Mapping[str, tuple[int, int]], before: Mapping[str, int], after: Mapping[str, Odcr]
) -> dict[str, tuple[int, int]]:
    """The last shrinkage of each reservation that has not grown since. Lent instances are still its own."""
    shrunk = {}
    for id_, odcr in after.items():
        old = before.get(id_, odcr.reserved)
        if odcr.reserved < old:
            shrunk[id_] = (old, odcr.reserved)
        elif odcr.reserved == old and id_ in known:
            shrunk[id_] = known[id_]
    return shrunk


def _report(inventory: Inventory) -> None:
    odcrs = {(o.id, o.instance_type, o.zone, o.state): o for o in inventory.odcrs.values()}
    _SLOTS.show({labels: odcr.total for labels, odcr in odcrs.items()})
    _USED.show({labels: odcr.used for labels, odcr in odcrs.items()})
    if inventory.described:
        _AGE.set(inventory.described.timestamp())
