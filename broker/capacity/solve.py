"""Assigns slots exactly if time allows, and records the solver used and how good its result is.

Invariant: with any solver, no slot class is used beyond its room, no limit is exceeded, and a binding gang is
whole or absent. The first try ignores gangs, and limits that hold for some ways only: it is a network, which
is solved exactly. Usually that leaves every gang whole and keeps to every limit, and then it is the optimum.
Otherwise `slot_model` has the gangs and the limits too. If gangs alone bind, and there are more ways from
claims to slots than it can compare, branch and bound chooses among them. If limits bind and there are too
many ways, or if there is no time, one greedy pass decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.capacity import gangs, greedy, network, quality
from broker.capacity.model import Solution
from broker.capacity.problem import SlotChoice, SlotFlow, SlotProblem
from broker.capacity.time_budget import TimeBudget

SECONDS: Final = 5.0  # the default time limit
# Ways from claims to slots up to which constraint programming compares all assignments, and those up to which
# it does if gangs alone bind. Branch and bound, which does not compare age, is faster with more.
MOST_WAYS: Final = 5_000
MOST_WAYS_OF_GANGS: Final = 500


@dataclass(frozen=True, kw_only=True, eq=False)
class SolvedSlots:
    taken: SlotFlow
    incomplete_gangs: frozenset[str]  # those that bind and do not launch
    solution: Solution


@dataclass(frozen=True, kw_only=True, eq=False)
class _Solved:
    """A choice and its solver. `note`: why it is not proven. `relaxed`: a flow that no choice can beat."""

    choice: SlotChoice
    solver: str
    note: str = ""
    relaxed: SlotFlow | None = None


def solve(problem: SlotProblem, *, seconds: float = SECONDS, timer: Callable[[], float]) -> SolvedSlots:
    """The best assignment within `seconds`, measured by `timer`."""
    budget = TimeBudget(seconds, timer)
    try:
        if len(problem.arc_slot) > seconds * network.ARCS_PER_SECOND:
            ways = f"{len(problem.arc_slot)} ways from claims to slots"
            raise network.SolverFailed(f"{ways} are too many for {seconds:g} s")
        solved = _exactly(problem, budget)
    except network.SolverFailed as error:
        solved = _Solved(choice=greedy.solve(problem), solver="greedy", note=str(error))
    return _rated(problem, solved, seconds - budget.seconds_left())


def _exactly(problem: SlotProblem, budget: TimeBudget) -> _Solved:
    taken, absent = _relaxed(problem, budget)
    present = problem.gangs.keys() - absent
    if not taken.exceeds(problem) and all(gangs.decided(problem, gang, taken) for gang in present):
        launched = frozenset(gang for gang in present if gangs.whole(problem, gang, taken))
        return _Solved(choice=SlotChoice(taken=taken, launched=launched, proven=True), solver="min-cost flow")
    start, ways = greedy.solve(problem), len(problem.arc_slot)
    note = f"{budget.seconds_left():.3g} s were too short to compare every assignment"
    if not problem.limited and ways > MOST_WAYS_OF_GANGS:
        choice, solver = gangs.choose(problem, start.launched, budget), "branch and bound over min-cost flows"
    elif ways > MOST_WAYS:
        choice, solver = start, "greedy"
        note = f"{ways:,} ways from claims to slots are more than {MOST_WAYS:,}: no others were compared"
    else:
        from broker.capacity import (
            slot_model,  # its solver loads pandas: a tenth of the start and of the memory
        )

        choice, solver = slot_model.solve(problem, start, budget), "constraint programming"
    return _Solved(choice=choice, solver=solver, note="" if choice.proven else note, relaxed=taken)


def _relaxed(problem: SlotProblem, budget: TimeBudget) -> tuple[SlotFlow, frozenset[str]]:
    """The network's optimum without the gangs that do not fit into all slots, and these gangs."""
    absent: frozenset[str] = frozenset()
    while True:
        taken = network.solve(problem, at_most=gangs.without(problem, absent))
        impossible = {
            gang
            for gang in problem.gangs.keys() - absent
            if not gangs.decided(problem, gang, taken) and greedy.fits(problem, gang, problem.room) is None
        }
        if not impossible:
            return taken, absent
        if budget.seconds_left() < 0:
            raise network.SolverFailed("the time was too short to find which gangs fit")
        absent |= impossible


def _rated(problem: SlotProblem, solved: _Solved, seconds: float) -> SolvedSlots:
    """The choice, and how much better another one could be."""
    taken, relaxed = solved.choice.taken, solved.relaxed
    incomplete_gangs = frozenset(problem.gangs) - solved.choice.launched
    gaps: quality.Gaps = ()
    bound = taken.reserved
    if solved.note and problem.bundles:
        gaps = quality.gaps(problem, taken, incomplete_gangs, relaxed)
        bound += int(quality.by_priority(problem, taken, relaxed)[-1][1])
    solution = Solution(
        solver=solved.solver if problem.bundles else "nothing to solve",
        optimal=solved.choice.proven,
        reserved=taken.reserved,
        bound=bound,
        bundles=len(problem.bundles),
        pairs=len(problem.arc_slot),
        seconds=seconds,
        note=solved.note,
        gaps=gaps,
    )
    return SolvedSlots(taken=taken, incomplete_gangs=incomplete_gangs, solution=solution)
