"""The reasons of one plan, each computed once for claims that share it, as far as there is time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from broker.capacity import reasons
from broker.capacity.demand import GangProblem, WaitingClaims
from broker.capacity.entitlement import NominatedSlot
from broker.capacity.model import Claim, GangHold, Option, Skipped, Unplaced
from broker.capacity.supply import LaunchSupply
from broker.capacity.time_budget import PlanAdmission

Choice = tuple[tuple[Option, ...], tuple[Skipped, ...]]  # the options after it, and better ones not taken


class Explanations:
    """The reasons of one plan. None of a claim for which there is no time."""

    def __init__(
        self,
        waiting: WaitingClaims,
        supply: LaunchSupply,
        holds: Sequence[GangHold],
        admission: PlanAdmission,
    ) -> None:
        self._waiting, self._supply = waiting, supply
        self._holds, self._admission = holds, admission
        self._outbid = reasons.OutbidOptions(supply.inventory)
        self._ending = supply.ending
        self._unplaced: dict[tuple[object, ...], Unplaced] = {}
        self._choices: dict[tuple[object, ...], Choice] = {}

    def unplaced(self, claim: Claim) -> Unplaced | None:
        """Why a claim has no option."""
        candidates, holds = self._waiting.candidates[claim.uid], self._holds_about(claim)
        gangs = tuple(hold.gang for hold in holds)
        key = (candidates, claim.requirements, frozenset(claim.requests.items()), gangs)
        if not self._admission.admits(claim, free=key in self._unplaced):
            return None
        if key not in self._unplaced:
            self._unplaced[key] = reasons.unplaced(claim, candidates, self._outbid, holds)
        return replace(self._unplaced[key], claim=claim)

    def choice(self, claim: Claim, option: Option) -> Choice | None:
        """The options after this one, and the better ones that the claim did not get."""
        candidates, holds = self._waiting.candidates[claim.uid], self._holds_about(claim)
        key = (candidates, option, tuple(hold.gang for hold in holds) if holds else ())
        if not self._admission.admits(claim, free=key in self._choices):
            return None
        if key not in self._choices:
            rest, skipped = reasons.rest_and_skipped(claim, candidates, option, self._outbid, holds)
            if not option.pool.reserved:
                skipped = tuple(reasons.with_ending(skip, self._ending) for skip in skipped)
            self._choices[key] = rest, skipped
        return self._choices[key]

    def gang(self, name: str, problem: GangProblem, unplaced: Mapping[str, Unplaced]) -> dict[str, Unplaced]:
        """Why the claims of a gang wait. `unplaced`: the reasons of the claims themselves."""
        members = [claim for claim in self._waiting.gangs[name] if claim.uid in self._waiting.candidates]
        hold = next((hold for hold in self._holds if hold.gang == name), None)
        others = [other for other in self._holds if other.gang != name]
        return reasons.gang_incomplete(
            name, members, problem.lacking, unplaced, problem.message, hold, others
        )

    def reclaiming(self, claim: Claim, nominated: NominatedSlot) -> Unplaced:
        """Why a claim waits for a slot that is given back."""
        candidates = self._waiting.candidates[claim.uid]
        return reasons.reclaiming(claim, candidates, nominated, self._supply.entitlements, self._outbid)

    def _holds_about(self, claim: Claim) -> tuple[GangHold, ...]:
        return tuple(hold for hold in self._holds if hold.applies(claim)) if self._holds else ()
