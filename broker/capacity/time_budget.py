"""The one time limit of a plan, which its steps share: domains, options, slots, explanations.

Invariant: a plan that runs out of time considers the first claims and leaves the rest for the next plan. A
gang is considered whole or not at all. At least one claim or gang is considered, so that plans in parts end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.capacity.model import Claim

# The share of the time after which each step stops.
DOMAINS: Final = 0.2
OPTIONS: Final = 0.5
SLOTS: Final = 0.8
ALL: Final = 1.0


class TimeBudget:
    """`seconds` from now on, as `timer` measures them."""

    def __init__(self, seconds: float, timer: Callable[[], float]) -> None:
        self._seconds = seconds
        self.timer = timer
        self._began = timer()

    def seconds_left(self, share: float = ALL) -> float:
        """The seconds until this share of the time is over; negative afterwards."""
        return self._seconds * share - (self.timer() - self._began)

    def until(self, share: float) -> PlanAdmission:
        return PlanAdmission(self, share)


class PlanAdmission:
    """Admits claims, in order, until a share of the time is over; afterwards only those that cost no time."""

    def __init__(self, budget: TimeBudget, share: float) -> None:
        self._budget = budget
        self._share = share
        self._begun = self._over = False
        self._gangs: dict[str, bool] = {}

    def admits(self, claim: Claim, *, free: bool) -> bool:
        """Whether the claim is considered. `free`: its result is known already."""
        if free and not claim.gang:
            self._begun = True
            return True
        if claim.gang in self._gangs:
            return self._gangs[claim.gang]
        admitted = free or not self._begun or not self._is_over()
        self._begun = self._begun or admitted
        if claim.gang:
            self._gangs[claim.gang] = admitted
        return admitted

    def _is_over(self) -> bool:
        self._over = self._over or self._budget.seconds_left(self._share) < 0
        return self._over
