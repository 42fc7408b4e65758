"""Assigns slots exactly if time allows, and records the solver used and how good its result is.

Invariant: with any solver, no slot class is used beyond its room, no limit is exceeded, and a binding gang is
whole or absent. The first try ignores gangs and limits: it is a network, which is solved exactly. Usually
that leaves every gang whole and keeps to every limit, and then it is the optimum. Otherwise `slot_model` has
the gangs and the limits too. With more ways from claims to slots than it can compare, branch and bound
chooses among competing gangs if no limit binds; with limits, a part of the claims is compared. If there is
no time, one greedy pass decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.capacity import gangs, greedy, network, quality, slot_model
from broker.capacity.model import Solution
from broker.capacity.problem import Ints, SlotFlow, SlotLimit, SlotProblem

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
        taken = network.solve(problem, at_most=gangs.without(problem, incomplete_gangs))
        relaxed = relaxed or taken
        present = [gang for gang in problem.gangs if gang not in incomplete_gangs]
        undecided = [gang for gang in present if not gangs.decided(problem, gang, taken)]
        impossible = {gang for gang in undecided if greedy.fits(problem, gang, problem.room) is None}
        if not impossible:
            break
        if timer() - began > seconds:
            raise network.SolverFailed(f"{seconds:g} s were too short to find which gangs fit")
        incomplete_gangs |= impossible
    if problem.limited:
        if timer() - began > seconds:
            raise network.SolverFailed(f"{seconds:g} s were too short to lend slots")
        relaxed = taken = network.best(problem, at_most=gangs.without(problem, incomplete_gangs))
        undecided = [gang for gang in present if not gangs.decided(problem, gang, taken)]
    if not undecided and not taken.exceeds(problem):
        incomplete_gangs |= {gang for gang in present if not gangs.whole(problem, gang, taken)}
        return _solved(
            problem, taken, incomplete_gangs, "min-cost flow", True, taken.reserved, timer() - began
        )
    if problem.limited or len(problem.arc_slot) <= MOST_WAYS_OF_GANGS:
        return _modelled(problem, relaxed, seconds, began, timer)
    _, fitting = greedy.solve(problem)
    choice = gangs.choose(problem, fitting=fitting, until=began + seconds, timer=timer)
    note = "" if choice.proven else f"{seconds:g} s were too short to try every choice of gangs"
    bound = choice.taken.reserved if choice.proven else taken.reserved
    name, incomplete_gangs = "branch and bound over min-cost flows", frozenset(problem.gangs) - choice.gangs
    solved = _solved(
        problem, choice.taken, incomplete_gangs, name, choice.proven, bound, timer() - began, note
    )
    return solved if choice.proven else _with_gaps(problem, solved, relaxed)


def _modelled(
    problem: SlotProblem, relaxed: SlotFlow, seconds: float, began: float, timer: Callable[[], float]
) -> SolvedSlots:
    """The best assignment by constraint programming; of a part of the claims if there are too many ways."""
    start, launched = greedy.solve(problem)
    note, within = "", np.ones(problem.reaches, dtype=bool)
    if len(problem.arc_slot) > MOST_WAYS:
        ways = f"{len(problem.arc_slot):,} ways from claims to slots"
        note = f"{ways} are more than {MOST_WAYS:,}: only a part was compared"
        within = _selected(problem, start)
    bundles = np.nonzero([within[bundle.reach] for bundle in problem.bundles])[0]
    arcs = np.nonzero(within[problem.arc_reach])[0]
    part = _part(problem, start, bundles, arcs)
    modelled = slot_model.solve(
        part,
        SlotFlow(served=start.served[bundles], flow=start.flow[arcs]),
        launched,
        seconds=seconds - (timer() - began),
        timer=timer,
    )
    if not modelled.proven:
        note = "; ".join(filter(None, (note, f"{seconds:.3g} s were too short to compare every assignment")))
    start.served[bundles], start.flow[arcs] = modelled.taken.served, modelled.taken.flow
    incomplete_gangs = frozenset(problem.gangs) - modelled.launched - (launched - part.gangs.keys())
    bound = relaxed.reserved if note else start.reserved
    name = "constraint programming"
    solved = _solved(problem, start, incomplete_gangs, name, not note, bound, timer() - began, note)
    return _with_gaps(problem, solved, relaxed) if note else solved


def _part(problem: SlotProblem, start: SlotFlow, bundles: Ints, arcs: Ints) -> SlotProblem:
    """The problem of these bundles, while all others keep their slots."""
    place = np.full(len(problem.arc_slot), -1)
    place[arcs] = np.arange(len(arcs))
    others = np.where(place < 0, start.flow, 0)
    taken = np.bincount(problem.arc_slot, weights=others, minlength=len(problem.room)).astype(np.int64)
    limits = [
        SlotLimit(place[limit.arcs][place[limit.arcs] >= 0], limit.most - int(others[limit.arcs].sum()))
        for limit in problem.limits
    ]
    kept = problem.kept
    return replace(
        problem,
        bundles=tuple(problem.bundles[bundle] for bundle in bundles),
        room=problem.room - taken,
        arc_reach=problem.arc_reach[arcs],
        arc_slot=problem.arc_slot[arcs],
        lent=problem.lent[arcs],
        limits=tuple(limits),
        kept=kept and SlotFlow(served=kept.served[bundles], flow=kept.flow[arcs]),
    )


def _selected(problem: SlotProblem, start: SlotFlow) -> NDArray[np.bool_]:
    """The reaches to compare if there are too many ways: first those of claims without a slot, in order of
    rank, then those with slots that they could use. A gang is in it whole or not at all.
    """
    units: dict[int, set[int]] = {bundle.reach: {bundle.reach} for bundle in problem.bundles}
    for places in problem.gangs.values():
        joined = set().union(*(units[problem.bundles[place].reach] for place in places))
        units |= dict.fromkeys(joined, joined)
    begins = np.searchsorted(problem.arc_reach, np.arange(1, problem.reaches))
    slots = [set(classes.tolist()) for classes in np.split(problem.arc_slot, begins)]
    lacking = [
        bundle.reach
        for bundle, served in zip(problem.bundles, start.served, strict=True)
        if served < bundle.count
    ]
    selected = np.zeros(problem.reaches, dtype=bool)
    remaining, reached = MOST_WAYS, set[int]()
    for reach, share in [
        *((reach, 0.5) for reach in lacking),
        *((bundle.reach, 0.0) for bundle in problem.bundles),
    ]:
        unit = units[reach]
        count = sum(len(slots[other]) for other in unit)
        near = share or any(not reached.isdisjoint(slots[other]) for other in unit)
        if near and not selected[reach] and remaining - count >= MOST_WAYS * share:
            selected[[*unit]] = True
            remaining -= count
            reached.update(*(slots[other] for other in unit))
    return selected


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
