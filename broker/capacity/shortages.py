"""Pools that just refused, remembered until a time.

Invariant: a pool that refused is not asked again before its time, and a pool that goes on refusing is asked
ever more rarely: three minutes, doubled at each repeat up to thirty. A shortage of a reservation ends earlier
only when a description of EC2's taken after the refusal shows slots that were not there at the refusal.
What is not offered at all waits for hours; an account's vCPU limit waits a quarter of an hour. Where there is
a reservation its type is offered: a refusal there is forgotten as soon as any other.

A shortage belongs to what refused: a reservation, a (capacity type, instance type, zone), such a pool as one
class asks for it, a placement group in a zone, a subnet, a quota.
What refuses a launch in a placement group or of a tenancy is that type and zone for the same group and
tenancy alone, as in Karpenter's cache of unavailable offerings (pkg/cache/unavailableofferings.go).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from broker.capacity.model import Inventory, Option, Pool
from providers.model import ErrorClass

FIRST: Final = timedelta(minutes=3)
CAP: Final = timedelta(minutes=30)
# How long after its end a shortage still counts as "again" when the pool refuses once more.
MEMORY: Final = timedelta(minutes=30)
_FIXED: Final[Mapping[ErrorClass, timedelta]] = {
    ErrorClass.NOT_OFFERED: timedelta(hours=6),
    ErrorClass.QUOTA: timedelta(minutes=15),
}
_REMEMBERED: Final = frozenset(
    {
        ErrorClass.CAPACITY,
        ErrorClass.RESERVATION_FULL,
        ErrorClass.RESERVATION_GONE,
        ErrorClass.NOT_OFFERED,
        ErrorClass.UNSUPPORTED,
        ErrorClass.SPREAD_FULL,
        ErrorClass.SUBNET,
        ErrorClass.QUOTA,
    }
)
# EC2 counts vCPU limits by these groups of families, G and VT as one; everything else is "Standard".
_QUOTA_FAMILIES: Final[Mapping[str, str]] = {
    **{family: family for family in ("dl", "f", "hpc", "inf", "p", "trn", "u", "x")},
    **dict.fromkeys(("g", "gr", "vt"), "g"),
}

ScopeKind = Literal["reservation", "pool", "class", "placement", "subnet", "quota"]


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """What a refusal is about, and so how far it reaches."""

    kind: ScopeKind
    key: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A scope that refused, in EC2's words. `step` counts repeats; `free` is the room a reservation was
    thought to have."""

    scope: Scope
    class_: ErrorClass
    code: str
    since: datetime
    until: datetime
    step: int = 0
    free: int = 0
    message: str = ""

    def view(self, now: datetime) -> dict[str, object]:
        """For metrics and pages: plain values."""
        return {
            "scope": str(self.scope),
            "kind": self.scope.kind,
            "key": self.scope.key,
            "class": self.class_.value,
            "code": self.code,
            "message": self.message,
            "since": self.since.isoformat(),
            "until": self.until.isoformat(),
            "seconds_left": max(0.0, (self.until - now).total_seconds()),
            "step": self.step,
        }


@dataclass(frozen=True, slots=True)
class Shortages:
    """Every shortage that is remembered. Immutable: each change gives new ones."""

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
        """After a refusal. `free` is the room that the inventory still showed in a reservation; `message` is
        EC2's.

        A refusal while the shortage lasts is an answer to a call made before it: it tells nothing new.
        Classes that say nothing about the scope (throttling, permission, ...) are refused with ValueError.
        """
        if class_ not in _REMEMBERED:
            raise ValueError(f"class {class_.value} is no shortage of {scope}; see answers.scopes")
        known = self.by_scope.get(scope)
        step = 0
        if known is not None and known.until > now:
            if _length(scope, class_, known.step) <= known.until - known.since:
                return self
            step = known.step
        elif known is not None and known.until + MEMORY > now:
            step = known.step + 1
        shortage = Shortage(
            scope=scope,
            class_=class_,
            code=code,
            since=now,
            until=now + _length(scope, class_, step),
            step=step,
            free=0 if class_ is ErrorClass.RESERVATION_FULL and not _misled(known) else free,
            message=message,
        )
        return self._with([shortage], now)

    def succeeded(self, scopes: Collection[Scope]) -> Shortages:
        """After a launch: what it went through is not short, and doubling starts over."""
        if not any(scope in self.by_scope for scope in scopes):
            return self
        return Shortages({scope: each for scope, each in self.by_scope.items() if scope not in scopes})

    def observed(self, inventory: Inventory, now: datetime) -> Shortages:
        """After a description: ends the shortages of reservations that have come to have room."""
        if inventory.described is None:
            return self
        changed = []
        for shortage in self.by_scope.values():
            if shortage.scope.kind != "reservation" or shortage.until <= now:
                continue
            if inventory.described <= shortage.since or shortage.scope.key not in inventory.odcrs:
                continue
            free = inventory.free(shortage.scope.key)
            if free > shortage.free:
                changed.append(replace(shortage, until=now))
            elif free < shortage.free:
                changed.append(replace(shortage, free=free))
        return self._with(changed, now) if changed else self

    def get(self, scope: Scope, now: datetime) -> Shortage | None:
        """The shortage of exactly this scope, if it lasts."""
        shortage = self.by_scope.get(scope)
        return shortage if shortage is not None and shortage.until > now else None

    def active(
        self,
        option: Option | Pool,
        now: datetime,
        *,
        node_class: str = "",
        subnet_ids: Collection[str] = (),
    ) -> Shortage | None:
        """The shortage that keeps an option from being asked: of those that last, the one that ends last.

        A reserved option is short when all its reservations are. `subnet_ids` are the class's in the option's
        zone: the option is short when all of them are. `node_class` is the class that is launched from.
        """
        if not self.by_scope:
            return None
        pool, odcr_ids = (option.pool, option.odcr_ids) if isinstance(option, Option) else (option, ())
        through = [Scope("pool", str(pool)), quota_scope(pool), class_scope(node_class, pool)]
        if placed := placement_scope(pool):
            through.append(placed)
        found = [self.get(scope, now) for scope in through]
        reservations = odcr_ids or ((pool.reservation,) if pool.reservation else ())
        for kind, keys in (("reservation", reservations), ("subnet", subnet_ids)):
            found.append(_soonest(self._each(kind, keys, now)))
        return max((each for each in found if each is not None), key=_ends, default=None)

    def open_reservations(self, odcr_ids: Iterable[str], now: datetime) -> tuple[str, ...]:
        """Those of the reservations that may be asked."""
        return tuple(each for each in odcr_ids if self.get(Scope("reservation", each), now) is None)

    def lasting(self, now: datetime) -> Iterator[Shortage]:
        """Every shortage that lasts, by scope."""
        return (self.by_scope[scope] for scope in sorted(self.by_scope) if self.by_scope[scope].until > now)

    def view(self, now: datetime) -> list[dict[str, object]]:
        """Every shortage that lasts, as plain values."""
        return [shortage.view(now) for shortage in self.lasting(now)]

    def _each(self, kind: str, keys: Iterable[str], now: datetime) -> list[Shortage | None]:
        named: ScopeKind = "reservation" if kind == "reservation" else "subnet"
        return [self.get(Scope(named, key), now) for key in keys]

    def _with(self, changed: Iterable[Shortage], now: datetime) -> Shortages:
        kept = {scope: each for scope, each in self.by_scope.items() if each.until + MEMORY > now}
        return Shortages(kept | {each.scope: each for each in changed})


def quota_scope(pool: Pool) -> Scope:
    """The account limit that a launch into the pool counts against."""
    return Scope("quota", f"{pool.capacity_type}:{quota_family(pool.instance_type)}")


def class_scope(node_class: str, pool: Pool) -> Scope:
    """What a class asks for of the pool: another class may ask for something else of it."""
    return Scope("class", f"{node_class}:{pool}")


def placement_scope(pool: Pool) -> Scope | None:
    """The placement group in the zone, which counts instances of every type; None where there is no group."""
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
    fixed = _FIXED.get(class_) if scope.kind != "reservation" else None
    return fixed if fixed is not None else min(CAP, FIRST * 2 ** min(step, 10))


def _soonest(each: Collection[Shortage | None]) -> Shortage | None:
    """When all are short: the one that ends first, since one is enough. Otherwise none."""
    lasting = [shortage for shortage in each if shortage is not None]
    return min(lasting, key=_ends) if lasting and len(lasting) == len(each) else None


def _ends(shortage: Shortage) -> tuple[datetime, Scope]:
    return shortage.until, shortage.scope


def _misled(known: Shortage | None) -> bool:
    """Whether slots that EC2 showed ended the shortage before its time, and were refused all the same: as
    many of them end it no more."""
    if known is None:
        return False
    return known.free > 0 or known.until - known.since < _length(known.scope, known.class_, known.step)
