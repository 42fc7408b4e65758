"""What loops did and caches do not show yet: assume, confirm, forget, expire (kube-scheduler's words).

Invariant: an assumption counts from the call that made it until a read confirms it, the loop forgets it, or
it expires. It is never lost before, and never counted twice: each table has one assumption for a key. One
lock guards all tables, so that readers see them as of one moment. A new process starts without assumptions:
it reads EC2 and Kubernetes first.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from broker.capacity.entitlement import NominatedSlot
from broker.capacity.inventory import Inventory
from broker.capacity.model import Plan
from broker.kube.clock import Clock
from broker.reservations.cluster_admission import ClusterAdmission
from broker.reservations.desired import LATEST_VISIBLE
from broker.reservations.purchases import UNSHOWN
from providers.model import Odcr, Unchanged

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """The age at which an assumption expires, before and after a read has confirmed it.

    The age is counted to the start of the newest read. None: it does not expire. A confirmed assumption may
    live on, because a later read of EC2 may show an older state.
    """

    unconfirmed: timedelta | None = None
    confirmed: timedelta = timedelta(0)


# A read that began after the action shows it.
NEXT_READ: Final = Lifetime(unconfirmed=timedelta.resolution)
# An end that EC2 does not show within this time is left to the next description.
LAST_ALIVE: Final = Lifetime(unconfirmed=timedelta(hours=1))
# A purchase is paid for, so it counts longer while EC2 has never shown it.
PURCHASED: Final = Lifetime(unconfirmed=UNSHOWN, confirmed=LATEST_VISIBLE)
CHANGED: Final = Lifetime(unconfirmed=LATEST_VISIBLE)
# Within this time EC2 and Kubernetes agree about the slot of a new or an ended instance.
CONVERGENCE: Final = timedelta(seconds=60)
ENDED: Final = Lifetime(unconfirmed=CONVERGENCE)
# How long a slot is left to the launcher that freed it (see `left_slots`).
LEFT: Final = Lifetime(unconfirmed=timedelta(minutes=10))
# Until it is confirmed, forgotten or replaced.
OPEN: Final = Lifetime()


def expired(lifetime: Lifetime, at: datetime, read: datetime, *, confirmed: bool = False) -> bool:
    """Whether an assumption made `at` is over for a read that began at `read`."""
    longest = lifetime.confirmed if confirmed else lifetime.unconfirmed
    return longest is not None and read - at >= longest


@dataclass(frozen=True, slots=True)
class _Assumption(Generic[V]):
    value: V
    at: datetime
    confirmed: bool = False


class AssumptionTable(Generic[V]):
    """Assumptions of one kind, by key."""

    def __init__(self, store: AssumptionStore, lifetime: Lifetime) -> None:
        self._store = store
        self._lifetime = lifetime
        self._live: dict[str, _Assumption[V]] = {}

    def assume(self, key: str, value: V, *, at: datetime | None = None) -> None:
        """Replaces an earlier assumption for the key. `at`: when it was done, by default now."""
        with self._store.lock:
            self._live[key] = _Assumption(value, at or self._store.clock.now())

    def replace(self, values: Mapping[str, V]) -> None:
        """Assumes these values, and forgets all others."""
        now = self._store.clock.now()
        with self._store.lock:
            self._live = {key: _Assumption(value, now) for key, value in values.items()}

    def confirm(self, keys: Collection[str]) -> None:
        """Records that a read has shown these."""
        with self._store.lock:
            over = not self._lifetime.confirmed
            for key in [key for key in self._live if key in keys]:
                if over:
                    del self._live[key]
                else:
                    self._live[key] = replace(self._live[key], confirmed=True)

    def forget(self, keys: Iterable[str]) -> Mapping[str, V]:
        """Drops these, and returns those that were assumed: they were not done, or are undone."""
        with self._store.lock:
            dropped = {key: self._live.pop(key, None) for key in keys}
            return {key: assumption.value for key, assumption in dropped.items() if assumption is not None}

    def expire(self, read: datetime) -> None:
        """Drops those that are over for a read that began at this time."""
        with self._store.lock:
            self._live = {
                key: assumption
                for key, assumption in self._live.items()
                if not expired(self._lifetime, assumption.at, read, confirmed=assumption.confirmed)
            }

    def since(self, key: str) -> datetime | None:
        """When it was assumed."""
        with self._store.lock:
            assumption = self._live.get(key)
            return None if assumption is None else assumption.at

    def get(self, key: str) -> V | None:
        """The assumed value."""
        with self._store.lock:
            assumption = self._live.get(key)
            return None if assumption is None else assumption.value

    def values(self) -> dict[str, V]:
        """The assumed values by key, in the order in which they were assumed."""
        with self._store.lock:
            return {key: assumption.value for key, assumption in self._live.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftSlot:
    """A slot of a claim of another launcher, which ends to be replaced.

    `since`: when its disruption began. `pool`: its NodePool.
    """

    odcr_id: str
    pool: str
    since: datetime
    deleted: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedSlots:
    """The tables about slots, as of one moment; see `AssumptionStore`."""

    launches: Mapping[str, str] = field(default_factory=dict)
    nominated_slots: Mapping[str, NominatedSlot] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    deleted: Collection[str] = ()
    admitted: Mapping[str, ClusterAdmission] = field(default_factory=dict)
    nominated_quota: Mapping[str, ClusterAdmission] = field(default_factory=dict)
    evicted: Collection[str] = ()
    evicted_for: Mapping[str, str] = field(default_factory=dict)
    served: Collection[str] = ()

    @property
    def in_slots(self) -> Mapping[str, str]:
        """The launches that hold a slot."""
        return {uid: odcr_id for uid, odcr_id in self.launches.items() if odcr_id}


class AssumptionStore:
    """All assumptions of one process. Safe to call from any loop."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self._turn = threading.Lock()
        self.planned_once = False  # the first plan decides about the nominations of an earlier process

        # Slots of instances (by id) that the last description does not count yet, or still counts; and the
        # ending instances that EC2 showed alive.
        self.debits: AssumptionTable[str] = AssumptionTable(self, NEXT_READ)
        self.credits: AssumptionTable[str] = AssumptionTable(self, NEXT_READ)
        self.alive: AssumptionTable[None] = AssumptionTable(self, LAST_ALIVE)
        # New ODCRs by id; and new counts (0: cancelled) and ends of ODCRs.
        self.purchases: AssumptionTable[Odcr] = AssumptionTable(self, PURCHASED)
        self.changes: AssumptionTable[tuple[int, datetime | Unchanged | None]] = AssumptionTable(
            self, CHANGED
        )

        # By the uid of a claim of another launcher.
        self.left: AssumptionTable[LeftSlot] = AssumptionTable(self, LEFT)
        # The ODCR of a slot, by the uid of the claim that leaves it to its successor outside.
        self.joining: AssumptionTable[str] = AssumptionTable(self, ENDED)

        # Claims by uid. `launches`: the ODCR that the claim is launched into, empty without one or if the
        # launch did not hold a slot. `nominated_slots`: the occupied slot that it waits for since the last
        # plan. `kept`: the ODCR of a slot that it keeps while its gang waits. `ended`: the ODCR of a gone
        # claim.
        self.launches: AssumptionTable[str] = AssumptionTable(self, OPEN)
        self.nominated_slots: AssumptionTable[NominatedSlot] = AssumptionTable(self, OPEN)
        self.kept: AssumptionTable[str] = AssumptionTable(self, OPEN)
        self.deleted: AssumptionTable[None] = AssumptionTable(self, OPEN)
        self.ended: AssumptionTable[str] = AssumptionTable(self, ENDED)

        # The last decision. Clusters by uid: the quota that they hold, and the quota that they are nominated
        # for. Victims by name, as in `broker.quota.joint`: those of the last decision, and the preemptor of
        # each until it is gone. `served`: clusters that others were evicted for and that hold quota now, as
        # long as plans find slots for their claims.
        self.admitted: AssumptionTable[ClusterAdmission] = AssumptionTable(self, OPEN)
        self.nominated_quota: AssumptionTable[ClusterAdmission] = AssumptionTable(self, OPEN)
        self.evicted: AssumptionTable[None] = AssumptionTable(self, OPEN)
        self.evicted_for: AssumptionTable[str] = AssumptionTable(self, OPEN)
        self.served: AssumptionTable[None] = AssumptionTable(self, OPEN)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Excludes any other decision about slots, so that the next one sees the results of this one."""
        with self._turn:
            yield

    def slots(self) -> AssumedSlots:
        with self.lock:
            return AssumedSlots(
                launches=self.launches.values(),
                nominated_slots=self.nominated_slots.values(),
                kept=self.kept.values(),
                deleted=self.deleted.values().keys(),
                admitted=self.admitted.values(),
                nominated_quota=self.nominated_quota.values(),
                evicted=self.evicted.values().keys(),
                evicted_for=self.evicted_for.values(),
                served=self.served.values().keys(),
            )

    def promised(self, described: datetime | None) -> tuple[Counter[str], Counter[str]]:
        """The slots left to other launchers, and those that instances outside are to join, by ODCR.

        `described`: when EC2's last description began, which alone shows the latter.
        """
        now = self.clock.now()
        with self.lock:
            self.left.expire(now)
            self.joining.expire(described or now)
            left = Counter(slot.odcr_id for slot in self.left.values().values())
            return left, Counter(self.joining.values().values())

    def shown(self, inventory: Inventory) -> Inventory:
        """The inventory with recent purchases and changes that it may not show; forgets all that it must.

        So nothing is bought again or changed back because EC2 shows it late.
        """
        if inventory.described is None:
            return inventory
        with self.lock:
            self.purchases.confirm(inventory.odcrs.keys())
            self.purchases.expire(inventory.described)
            self.changes.expire(inventory.described)
            odcrs: dict[str, Odcr] = {**self.purchases.values(), **inventory.odcrs}
            changes = self.changes.values()
        for id_, (count, end) in changes.items():
            if id_ in odcrs:
                odcrs[id_] = _as_changed(odcrs[id_], count, end)
        return replace(inventory, odcrs=odcrs)

    def begin_pass(self, waiting: Collection[str]) -> None:
        """Records that all results of earlier launches are on the claims: `waiting` ones have no instance.

        Such a claim holds no slot. It still counts as launching until a plan decides about it again.
        """
        with self.lock:
            self.launches.replace({uid: "" for uid in self.launches.values() if uid in waiting})

    def planned(self, plan: Plan) -> None:
        """Records the claims that launch now, and those that wait for occupied slots or keep one.

        A claim is launching until it has its instance, or until a later plan leaves it without a launch.
        """
        with self.lock:
            self.planned_once = True
            self.nominated_slots.replace(plan.nominated)
            self.kept.replace(plan.kept)
            self.launches.forget(unplaced.claim.uid for unplaced in plan.unplaced)
            for uid, odcr_id in plan.kept.items():
                self.launches.assume(uid, odcr_id)
            for assignment in plan.assignments:
                self.launches.assume(assignment.claim.uid, next(iter(assignment.option.odcr_ids), ""))

    def assume_decision(
        self,
        *,
        admitted: Mapping[str, ClusterAdmission],
        nominated: Mapping[str, ClusterAdmission],
        evicted: Collection[str],
        evicted_for: Mapping[str, str],
    ) -> None:
        """Records a decision about quota and slots, until the next one."""
        with self.lock:
            for uid in admitted.keys() & self.nominated_quota.values().keys():
                self.served.assume(uid, None)
            self.admitted.replace(admitted)
            self.nominated_quota.replace(nominated)
            self.evicted.replace(dict.fromkeys(evicted))
            for name, preemptor in evicted_for.items():
                self.evicted_for.assume(name, preemptor)


def _as_changed(odcr: Odcr, count: int, end: datetime | Unchanged | None) -> Odcr:
    if count == 0:
        return replace(odcr, state="cancelled")
    if not isinstance(end, Unchanged):
        odcr = replace(odcr, end=end)
    return replace(odcr, total=count, available=max(0, odcr.available + count - odcr.total))


class UnattributedSlots:
    """When each use of a slot without a known instance began, by ODCR.

    Such a slot counts as unattributed only after CONVERGENCE. A new process starts without any, and loses
    nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[str, list[datetime]] = {}

    def count(self, uses: Mapping[str, int], now: datetime) -> dict[str, int]:
        """The number of unattributed slots by ODCR. `uses`: its used slots that no known instance holds."""
        with self._lock:
            self._since = {
                odcr_id: [*self._since.get(odcr_id, ()), *[now] * count][:count]
                for odcr_id, count in uses.items()
                if count > 0
            }
            return {
                odcr_id: sum(now - at >= CONVERGENCE for at in since)
                for odcr_id, since in self._since.items()
            }
