"""The chance of a pool as it is shown: its forecast beside its present state.

Invariant: a chance never contradicts the state. A full reservation launches nothing now, so its wait follows
from the times at which its slots became free, and launches of the past say nothing. Free slots are a fact and
need no forecast. While a pool is short, its newest answer is a refusal and counts once more. Any other chance
needs `LEAST` attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from broker.capacity.forecast import GAIN, PoolForecast, PoolOutcomes
from broker.text import counted
from providers.odcr_states import facts_of

LEAST: Final = 10  # attempts that a chance needs
SlotSample = tuple[int, int, int]  # the begin of a slot of time in seconds since 1970, total, used


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTurnover:
    """The free slots of a reservation at its last sample, and the mean time until a slot becomes free.

    `interval`: None if the window shows no such slot. Whether there was one is then not known: a slot that
    Karpenter took again between two samples leaves no trace.
    """

    free: int
    interval: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChanceNow:
    """`chance`: None if it is not known; `state` is then the reason, and otherwise its cause."""

    chance: float | None = None
    wait: timedelta | None = None
    state: str = ""

    @property
    def text(self) -> str:
        """The chance and the wait, or the state, for a person."""
        parts = [self.state, "" if self.chance is None else f"{self.chance:.0%}"]
        if self.wait is not None:
            minutes = max(1, round(self.wait / timedelta(minutes=1)))
            text = "a slot becomes free about every" if self.state else "else about"
            parts.append(f"{text} {minutes} min")
        return ", ".join(filter(None, parts))

    def view(self) -> dict[str, object]:
        """Its values as plain types."""
        wait = None if self.wait is None else round(self.wait.total_seconds())
        chance = None if self.chance is None else round(self.chance, 3)
        return {"chance": chance, "wait_seconds": wait, "forecast": self.text}


def chance_now(
    forecast: PoolForecast | None,
    turnover: SlotTurnover | None = None,
    *,
    free: int | None = None,
    state: str = "active",
    short: bool = False,
) -> ChanceNow:
    """The chance of a pool. `free` and `state`: of its reservation now, if known; `short`: it backs off."""
    if facts_of(state).phase != "active":
        return ChanceNow(chance=0.0, state=f"the reservation is {state}")
    if free is None and turnover is not None:
        free = turnover.free
    if free == 0:
        if turnover is not None and turnover.interval is None:
            return ChanceNow(chance=0.0, state="full, and when a slot becomes free is not known")
        return ChanceNow(chance=0.0, wait=turnover.interval if turnover else None, state="full")
    if free is not None and not short:
        return ChanceNow(state=f"{counted(free, 'slot is', 'slots are')} free now")
    attempts = forecast.attempts if forecast is not None else 0
    if forecast is None or attempts < LEAST:
        return ChanceNow(state=f"too few attempts ({attempts} of {LEAST})")
    return ChanceNow(chance=forecast.chance * (1 - GAIN) if short else forecast.chance, wait=forecast.wait)


def turnovers(
    samples: Mapping[str, Sequence[SlotSample]], outcomes: Iterable[PoolOutcomes], now: datetime
) -> dict[str, SlotTurnover]:
    """The turnover of each reservation with a sample in the window, by its id.

    A slot that is taken again between two samples shows only in the launches into it.
    """
    launched: dict[str, dict[int, int]] = {}
    for row in outcomes:
        counts = launched.setdefault(reservation_of(row.pool), {})
        counts[row.slot] = counts.get(row.slot, 0) + row.launched
    return {id_: _turnover(rows, launched.get(id_, {}), now) for id_, rows in samples.items() if rows}


def reservation_of(pool: str) -> str:
    """The id of the reservation that a pool's key names; empty for a pool of none, or of a group."""
    last = pool.rpartition(":")[2]
    return last if last.startswith("cr-") else ""


def _turnover(rows: Sequence[SlotSample], launched: Mapping[int, int], now: datetime) -> SlotTurnover:
    used = {slot: used for slot, _, used in rows}
    begin, before = rows[0][0], rows[0][2]
    freed = 0
    for slot in sorted({*used, *launched}):
        if slot <= begin:
            continue
        after = used.get(slot, before)
        freed += max(0, before + launched.get(slot, 0) - after)
        before = after
    span = timedelta(seconds=now.timestamp() - begin)
    _, total, last_used = rows[-1]
    return SlotTurnover(free=max(0, total - last_used), interval=span / freed if freed else None)
