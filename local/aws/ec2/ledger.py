"""The ledger of capacity: every reservation, pool and instance of local AWS in one place.

Invariant: an instance that holds capacity is in exactly one place, a reservation or a pool, and `move` is
the only way in or out. Free capacity is derived from the occupants. Timed events (slots come free,
reservations start and end) happen in order of time, at the next call (`run_due`).

An On-Demand pool's size is the zone's capacity beside the reservations that existed when it was set. A
later reservation takes from it, used or not, and a cancelled one gives back (EC2 User Guide: a reservation
holds its capacity from its creation until it ends).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from local.aws.clock import LocalClock
from local.aws.ec2 import errors, matching
from local.aws.ec2.launch_needs import ID, ON_DEMAND, SPOT, CapacityTarget, LaunchNeeds
from local.aws.ec2.reservations import ENDED, Ec2Reservation, Glimpse, Occupant, OccupiedSlots, PoolKey

BLOCK = "capacity-block"
REMEMBERED = timedelta(minutes=10)

Scope = tuple[str, str]  # account, Region


class CapacityLedger:
    def __init__(self, clock: LocalClock, codes: Mapping[str, str]):
        self.clock = clock
        self.codes = codes
        self.keep = REMEMBERED  # the largest age of a view that describe may show
        self.reservations: dict[str, Ec2Reservation] = {}
        self.occupants: dict[str, Occupant] = {}
        self._scopes: dict[Scope, dict[str, Ec2Reservation]] = {}
        self._shapes: dict[tuple[str, str], dict[str, Ec2Reservation]] = {}
        self._pools: dict[PoolKey, OccupiedSlots] = {}
        self._limits: dict[PoolKey, int] = {}
        self._due: list[tuple[datetime, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._at: datetime | None = None  # the time of the event that is happening

    # ---- time

    def now(self) -> datetime:
        return self._at or self.clock.now()

    def schedule(self, at: datetime, event: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at, next(self._order), event))

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self.schedule(self.now() + timedelta(seconds=seconds), event)

    def run_due(self) -> None:
        """Runs all events that are due; an event may call this again."""
        while self._at is None and self._due and self._due[0][0] <= self.clock.now():
            self._at, _, event = heapq.heappop(self._due)
            try:
                event()
            finally:
                self._at = None

    # ---- reservations

    def add(self, reservation: Ec2Reservation) -> None:
        self.reservations[reservation.id] = reservation
        self._shapes.setdefault((reservation.instance_type, reservation.zone), {})[reservation.id] = (
            reservation
        )
        for account in (reservation.owner_id, *reservation.shared_with):
            self._scopes.setdefault((account, reservation.region), {})[reservation.id] = reservation
        self.note(reservation)
        self.absorb(reservation.instance_type, reservation.zone, into={reservation.id})

    def in_scope(self, account_id: str, region: str) -> dict[str, Ec2Reservation]:
        """Every reservation that an account sees in a Region: its own and those shared with it."""
        return self._scopes.get((account_id, region), {})

    def find(self, account_id: str, region: str, reservation_id: str) -> Ec2Reservation:
        if not ID.match(reservation_id):
            raise errors.reservation_malformed(reservation_id)
        reservation = self.in_scope(account_id, region).get(reservation_id)
        if reservation is None:
            raise errors.reservation_not_found(reservation_id)
        return reservation

    def same_shape(self, instance_type: str, zone: str) -> Iterable[Ec2Reservation]:
        return self._shapes.get((instance_type, zone), {}).values()

    def share(self, reservation: Ec2Reservation, accounts: Iterable[str]) -> None:
        """Shares with exactly these accounts. Instances of removed accounts run on outside; those of an
        interruptible reservation end."""
        sharing = frozenset(accounts) - {reservation.owner_id}
        for account in reservation.shared_with - sharing:
            self._scopes[account, reservation.region].pop(reservation.id)
            for occupant in list(reservation.slots.occupants.values()):
                if occupant.needs.account_id != account:
                    continue
                if reservation.interruptible:
                    occupant.instance.ec2_backend.terminate_instances([occupant.instance.id])
                else:
                    self.move(occupant, self._pool_of(occupant.needs))
        reservation.shared_with = sharing
        for account in sharing:
            self._scopes.setdefault((account, reservation.region), {})[reservation.id] = reservation
        self.absorb(reservation.instance_type, reservation.zone)

    def change(self, reservation: Ec2Reservation, **fields: Any) -> None:
        """Sets fields. Instances that lose their place run on outside; instances that now match move in."""
        for name, value in fields.items():
            setattr(reservation, name, value)
        if reservation.usable:
            displaced = list(reservation.slots.occupants.values())[reservation.total :]
        else:
            displaced = list(reservation.slots.occupants.values())
        for occupant in displaced:
            self.move(occupant, self._pool_of(occupant.needs))
        self.note(reservation)
        # Displaced instances may run in any other reservation that matches them.
        self.absorb(reservation.instance_type, reservation.zone, into=None if displaced else {reservation.id})
        if reservation.state in ENDED:
            # An ended reservation is never matched again; dropping it here keeps matching fast.
            self._shapes.get((reservation.instance_type, reservation.zone), {}).pop(reservation.id, None)

    def note(self, reservation: Ec2Reservation) -> None:
        """Records the view that describe shows from this moment on."""
        view = reservation.view(self.now())
        history = reservation.history
        if history and history[-1][1:] == view[1:]:
            return
        history.append(view)
        _forget(history, before=view.at - self.keep)

    # ---- capacity outside reservations

    def limit(self, key: PoolKey, size: int | None) -> None:
        if size is None:
            self._limits.pop(key, None)
        else:
            self._limits[key] = size + (self._held(key) if key.capacity_type == ON_DEMAND else 0)

    def limits(self) -> list[dict[str, Any]]:
        return [
            {**key._asdict(), "free": self.free(*key), "used": self._slots(key).used} for key in self._limits
        ]

    def free(self, capacity_type: str, instance_type: str, zone: str) -> int | None:
        """The number of instances that a pool still takes; None if it is without limit."""
        key = PoolKey(capacity_type, instance_type, zone)
        limit = self._limits.get(key)
        if limit is None:
            return None
        held = self._held(key) if capacity_type != SPOT else 0
        return limit - held - self._slots(key).used

    def limit_of(self, key: PoolKey) -> int | None:
        return self._limits.get(key)

    def clear_limits(self) -> None:
        self._limits.clear()

    def _held(self, key: PoolKey) -> int:
        return sum(
            r.total
            for r in self.same_shape(key.instance_type, key.zone)
            if r.market == key.capacity_type and (r.usable or (r.market == BLOCK and r.state not in ENDED))
        )

    def _slots(self, where: Ec2Reservation | PoolKey) -> OccupiedSlots:
        return self._pools.setdefault(where, OccupiedSlots()) if isinstance(where, PoolKey) else where.slots

    def _pool_of(self, needs: LaunchNeeds) -> PoolKey:
        return PoolKey(SPOT if needs.market == SPOT else ON_DEMAND, needs.instance_type, needs.zone)

    # ---- instances

    def enter(self, instance: Any, needs: LaunchNeeds, reservation: Ec2Reservation | None) -> Occupant:
        occupant = self.occupants.setdefault(instance.id, Occupant(instance, needs))
        occupant.needs = needs
        self.move(occupant, reservation if reservation is not None else self._pool_of(needs))
        return occupant

    def move(self, occupant: Occupant, where: Ec2Reservation | PoolKey | None) -> None:
        before = occupant.where
        instance_id = occupant.instance.id
        if before is not None:
            del self._slots(before).occupants[instance_id]
        occupant.where = where
        if where is not None:
            self._slots(where).occupants[instance_id] = occupant
        reservation = where if isinstance(where, Ec2Reservation) else None
        occupant.instance.capacity_reservation_id = reservation.id if reservation else None
        occupant.instance.capacity_block_id = reservation.capacity_block_id if reservation else None
        for place in (before, where):
            if isinstance(place, Ec2Reservation):
                self.note(place)
        self.glimpse(occupant)

    def leave(self, occupant: Occupant, *, slot_free_after: float, absorbs: bool = True) -> None:
        """The instance stopped or ended; its slot comes free now or after a while.

        `absorbs`: the free slot takes a running instance.
        """
        where = occupant.where
        if where is None:
            return
        self.move(occupant, None)
        if slot_free_after <= 0:
            self._slot_freed(where, absorbs)
            return
        slots = self._slots(where)
        slots.lingering += 1

        def come_free() -> None:
            slots.lingering -= 1
            if isinstance(where, Ec2Reservation):
                self.note(where)
            self._slot_freed(where, absorbs)

        if isinstance(where, Ec2Reservation):
            self.note(where)
        self.after(slot_free_after, come_free)

    def retarget(self, occupant: Occupant, target: CapacityTarget) -> None:
        """Another specification for an instance that runs nowhere at the moment."""
        occupant.needs = replace(occupant.needs, target=target)
        occupant.instance.capacity_reservation_specification = target.shown()

    def forget(self, occupant: Occupant) -> None:
        """Undoes the launch of an instance."""
        self.move(occupant, None)
        del self.occupants[occupant.instance.id]

    def glimpse(self, occupant: Occupant) -> None:
        """Records the view of an instance that DescribeInstances shows from this moment on."""
        instance = occupant.instance
        seen = Glimpse(self.now(), instance.state, instance.state_code, instance.capacity_reservation_id)
        history = occupant.history
        if history and history[-1][1:] == seen[1:]:
            return
        history.append(seen)
        _forget(history, before=seen.at - self.keep)

    def _slot_freed(self, where: Ec2Reservation | PoolKey, absorbs: bool) -> None:
        if absorbs and isinstance(where, Ec2Reservation):
            self.absorb(where.instance_type, where.zone, into={where.id})

    def absorb(self, instance_type: str, zone: str, *, into: Collection[str] | None = None) -> None:
        """Running instances that match a reservation with room, and may use it, run in it from now on.

        `into`: only in these reservations; None: in any.
        """
        outside = self._pools.get(PoolKey(ON_DEMAND, instance_type, zone))
        if outside is None or not outside.occupants:
            return
        open_ = {r.id for r in self.same_shape(instance_type, zone) if r.available}
        if not (open_ if into is None else open_.intersection(into)):
            return
        for occupant in list(outside.occupants.values()):
            if occupant.needs.target.spills:
                room = self._room_for(occupant.needs, into)
                if room is not None:
                    self.move(occupant, room)

    def would_absorb(self, reservation: Ec2Reservation) -> int:
        """The number of running instances outside that would move into a new reservation."""
        outside = self._pools.get(PoolKey(ON_DEMAND, reservation.instance_type, reservation.zone))
        if outside is None:
            return 0
        return sum(
            o.needs.target.spills
            and not o.needs.target.group
            and o.needs.target.preference != "none"
            and matching.fits(o.needs, reservation)
            for o in outside.occupants.values()
        )

    def _room_for(self, needs: LaunchNeeds, into: Collection[str] | None) -> Ec2Reservation | None:
        try:
            matches = matching.candidates(self, needs)
            fitting = (r for r in matches if r.available and (into is None or r.id in into))
            # A running instance enters no placement group.
            return next((r for r in fitting if r.placement_group_arn == needs.placement_group_arn), None)
        except errors.Ec2Error:
            return None  # the group that it was launched into is gone

    def absorb_all(self) -> None:
        for instance_type, zone in list(self._shapes):
            self.absorb(instance_type, zone)


def _forget(history: list[Any], *, before: datetime) -> None:
    """Keep the newest entry that is older than `before`, and all younger ones."""
    while len(history) > 1 and history[1].at <= before:
        del history[0]
