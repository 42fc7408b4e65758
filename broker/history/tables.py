"""The tables of the history, the filter of a search, and the rows of a transaction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from broker.history.demand import UseLevel
from broker.history.entries import Entry

# Seconds of a cell of the heat map, and of a sample of use.
SLOT: Final = 300
_TYPES: Final = {"int": "BIGINT", "bool": "BOOLEAN", "str": "VARCHAR"}
_COUNTS_OF_POOLS: Final = {"slot": "BIGINT", "pool": "VARCHAR", "count": "INTEGER"}
LEVELS: Final = "history_levels"
# The columns of each table, none of them NULL, and the primary key.
TABLES: Final[Mapping[str, tuple[Mapping[str, str], str]]] = {
    "history_entries": ({f.name: _TYPES[str(f.type)] for f in fields(Entry)}, "id"),
    "history_shortages": (_COUNTS_OF_POOLS, "slot, pool"),  # refusals for lack of capacity
    "history_launches": (_COUNTS_OF_POOLS, "slot, pool"),
    "history_uses": (
        {"slot": "BIGINT", "reservation": "VARCHAR", "total": "INTEGER", "used": "INTEGER"},
        "slot, reservation",
    ),
    # The counts of `broker.history.demand`: a row where one changed, and all of them every few hours.
    LEVELS: (
        {
            "at": "BIGINT",
            **dict.fromkeys(("reservation", "instance_type", "zone", "platform"), "VARCHAR"),
            **dict.fromkeys(("total", "used", "waiting"), "INTEGER"),
            "price": "BIGINT",
        },
        "at, reservation, instance_type, zone, platform",
    ),
    # The reservations of an attempt: several for a group or an open match.
    "history_reservations": (
        {"reservation": "VARCHAR", "entry": "VARCHAR", "at": "BIGINT"},
        "reservation, entry",
    ),
    # The NodePools of claims, which a claim's later entries do not repeat; `at` is the last entry's.
    "history_claims": ({"claim": "VARCHAR", "node_pool": "VARCHAR", "at": "BIGINT"}, "claim"),
}
INDEXES: Final[Mapping[str, str]] = {
    "history_entries_at": "history_entries (at, id)",
    "history_entries_name": "history_entries (kind, name, at)",
    "history_entries_request": "history_entries (request_id)",
    "history_entries_reservation": "history_entries (reservation, at)",
    "ix_history_reservations_at": "history_reservations (at)",
    "ix_history_claims_node_pool": "history_claims (node_pool)",
}


def insert(table: str, *updated: str, add: str = "") -> str:
    """The statement for a row: of a row that is there, it takes the `updated` columns and adds to `add`."""
    columns, key = TABLES[table]
    changes = [*(f"{name} = excluded.{name}" for name in updated)]
    changes += [f"{add} = {table}.{add} + excluded.{add}"] if add else []
    values = ", ".join(f":{name}" for name in columns)
    conflict = f"({key}) DO UPDATE SET {', '.join(changes)}" if changes else "DO NOTHING"
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values}) ON CONFLICT {conflict}"


def listed(name: str, items: Iterable[str]) -> tuple[str, dict[str, str]]:
    """The right side of IN, and its values."""
    values = {f"{name}_{number}": item for number, item in enumerate(items)}
    return f"({', '.join(f':{key}' for key in values) or 'NULL'})", values


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

    def where(self) -> tuple[str, dict[str, Any]]:
        """The condition in SQL, and its values."""
        values: dict[str, Any] = {name: value for name in _EQUAL if (value := getattr(self, name))}
        terms = ["1 = 1", *(f"{name} = :{name}" for name in values)]
        if self.reservation:
            matching = "SELECT entry FROM history_reservations WHERE reservation = :odcr"
            terms.append(f"(reservation = :odcr OR id IN ({matching}))")
            values["odcr"] = self.reservation
        if self.node_pool:
            claims = "SELECT claim FROM history_claims WHERE node_pool = :node_pool"
            terms.append(f"kind = 'NodeClaim' AND name IN ({claims})")
            values["node_pool"] = self.node_pool
        if self.request_id:
            terms.append("request_id LIKE :request ESCAPE '/'")
            values["request"] = "%" + re.sub("([/%_])", r"/\1", self.request_id) + "%"
        if self.warning:
            terms.append("warning")
        if self.since:
            terms.append("at >= :since")
            values["since"] = self.since
        if self.names is not None:
            claims, chosen = listed("claim", self.names)
            terms.append(f"kind = 'NodeClaim' AND name IN {claims}")
            values |= chosen
        if self.namespaces is not None:
            admitted, chosen = listed("admitted", (*self.namespaces, *([""] if self.cluster else [])))
            terms.append(f"namespace IN {admitted}")
            values |= chosen
        elif not self.cluster:
            terms.append("namespace != ''")
        return " AND ".join(terms), values


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
