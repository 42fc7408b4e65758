"""The pools that are short now, as the web page and `explain` show them.

Invariant: both read these rows. One row stands for the zones in which a pool is short for the same cause;
its times are those of the first refusal, of the last one, and of the first try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from broker.capacity.shortages import Scope, Shortage
from broker.oncall.equal_rows import EqualRows, equal_rows
from broker.oncall.wording import scope_name, way_out
from broker.text import plain

_OF_ACCOUNT: Final = frozenset({"quota", "subnet", "placement"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortageRow:
    """`scope` is the resource that refused, in words; `key` names it for good. `way_out` is the remedy that a
    person has.

    `failed_retries`: the number of refusals after the end of an earlier shortage. `pools`: the keys of the
    pools, if it is about pools alone. `zone`: that of the resource, if it has one; `pools_short` counts the
    shortages that the row stands for.
    """

    scope: str
    key: str
    way_out: str
    code: str
    error_class: str
    message: str
    since: datetime
    last: datetime
    until: datetime
    failed_retries: int = 0
    pools: tuple[str, ...] = ()
    zone: str = ""
    pools_short: int = 1


# By the id of an EC2 reservation: its instance type, its zone, and the key of its pool.
Places = Mapping[str, tuple[str, str, str]]


def shortage_row(shortage: Shortage, places: Places) -> ShortageRow:
    scope = shortage.scope
    type_, zone, _ = places.get(scope.key, ("", "", ""))
    name = plain(scope.key) if scope.kind == "reservation" else scope_name(scope.kind, scope.key)
    return ShortageRow(
        scope=f"{name} ({type_}, {zone})" if zone else name,
        key=str(scope),
        way_out=way_out(shortage.class_),
        code=shortage.code,
        error_class=shortage.class_,
        message=shortage.message,
        since=shortage.since,
        last=shortage.last,
        until=shortage.next_try,
        failed_retries=shortage.step,
        pools=_pools(scope, places),
        zone=zone or _zone(scope),
    )


def short_pools(rows: Iterable[ShortageRow]) -> list[ShortageRow]:
    """The rows, those that differ by zone alone as one; the oldest shortage first."""
    ordered = sorted(rows, key=lambda row: row.since)
    return [_merged(group) for group in equal_rows(ordered, cause=_cause, zone=lambda row: row.zone)]


def told(rows: Iterable[ShortageRow]) -> Callable[[str, str], bool]:
    """Whether a shortage stands for a refusal of this pool with this code already. A limit of the account
    and the like is about no pool alone, and stands for its code.
    """
    known = [*rows]
    refusals = {(pool, row.code) for row in known for pool in row.pools}
    codes = {row.code for row in known if row.key.partition(":")[0] in _OF_ACCOUNT}
    return lambda pool, code: (pool, code) in refusals or code in codes


def _cause(row: ShortageRow) -> tuple[str, ...]:
    """EC2's message names the zone, so it is no part of the cause."""
    return row.key.replace(row.zone, "") if row.zone else row.key, row.code, row.error_class


def _merged(group: EqualRows[ShortageRow]) -> ShortageRow:
    rows, first = group.rows, group.first
    if len(rows) == 1:
        return first
    return replace(
        first,
        scope=group.naming(first.scope, first.zone),
        message=max(rows, key=lambda row: row.last).message,
        last=max(row.last for row in rows),
        until=min(row.until for row in rows),
        failed_retries=max(row.failed_retries for row in rows),
        pools=tuple(pool for row in rows for pool in row.pools),
        pools_short=sum(row.pools_short for row in rows),
    )


def _zone(scope: Scope) -> str:
    """The zone in the key of a scope."""
    parts: Sequence[str] = scope.key.split(":")
    match scope.kind:
        case "pool" if len(parts) >= 3:
            return parts[2].partition("@")[0]
        case "class" if len(parts) >= 4:
            return parts[3].partition("@")[0]
        case "placement":
            return parts[-1]
    return ""


def _pools(scope: Scope, places: Places) -> tuple[str, ...]:
    """The keys of the pools that are short; none if a quota, a subnet or a placement group is."""
    kind, key = scope.kind, scope.key
    if kind == "reservation" and key in places:
        return (places[key][2],)
    pool = {"pool": key, "class": key.partition(":")[2]}.get(kind, "")
    return (pool,) if pool else ()
