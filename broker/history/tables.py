"""The tables of the history, the filter of a search, and the rows of a transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

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

from broker.history.demand import UseLevel
from broker.history.entries import Entry

# Seconds of a cell of the heat map, and of a sample of use.
SLOT: Final = 300
METADATA: Final = MetaData()
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


def _counts_of_pools(name: str) -> Table:
    return Table(
        name,
        METADATA,
        Column("slot", BigInteger, primary_key=True),
        Column("pool", String, primary_key=True),
        Column("count", Integer, nullable=False),
    )


SHORTAGES: Final = _counts_of_pools("history_shortages")  # refusals for lack of capacity
LAUNCHES: Final = _counts_of_pools("history_launches")
USES: Final = Table(
    "history_uses",
    METADATA,
    Column("slot", BigInteger, primary_key=True),
    Column("reservation", String, primary_key=True),
    Column("total", Integer, nullable=False),
    Column("used", Integer, nullable=False),
)
# The counts of `broker.history.demand`: a row where one changed, and all of them every few hours.
LEVELS: Final = Table(
    "history_levels",
    METADATA,
    Column("at", BigInteger, primary_key=True),
    Column("reservation", String, primary_key=True),
    Column("instance_type", String, primary_key=True),
    Column("zone", String, primary_key=True),
    Column("platform", String, primary_key=True),
    Column("total", Integer, nullable=False),
    Column("used", Integer, nullable=False),
    Column("waiting", Integer, nullable=False),
    Column("price", BigInteger, nullable=False),
)
# The reservations of an attempt: several for a group or an open match.
RESERVATIONS: Final = Table(
    "history_reservations",
    METADATA,
    Column("reservation", String, primary_key=True),
    Column("entry", String, primary_key=True),
    Column("at", BigInteger, nullable=False, index=True),
)
# The NodePools of claims, which a claim's later entries do not repeat; `at` is the last entry's.
CLAIMS: Final = Table(
    "history_claims",
    METADATA,
    Column("claim", String, primary_key=True),
    Column("node_pool", String, nullable=False, index=True),
    Column("at", BigInteger, nullable=False),
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
