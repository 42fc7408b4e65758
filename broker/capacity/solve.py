"""Assigns slots exactly if time allows, and records the solver used and how good its result is.

Invariant: with any solver, no slot class is used beyond its room, and a binding gang is whole or absent. The
first try ignores gangs: it is a network, which is solved exactly. Usually that leaves every gang whole, and
then it is the optimum. Otherwise branch and bound chooses among the competing gangs, and the network is
solved again with that choice. If there is no time for either, one greedy pass decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from broker.capacity import gangs, greedy, network, quality
from broker.capacity.model import Solution
from broker.capacity.problem import Ints, SlotFlow, SlotProblem

SECONDS: Final = 5.0  # the default time limit


@dataclass(frozen=True, kw_only=True, eq=False)
class SolvedSlots:
    taken: SlotFlow
    incomplete_gangs: frozenset[str]  # those that bind and do not launch
    solution: Solution


def solve(problem: SlotProblem, *, seconds: float = SECONDS, timer: Callable[[], float]) -> SolvedSlots:
    """The best assignment within `seconds`, measured by `timer`."""
    began = timer()
    if len(problem.arc_slot) > seconds * network.ARCS_PER_SECOND:
        note = f"{len(problem.arc_slot)} ways from claims to slots are too many for {seconds:g} s"
        return _greedily(problem, note, timer() - began)
    try:
        return _exactly(problem, seconds, began, timer)
    except network.SolverFailed as error:
        return _greedily(problem, str(error), timer() - began)


def _exactly(problem: SlotProblem, seconds: float, began: float, timer: Callable[[], float]) -> SolvedSlots:
    incomplete_gangs: frozenset[str] = frozenset()
    relaxed: SlotFlow | None = None
    while True:
        taken = network.solve(problem, at_most=_without(problem, incomplete_gangs))
        relaxed = relaxed or taken
        present = [gang for gang in problem.gangs if gang not in incomplete_gangs]
        undecided = [gang for gang in present if not _decided(problem, gang, taken)]
        impossible = {gang for gang in undecided if greedy.fits(problem, gang, problem.room) is None}
        if not impossible:
            break
        if timer() - began > seconds:
            raise network.SolverFailed(f"{seconds:g} s were too short to find which gangs fit")
        incomplete_gangs |= impossible
    if not undecided:
        incomplete_gangs |= {gang for gang in present if not _whole(problem, gang, taken)}
        return _solved(
            problem, taken, incomplete_gangs, "min-cost flow", True, taken.reserved, timer() - began
        )
    ceiling = taken.reserved
    _, fitting = greedy.solve(problem)
    rivals = gangs.rivals(problem, undecided, present=present)
    choice = gangs.choose(problem, rivals, fitting=fitting, until=began + seconds, timer=timer)
    whole = {gang for gang in present if gang not in rivals and _whole(problem, gang, taken)}
    launch = choice.gangs | whole
    incomplete_gangs = frozenset(problem.gangs) - launch
    taken = network.solve(problem, at_most=_without(problem, incomplete_gangs), first=launch)
    if not all(_whole(problem, gang, taken) for gang in launch):
        raise network.SolverFailed("branch and bound: it chose gangs that do not fit together")
    note = "" if choice.proven else f"{seconds:g} s were too short to try every choice of gangs"
    bound = taken.reserved if choice.proven else ceiling
    name = "branch and bound over min-cost flows"
    solved = _solved(problem, taken, incomplete_gangs, name, choice.proven, bound, timer() - began, note)
    return solved if choice.proven else _with_gaps(problem, solved, relaxed)


def _greedily(problem: SlotProblem, note: str, seconds: float) -> SolvedSlots:
    taken, launch = greedy.solve(problem)
    incomplete_gangs = frozenset(problem.gangs) - launch
    bound = greedy.bound(problem, taken)
    return _with_gaps(
        problem, _solved(problem, taken, incomplete_gangs, "greedy", False, bound, seconds, note)
    )


def _with_gaps(problem: SlotProblem, solved: SolvedSlots, relaxed: SlotFlow | None = None) -> SolvedSlots:
    gaps = quality.gaps(problem, solved.taken, solved.incomplete_gangs, relaxed)
    return replace(solved, solution=replace(solved.solution, gaps=gaps))


def _solved(
    problem: SlotProblem,
    taken: SlotFlow,
    incomplete_gangs: frozenset[str],
    solver: str,
    optimal: bool,
    bound: int,
    seconds: float,
    note: str = "",
) -> SolvedSlots:
    solution = Solution(
        solver=solver if problem.bundles else "nothing to solve",
        optimal=optimal,
        reserved=taken.reserved,
        bound=bound,
        bundles=len(problem.bundles),
        pairs=len(problem.arc_slot),
        seconds=seconds,
        note=note,
    )
    return SolvedSlots(taken=taken, incomplete_gangs=incomplete_gangs, solution=solution)


def _without(problem: SlotProblem, incomplete_gangs: frozenset[str]) -> Ints:
    """The slots that each bundle may have if these gangs do not launch."""
    return np.where(
        [bundle.gang in incomplete_gangs if bundle.gang else False for bundle in problem.bundles],
        0,
        problem.counts,
    )


def _whole(problem: SlotProblem, gang: str, taken: SlotFlow) -> bool:
    """Whether every claim of the gang that needs a slot has one."""
    places = problem.gangs[gang]
    return all(
        taken.served[place] == problem.bundles[place].count for place in places if problem.bundles[place].must
    )


def _decided(problem: SlotProblem, gang: str, taken: SlotFlow) -> bool:
    """Whether the network's optimum decides about the gang as the optimum with gangs does.

    A gang with claims that could fall back is decided only when whole: if absent, it saves their cost
    too.
    """
    places = problem.gangs[gang]
    if _whole(problem, gang, taken):
        return True
    return all(problem.bundles[place].must and not taken.served[place] for place in places)
