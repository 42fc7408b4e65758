"""A simulated day of a pool with 100 reserved slots: hours on demand that an idle slot could have served.

The load is a sine around the number of slots: 50 to 150 claims. A claim takes a free slot, or runs on demand,
and lasts eight hours on average. When the load falls, claims of random age end and none follow, so that slots
become idle beside claims on demand. The broker's own rules
decide: the idle time of slots, the choice of moves, and the pool's budgets. The cluster is played: a new
node is Ready after 90 s, the old one drains for 60 s, and a claim is quiet for `consolidateAfter` first. The
baseline is the same day without moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

from benchmarks.figures import Figure, run
from broker.apis.karpenter import Budget
from broker.capacity.returning import IdleSince, ReturnCandidate, choose_moves, idle_for, observe_idle
from broker.controllers.disruption.controller import EVERY
from broker.controllers.disruption.returning import LEAST_IDLE
from broker.placement.disruption_budgets import BudgetLedger, PoolNodes, allowed

SLOTS: Final = 100
DAY: Final = timedelta(days=1)
BEGAN: Final = datetime(2026, 11, 23, tzinfo=UTC)
STEP: Final = timedelta(seconds=EVERY)
READY: Final = timedelta(seconds=90)
DRAIN: Final = timedelta(seconds=60)
LASTS: Final = timedelta(hours=8)
QUIET: Final = timedelta(minutes=5)  # consolidateAfter
BUDGETS: Final = (Budget(nodes="10%"),)
POOL: Final = "web"
ODCR: Final = "cr-0"
PRICE: Final = 0.096  # of an m5.large


@dataclass(slots=True)
class PlayedClaim:
    """A claim with its node. `moves`: when its replacement is Ready; `drains`: when its node has ended."""

    uid: str
    reserved: bool
    quiet: datetime
    moves: datetime | None = None
    drains: datetime | None = None


@dataclass(slots=True)
class PlayedDay:
    """A day of one pool; `returns`: whether claims move into idle slots."""

    returns: bool
    random: Random
    claims: list[PlayedClaim] = field(default_factory=list)
    idle: IdleSince = field(default_factory=dict)
    serial: int = 0
    hours: float = 0.0  # on demand
    missed: float = 0.0  # of these, while a slot was idle
    moved: int = 0
    above_budget: int = 0  # steps with more disruptions than the budget allows
    most: int = 0  # disruptions at once

    def play(self) -> None:
        """Plays the whole day."""
        now = BEGAN
        while now < BEGAN + DAY:
            self._load(now)
            self._finish(now)
            if self.returns:
                self._start(now)
            self._count()
            now += STEP

    @property
    def _free(self) -> int:
        """The slots that no claim has and no replacement takes."""
        return SLOTS - sum(claim.reserved or claim.moves is not None for claim in self.claims)

    def _load(self, now: datetime) -> None:
        share = (now - BEGAN) / DAY
        target = SLOTS * (1 + 0.5 * math.sin(2 * math.pi * share))
        self.claims = [claim for claim in self.claims if claim.drains or self.random.random() > STEP / LASTS]
        running = [claim for claim in self.claims if claim.drains is None]
        for _ in range(max(0, round(target) - len(running))):
            self.serial += 1
            self.claims.append(PlayedClaim(uid=str(self.serial), reserved=self._free > 0, quiet=now + QUIET))
        for claim in self.random.sample(running, max(0, len(running) - round(target))):
            self.claims.remove(claim)

    def _finish(self, now: datetime) -> None:
        for claim in [*self.claims]:
            if claim.drains is not None and now >= claim.drains:
                self.claims.remove(claim)
            elif claim.moves is not None and now >= claim.moves:
                self.serial += 1
                self.claims.append(PlayedClaim(uid=str(self.serial), reserved=True, quiet=now + QUIET))
                claim.moves, claim.drains = None, now + DRAIN
                self.moved += 1

    def _start(self, now: datetime) -> None:
        self.idle = observe_idle(self.idle, {ODCR: self._free}, now)
        moving = [claim for claim in self.claims if claim.moves or claim.drains]
        nodes = PoolNodes(total=len(self.claims), disrupted=len(moving))
        limit = BudgetLedger({POOL: BUDGETS}, {POOL: nodes}, now).remaining(POOL, "Underutilized")
        candidates = [
            ReturnCandidate(uid=claim.uid, name=claim.uid, pool=POOL, saving=PRICE, slots=(ODCR,))
            for claim in self.claims
            if not claim.reserved and claim not in moving and now >= claim.quiet
        ]
        chosen = {
            candidate.uid
            for candidate in choose_moves(candidates, idle_for(self.idle, LEAST_IDLE, now), {POOL: limit})
        }
        for claim in self.claims:
            if claim.uid in chosen:
                claim.moves = now + READY
        disrupted = sum(bool(claim.moves or claim.drains) for claim in self.claims)
        self.most = max(self.most, disrupted)
        if chosen and disrupted > allowed(BUDGETS, len(self.claims), "Underutilized", now):
            self.above_budget += 1

    def _count(self) -> None:
        on_demand = sum(not claim.reserved and claim.drains is None for claim in self.claims)
        hours = STEP / timedelta(hours=1)
        # A replacement under way holds its slot, which its claim does not use yet.
        free = SLOTS - sum(claim.reserved for claim in self.claims)
        self.hours += on_demand * hours
        self.missed += min(on_demand, free) * hours


def measure(*, small: bool) -> Sequence[Figure]:
    """A simulated day of 100 slots: hours on demand beside an idle slot, and disruptions."""
    days = [_pair(seed) for seed in range(1 if small else 10)]
    moved, plain = [pair[0] for pair in days], [pair[1] for pair in days]
    return [
        Figure(
            name="hours on demand that an idle slot could have served",
            measured=100 * _share(moved),
            unit="%",
            most=5,
            baseline=100 * _share(plain),
            of="no returns",
        ),
        Figure(
            name="dollars a day on demand",
            measured=PRICE * sum(day.hours for day in moved) / len(days),
            baseline=PRICE * sum(day.hours for day in plain) / len(days),
            of="no returns",
        ),
        Figure(name="claims moved a day", measured=sum(day.moved for day in moved) / len(days)),
        Figure(name="disruptions at once", measured=max(day.most for day in moved)),
        Figure(
            name="passes above the budget of 10 %", measured=sum(day.above_budget for day in moved), most=0
        ),
    ]


def _pair(seed: int) -> tuple[PlayedDay, PlayedDay]:
    both = PlayedDay(returns=True, random=Random(seed)), PlayedDay(returns=False, random=Random(seed))
    for day in both:
        day.play()
    return both


def _share(days: Sequence[PlayedDay]) -> float:
    return sum(day.missed for day in days) / sum(day.hours for day in days)


if __name__ == "__main__":
    run(measure)
