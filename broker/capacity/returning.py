"""Chooses the claims outside reservations that move into idle slots, so that most dollars an hour are saved.

Invariant: a gang moves whole or not at all. No slot gets two claims, and no pool gets more moves than its
budget. Greedy in order of savings is optimal for single claims, since the sets of claims that fit the slots
together form a matroid (see `flow`). A gang counts by its average saving.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from broker.capacity.demand import units
from broker.capacity.flow import Flow


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnCandidate:
    """A claim that could move. `saving`: dollars an hour. `slots`: EC2 reservations, the preferred first.

    `gang`: it moves together with the claims of the same gang; empty for none.
    """

    uid: str
    name: str
    pool: str
    saving: float
    slots: tuple[str, ...]
    gang: str = ""


def choose_moves(
    candidates: Iterable[ReturnCandidate], room: Mapping[str, int], budgets: Mapping[str, int]
) -> tuple[ReturnCandidate, ...]:
    """The claims to move now. `room`: idle slots by reservation; `budgets`: moves by pool."""
    ordered = sorted(units(candidates, lambda candidate: candidate.gang), key=_order)
    flow: Flow[str, str] = Flow(
        {
            candidate.uid: tuple(slot for slot in candidate.slots if slot in room)
            for unit in ordered
            for candidate in unit
        },
        room,
    )
    remaining = dict(budgets)
    chosen: list[ReturnCandidate] = []
    for unit in ordered:
        needed = Counter(candidate.pool for candidate in unit)
        if any(remaining.get(pool, 0) < count for pool, count in needed.items()):
            continue
        if not flow.add_all(candidate.uid for candidate in unit):
            continue
        for pool, count in needed.items():
            remaining[pool] -= count
        chosen += unit
    return tuple(chosen)


def _order(unit: Sequence[ReturnCandidate]) -> tuple[float, str]:
    return -sum(candidate.saving for candidate in unit) / len(unit), unit[0].name


# By reservation: since when it has had one free slot, two, and so on.
IdleSince = Mapping[str, tuple[datetime, ...]]


def observe_idle(before: IdleSince, free: Mapping[str, int], now: datetime) -> IdleSince:
    """The free slots as seen now, each with the time since when there were that many."""
    return {
        id_: (*(kept := before.get(id_, ())[:count]), *(now for _ in range(count - len(kept))))
        for id_, count in free.items()
        if count > 0
    }


def idle_for(since: IdleSince, least: timedelta, now: datetime) -> Mapping[str, int]:
    """The slots of each reservation that were idle for at least this long."""
    counts = {id_: sum(now - began >= least for began in times) for id_, times in since.items()}
    return {id_: count for id_, count in counts.items() if count}
