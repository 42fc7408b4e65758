"""Pools that recently refused a launch, remembered until a time.

Invariant: a pool that refused is not requested before its `next_try`, and repeated refusals lengthen the
shortage: three minutes, doubled at each repeat up to thirty. A shortage keeps the time of its first refusal
until the pool launches, or until it is not requested for as long as its back-off after that has ended. A
claim that has another pool leaves a short one out until the end. A claim with only short fallbacks tries
pools without capacity after six minutes at most: one call tries all of them again, so a retry is cheap, and
capacity that returns is found soon. Both times are published. A shortage of a reservation ends earlier only
if a later EC2 description shows slots that were not there at the refusal. A type that is not offered waits
for hours, an account's vCPU limit a quarter of an hour. A type with a reservation is offered, so a refusal
there ends as any other.

The scope of a shortage is the resource that refused: a reservation, a (capacity type, instance type, zone),
such a pool as one class requests it, a placement group in a zone, a subnet, a quota. A refusal in a placement
group or of a tenancy covers that type and zone for the same group and tenancy alone. The same holds in
Karpenter's cache of unavailable offerings (pkg/cache/unavailableofferings.go).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from broker.capacity.inventory import Inventory
from broker.capacity.model import Option, Pool
from broker.doubling import doubled
from providers.errors import ErrorClass

BACKING_OFF: Final = "BackingOff"  # the reason for a shortage that is not over
FIRST: Final = timedelta(minutes=3)
CAP: Final = timedelta(minutes=30)
LAST_RESORT: Final = timedelta(minutes=6)  # the longest wait for a claim with only short fallbacks
# How long after its end a shortage still counts as "again" when the pool refuses once more.
MEMORY: Final = timedelta(minutes=30)
# EC2 counts vCPU limits by these groups of families, G and VT as one; everything else is "Standard".
_QUOTA_FAMILIES: Final[Mapping[str, str]] = {
    **{family: family for family in ("dl", "f", "hpc", "inf", "p", "trn", "u", "x")},
    **dict.fromkeys(("g", "gr", "vt"), "g"),
}

ScopeKind = Literal["reservation", "pool", "class", "placement", "subnet", "quota"]


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """The resource that a refusal is about."""

    kind: ScopeKind
    key: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A scope that refused, with EC2's code and message.

    `since` is the first refusal, `last` the latest. `step` counts repeats; `free` is the room that the
    reservation was expected to have.
    """

    scope: Scope
    class_: ErrorClass
    code: str
    since: datetime
    last: datetime
    until: datetime
    step: int = 0
    free: int = 0
    message: str = ""

    @property
    def next_try(self) -> datetime:
        """The earliest request: by a claim with only short fallbacks."""
        if self.scope.kind != "pool" or self.class_ is not ErrorClass.CAPACITY:
            return self.until
        return min(self.until, self.last + LAST_RESORT)

    def plausible(self, now: datetime) -> bool:
        """Whether a refusal before now can have made it."""
        ordered = self.since <= self.last <= now
        return self.class_.policy.elsewhere and ordered and self.until - self.last <= self._back_off

    @property
    def forgotten_at(self) -> datetime:
        """The time from which another refusal is a new shortage."""
        return self.until + max(MEMORY, self._back_off)

    @property
    def _back_off(self) -> timedelta:
        """Its length, also if a description ended it early."""
        return _length(self.scope, self.class_, self.step)

    def continues(self, now: datetime) -> bool:
        """Whether a refusal now is one more of the same shortage."""
        return now <= self.until + self._back_off


@dataclass(frozen=True, slots=True)
class Shortages:
    """Every remembered shortage. Immutable: each change returns a new object."""

    by_scope: Mapping[Scope, Shortage] = field(default_factory=dict)

    def record(
        self,
        scope: Scope,
        *,
        class_: ErrorClass,
        code: str,
        now: datetime,
        free: int = 0,
        message: str = "",
    ) -> Shortages:
        """Records a refusal. `free`: the room that the inventory still showed in a reservation; `message`:
        EC2's.

        A refusal during a shortage belongs to an earlier call and adds nothing, unless the pool could be
        tried as a last resort.
        """
        known = self.by_scope.get(scope)
        step = 0
        if known is not None and known.next_try > now:
            if _length(scope, class_, known.step) <= known.until - known.last:
                return self
            step = known.step
        elif known is not None and known.until + MEMORY > now:
            step = known.step + 1
        shortage = Shortage(
            scope=scope,
            class_=class_,
            code=code,
            since=known.since if known is not None and known.continues(now) else now,
            last=now,
            until=now + _length(scope, class_, step),
            step=step,
            free=0 if class_ is ErrorClass.RESERVATION_FULL and not _misled(known) else free,
            message=message,
        )
        return self._with([shortage], now)

    def succeeded(self, scopes: Collection[Scope]) -> Shortages:
        """After a launch: its scopes are not short, and doubling starts over."""
        if not any(scope in self.by_scope for scope in scopes):
            return self
        return Shortages(
            {scope: shortage for scope, shortage in self.by_scope.items() if scope not in scopes}
        )

    def observed(self, inventory: Inventory, now: datetime) -> Shortages:
        """After a description: ends the shortages of reservations that have room again, and of those that are
        not active. No launch names these, and once they are active all their slots are new.
        """
        if inventory.described is None:
            return self
        changed = []
        for shortage in self.by_scope.values():
            if shortage.scope.kind != "reservation" or shortage.until <= now:
                continue
            if inventory.described <= shortage.last or shortage.scope.key not in inventory.odcrs:
                continue
            free = inventory.unused(shortage.scope.key)  # also promised slots show that EC2 has room
            if free > shortage.free or not inventory.odcrs[shortage.scope.key].active:
                changed.append(replace(shortage, until=now))
            elif free < shortage.free:
                changed.append(replace(shortage, free=free))
        return self._with(changed, now) if changed else self

    def get(self, scope: Scope, now: datetime) -> Shortage | None:
        """The current shortage of exactly this scope."""
        shortage = self.by_scope.get(scope)
        return shortage if shortage is not None and shortage.until > now else None

    def active(
        self,
        option: Option | Pool,
        now: datetime,
        *,
        node_class: str = "",
        subnet_ids: Collection[str] = (),
        last_resort: bool = False,
    ) -> Shortage | None:
        """The current shortage that blocks an option: of several, the last to end.

        `last_resort`: for a claim with only short fallbacks.

        A reserved option is short if all its reservations are. `subnet_ids` are those of the class
        in the option's zone: the option is short if all of them are. `node_class` is the class of
        the launch.
        """
        if not self.by_scope:
            return None
        pool, odcr_ids = (option.pool, option.odcr_ids) if isinstance(option, Option) else (option, ())
        through = [Scope("pool", str(pool)), quota_scope(pool), class_scope(node_class, pool)]
        if placed := placement_scope(pool):
            through.append(placed)
        shortages = [self.get(scope, now) for scope in through]
        if last_resort:
            shortages = [
                shortage for shortage in shortages if shortage is not None and shortage.next_try > now
            ]
        reservations = odcr_ids or ((pool.reservation,) if pool.reservation else ())
        for kind, keys in (("reservation", reservations), ("subnet", subnet_ids)):
            shortages.append(_soonest(self._each(kind, keys, now)))
        ends = _last_ends if last_resort else _ends
        return max((shortage for shortage in shortages if shortage is not None), key=ends, default=None)

    def open_reservations(self, odcr_ids: Iterable[str], now: datetime) -> tuple[str, ...]:
        """The reservations that may be requested."""
        return tuple(odcr_id for odcr_id in odcr_ids if self.get(Scope("reservation", odcr_id), now) is None)

    def lasting(self, now: datetime) -> Iterator[Shortage]:
        """Every current shortage, ordered by scope."""
        return (self.by_scope[scope] for scope in sorted(self.by_scope) if self.by_scope[scope].until > now)

    def remembered(self, now: datetime) -> Iterator[Shortage]:
        """Every current shortage, and those that the next refusal continues or repeats, ordered by scope."""
        return (
            self.by_scope[scope] for scope in sorted(self.by_scope) if self.by_scope[scope].forgotten_at > now
        )

    def _each(self, kind: str, keys: Iterable[str], now: datetime) -> list[Shortage | None]:
        named: ScopeKind = "reservation" if kind == "reservation" else "subnet"
        return [self.get(Scope(named, key), now) for key in keys]

    def _with(self, changed: Iterable[Shortage], now: datetime) -> Shortages:
        kept = {shortage.scope: shortage for shortage in self.remembered(now)}
        return Shortages(kept | {shortage.scope: shortage for shortage in changed})


def quota_scope(pool: Pool) -> Scope:
    """The account limit that a launch into the pool counts against."""
    return Scope("quota", f"{pool.capacity_type}:{quota_family(pool.instance_type)}")


def class_scope(node_class: str, pool: Pool) -> Scope:
    """A class's use of the pool: another class may request other features of it."""
    return Scope("class", f"{node_class}:{pool}")


def placement_scope(pool: Pool) -> Scope | None:
    """The placement group in the zone, which counts instances of every type; None without a group."""
    group = pool.placement.rpartition(",")[2]
    return Scope("placement", f"{group}:{pool.zone}") if group else None


def quota_family(instance_type: str) -> str:
    """The group of families that EC2 counts the type's vCPUs in."""
    letters = ""
    for character in instance_type:
        if not character.isalpha():
            break
        letters += character
    return _QUOTA_FAMILIES.get(letters, "standard")


def _length(scope: Scope, class_: ErrorClass, step: int) -> timedelta:
    fixed = class_.policy.lasts if scope.kind != "reservation" else None
    return fixed if fixed is not None else doubled(FIRST, CAP, step)


def _soonest(shortages: Collection[Shortage | None]) -> Shortage | None:
    """The first shortage to end if all are short, since one is enough; otherwise None."""
    lasting = [shortage for shortage in shortages if shortage is not None]
    return min(lasting, key=_ends) if lasting and len(lasting) == len(shortages) else None


def _ends(shortage: Shortage) -> tuple[datetime, Scope]:
    return shortage.until, shortage.scope


def _last_ends(shortage: Shortage) -> tuple[datetime, Scope]:
    return shortage.next_try, shortage.scope


def _misled(known: Shortage | None) -> bool:
    """Whether the shortage ended early because EC2 showed free slots, which were then refused.

    As many free slots do not end it again.
    """
    if known is None:
        return False
    return known.free > 0 or known.until - known.last < _length(known.scope, known.class_, known.step)
