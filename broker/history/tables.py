"""The tables of the history, the filter of a search, and the rows of a transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    and_,
    or_,
    select,
)
from sqlalchemy.types import TypeEngine

from broker.history.demand import UseLevel
from broker.history.entries import Entry

# Seconds of a cell of the heat map, and of a sample of use.
SLOT: Final = 300
METADATA: Final = MetaData()
_Type = type[TypeEngine[Any]]
_TYPES: Final = {"int": BigInteger, "bool": Boolean, "str": String}

ENTRIES: Final = Table(
    "history_entries",
    METADATA,
    *(Column(f.name, _TYPES[str(f.type)], primary_key=f.name == "id", nullable=False) for f in fields(Entry)),
    Index("history_entries_at", "at", "id"),
    Index("history_entries_name", "kind", "name", "at"),
    Index("history_entries_request", "request_id"),
    Index("history_entries_reservation", "reservation", "at"),
)


def _table(name: str, keys: Mapping[str, _Type], values: Mapping[str, _Type], *, indexed: str = "") -> Table:
    primary = (Column(key, type_, primary_key=True) for key, type_ in keys.items())
    more = (Column(key, type_, nullable=False, index=key == indexed) for key, type_ in values.items())
    return Table(name, METADATA, *primary, *more)


_COUNTED: Final[tuple[Mapping[str, _Type], ...]] = (
    {"slot": BigInteger, "pool": String},
    {"count": Integer},
)
SHORTAGES: Final = _table("history_shortages", *_COUNTED)  # refusals for lack of capacity
LAUNCHES: Final = _table("history_launches", *_COUNTED)
USES: Final = _table(
    "history_uses", {"slot": BigInteger, "reservation": String}, {"total": Integer, "used": Integer}
)
# The counts of `broker.history.demand`: a row where one changed, and all of them every few hours.
LEVELS: Final = _table(
    "history_levels",
    {"at": BigInteger, "reservation": String, "instance_type": String, "zone": String, "platform": String},
    {"total": Integer, "used": Integer, "waiting": Integer, "price": BigInteger},
)
# The reservations of an attempt: several for a group or an open match.
RESERVATIONS: Final = _table(
    "history_reservations", {"reservation": String, "entry": String}, {"at": BigInteger}, indexed="at"
)
# The NodePools of claims, which a claim's later entries do not repeat; `at` is the last entry's.
CLAIMS: Final = _table(
    "history_claims", {"claim": String}, {"node_pool": String, "at": BigInteger}, indexed="node_pool"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFilter:
    """Conditions of a search, all of which hold; an empty one holds for every entry.

    `since` is in microseconds since 1970. `request_id` also finds an entry with several. `reservation` finds
    every attempt that could use it. `node_pool` finds the entries of its claims, even ended ones. `names` are
    claims, one of which it is about. `namespaces` are the admitted ones, None for all; `cluster` admits
    objects without a namespace.
    """

    topic: str = ""
    outcome: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    node_class: str = ""
    instance_type: str = ""
    zone: str = ""
    reservation: str = ""
    node_pool: str = ""
    code: str = ""
    error_class: str = ""
    request_id: str = ""
    instance_id: str = ""
    id: str = ""
    warning: bool = False
    since: int = 0
    names: tuple[str, ...] | None = None
    namespaces: tuple[str, ...] | None = None
    cluster: bool = True

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        columns = ENTRIES.c
        for name in _EQUAL:
            if value := getattr(self, name):
                yield columns[name] == value
        if self.reservation:
            matching = select(RESERVATIONS.c.entry).where(RESERVATIONS.c.reservation == self.reservation)
            yield or_(columns.reservation == self.reservation, columns.id.in_(matching))
        if self.node_pool:
            claims = select(CLAIMS.c.claim).where(CLAIMS.c.node_pool == self.node_pool)
            yield and_(columns.kind == "NodeClaim", columns.name.in_(claims))
        if self.request_id:
            yield columns.request_id.contains(self.request_id, autoescape=True)
        if self.warning:
            yield columns.warning.is_(True)
        if self.since:
            yield columns.at >= self.since
        if self.names is not None:
            yield and_(columns.kind == "NodeClaim", columns.name.in_(self.names))
        if self.namespaces is not None:
            yield columns.namespace.in_((*self.namespaces, *([""] if self.cluster else [])))
        elif not self.cluster:
            yield columns.namespace != ""


_EQUAL: Final = tuple(
    f.name
    for f in fields(EntryFilter)
    if str(f.type) == "str" and f.name not in ("reservation", "node_pool", "request_id")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of one transaction: entries, refusals and launches by slot and pool, uses by slot and
    reservation.

    `reservations` are times by reservation and entry; `claims` are NodePools and times by claim.
    """

    entries: Sequence[Entry] = ()
    refusals: dict[tuple[int, str], int] = field(default_factory=dict)
    launches: dict[tuple[int, str], int] = field(default_factory=dict)
    uses: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    reservations: dict[tuple[str, str], int] = field(default_factory=dict)
    claims: dict[str, tuple[str, int]] = field(default_factory=dict)
    levels: list[UseLevel] = field(default_factory=list)
