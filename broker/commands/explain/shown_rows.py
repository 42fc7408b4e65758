"""The rows of an explanation for a person, where they differ from those for a machine.

Invariant: a person's row stands for one or more of a machine's. Equal rows are one, by the groups that the
web page has too; times are relative, and a machine's are in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from broker.capacity.entitlement import RESERVATION_FULL
from broker.commands.output import age
from broker.oncall.equal_rows import EqualRows, equal_rows
from broker.oncall.full_reservations import FullReservations, full_reservations
from broker.oncall.short_pools import ShortageRow, short_pools, told
from broker.oncall.situation import Situation
from broker.text import abridged, decode_time, format_time, plain

Row = Mapping[str, Any]
MOST_NAMED: Final = 1
# Rows of the state, and the part that has them in full.
_REPEATED: Final[Mapping[str, str]] = {"nodes": "broken", "pods": "pods"}


def shown_rows(
    situation: Situation, parts: Mapping[str, Sequence[Row]], *, brief: bool
) -> dict[str, Sequence[Row]]:
    """`brief`: of the cluster. Without the refusals that a short pool already stands for, which `errors`
    counts; each object of the state has its kind. On the page of one object only its NodePools have it.
    """
    now, pools = situation.now, situation_pools(situation)
    return {
        "state": [
            _with_kind(row) if brief or row["kind"] == "NodePool" else row
            for row in parts["state"]
            if not parts.get(_REPEATED.get(row["object"], ""))
        ],
        "short": [*_short(pools, now), *_full(full_of(situation), now)],
        "waiting": [_claims(group) for group in equal_rows(parts["waiting"], cause=_cause)],
        "tried": [*_tried(parts["tried"], told(pools), brief=brief)],
    }


def situation_pools(situation: Situation) -> list[ShortageRow]:
    """The short pools of the situation."""
    return short_pools(situation.shortage_rows)


def full_of(situation: Situation) -> list[FullReservations]:
    """The full reservations of the situation that pods wait for."""
    uses = situation.slot_uses
    held = [uses[mirror.name] for mirror in situation.mirrors if mirror.name in uses]
    return full_reservations(situation.waiting_pods, held, situation_pools(situation))


def full_row(full: FullReservations, now: datetime) -> dict[str, Any]:
    """Full reservations that pods wait for, with the fields of a shortage, for a machine."""
    since = full.since and format_time(full.since)
    return {
        "scope": "reservation",
        "pool": ", ".join(full.ids),
        "code": RESERVATION_FULL,
        "class": "",
        "message": full.who,
        "since": since,
        "last": since,
        "next_try": None,
        "until": None,
        "pods": [pod.key for pod in full.pods],
        "command": full.pods[0].command,
        "for": age(now - (full.since or now)),
    }


def relative(at: datetime, now: datetime) -> str:
    """`3m ago` or `in 3m`."""
    return f"in {age(at - now)}" if at > now else f"{age(now - at)} ago"


def relative_text(text: str, now: datetime) -> str:
    """A time of a machine's row, as `relative`."""
    return relative(decode_time(text), now)


def format_clock(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _with_kind(row: Row) -> Row:
    """A class, a NodePool and a reservation may have one name."""
    return {**row, "object": f"{row['kind']} {row['object']}".strip()}


def _short(pools: Iterable[ShortageRow], now: datetime) -> Iterator[Row]:
    for pool in pools:
        due = pool.until <= now
        yield {
            "pool": pool.scope,
            "code": pool.code,
            "for": age(now - pool.since),
            "next_try": "due" if due else relative(pool.until, now),
        }


def _full(rows: Iterable[FullReservations], now: datetime) -> Iterator[Row]:
    for row in rows:
        yield {
            "pool": row.scope,
            "code": RESERVATION_FULL,
            "for": age(now - (row.since or now)),
            "next_try": "once a slot is free",
            "who": row.who,
        }


def _cause(row: Row) -> tuple[str, ...]:
    return row["class"], row["nodepool"], row["reason"], row["message"]


def _claims(group: EqualRows[Row]) -> Row:
    """The claims of one cause; the first waits longest."""
    names = [row["claim"] for row in group.rows]
    return {**group.first, "claim": abridged(names, MOST_NAMED), "count": len(names)}


def _tried(rows: Sequence[Row], is_told: Callable[[str, str], bool], *, brief: bool) -> Iterator[Row]:
    """One row for equal answers of a pool in several zones."""

    def cause(row: Row) -> tuple[str, str, str]:
        pool = row["pool"].replace(row["zone"], "") if row["zone"] else row["pool"]
        return pool, row["outcome"], row["code"]

    untold = [row for row in rows if not (brief and row["code"] and is_told(row["pool"], row["code"]))]
    for group in equal_rows(untold, cause=cause, zone=lambda row: row["zone"]):
        first = group.first
        pool, result = group.naming(plain(first["pool"]), first["zone"]), plain(first["result"])
        request = first["request_id"] and f"AWS request {first['request_id']}"
        yield {
            **first,
            "times": sum(row["times"] for row in group.rows),
            "result": f"{pool}: {result}" if brief else "\n".join(filter(None, (pool, result, request))),
        }
