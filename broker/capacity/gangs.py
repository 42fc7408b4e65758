"""Which gangs launch, by an integer program: all of a gang or none of it, a yes or no each.

Invariant: of the gangs that bind, those chosen fit together, and with them the objective is the best that any
choice reaches, level by level: most claims in reservations by priority, most claims launched, least on-demand
cost, smallest instances, soonest ends, gangs that come first. Only the gangs are decided here; who of the
others gets which slot follows from them (see `network`), and for any choice of gangs the rest is a network,
so yes and no are the only variables that have to be whole numbers.

The solver is SCIP, as OR-tools brings it. Each level is solved with the levels before it held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver import pywraplp

from broker.capacity.network import SolverFailed
from broker.capacity.problem import Problem

MOST_ARCS: Final = 200_000  # more than SCIP is of use for
_DOLLAR: Final = 10_000  # costs are counted in hundredths of a cent
_RADIX: Final = 1_000_000  # levels are solved as one while their product stays below this


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The gangs that launch; `proven` when no other choice is better."""

    gangs: frozenset[str]
    proven: bool


class _Terms(dict[int, float]):
    """A sum of variables (by index), each with its factor."""

    def plus(self, variable: Any, factor: float) -> None:
        self[variable.index()] = self.get(variable.index(), 0.0) + factor

    def into(self, expression: Any, variables: Sequence[Any]) -> None:
        """Makes it the solver's objective, or the left side of its constraint."""
        for index, factor in self.items():
            expression.SetCoefficient(variables[index], factor)


def rivals(problem: Problem, undecided: Iterable[str], *, present: Collection[str]) -> list[str]:
    """These gangs and those of the present that share a slot with them, however far around."""
    named, before = set(undecided), 0
    while len(named) != before:
        before = len(named)
        reached = _reached(problem, named)
        for gang in present:
            if any(reached[problem.bundles[place].reach] for place in problem.gangs[gang]):
                named.add(gang)
    return [gang for gang in problem.gangs if gang in named]


def choose(
    problem: Problem, gangs: Sequence[str], *, seconds: float, hint: frozenset[str] = frozenset()
) -> Choice | None:
    """The best choice among rivals; None when none was found in time."""
    reached = _reached(problem, gangs)
    named = set(gangs)
    bundles = [
        place
        for place, each in enumerate(problem.bundles)
        if (each.gang in named if each.gang else reached[each.reach])
    ]
    arcs = [int(arc) for arc in np.nonzero(reached[problem.arc_reach])[0]]
    if len(arcs) > MOST_ARCS:
        return None
    solver = pywraplp.Solver.CreateSolver("SCIP")
    if solver is None:
        raise SolverFailed("this OR-tools was built without SCIP")
    launches = {gang: solver.BoolVar(f"launches_{place}") for place, gang in enumerate(gangs)}
    served = _served(solver, problem, bundles, launches)
    flows = {arc: solver.NumVar(0, solver.infinity(), "") for arc in arcs}
    _balance(solver, problem, bundles, served, launches, flows)
    levels = _levels(problem, bundles, served, launches, flows)
    chosen: frozenset[str] | None = None
    solver.SetHint([*launches.values()], [float(gang in hint) for gang in gangs])
    parameters = pywraplp.MPSolverParameters()
    parameters.SetDoubleParam(parameters.RELATIVE_MIP_GAP, 0.0)
    variables = solver.variables()
    for terms in filter(None, levels):
        left = seconds - solver.wall_time() / 1000
        if left <= 0:
            return Choice(gangs=chosen, proven=False) if chosen is not None else None
        solver.SetTimeLimit(max(1, int(left * 1000)))
        objective = solver.Objective()
        objective.Clear()
        terms.into(objective, variables)
        objective.SetMaximization()
        status = solver.Solve(parameters)
        if status not in (solver.OPTIMAL, solver.FEASIBLE):
            return Choice(gangs=chosen, proven=False) if chosen is not None else None
        chosen = frozenset(gang for gang in gangs if launches[gang].solution_value() > 0.5)
        if status != solver.OPTIMAL:
            return Choice(gangs=chosen, proven=False)
        # Every factor is whole, and so is the optimum.
        terms.into(solver.Constraint(round(objective.Value()), solver.infinity()), variables)
    return Choice(gangs=chosen or frozenset(), proven=True)


def _reached(problem: Problem, gangs: Iterable[str]) -> NDArray[np.bool_]:
    """The reaches that share a slot with these gangs', however far around."""
    reached = np.zeros(problem.reaches, dtype=bool)
    for gang in gangs:
        reached[[problem.bundles[place].reach for place in problem.gangs[gang]]] = True
    while True:
        slots = np.zeros(len(problem.room), dtype=bool)
        slots[problem.arc_slot[reached[problem.arc_reach]]] = True
        more = reached.copy()
        more[problem.arc_reach[slots[problem.arc_slot]]] = True
        if (more == reached).all():
            return reached
        reached = more


def _served(
    solver: Any, problem: Problem, bundles: Iterable[int], launches: Mapping[str, Any]
) -> dict[int, Any]:
    """A variable for how many of each bundle have a slot, where that is not all or none of them."""
    served: dict[int, Any] = {}
    for place in bundles:
        bundle = problem.bundles[place]
        if bundle.must:
            continue
        served[place] = solver.NumVar(0, bundle.count, "")
        if bundle.gang:
            whole = solver.Constraint(-solver.infinity(), 0)
            whole.SetCoefficient(served[place], 1)
            whole.SetCoefficient(launches[bundle.gang], -bundle.count)
    return served


def _balance(
    solver: Any,
    problem: Problem,
    bundles: Iterable[int],
    served: Mapping[int, Any],
    launches: Mapping[str, Any],
    flows: Mapping[int, Any],
) -> None:
    """Who has a slot has it over an arc, and no slot class gives more than its room."""
    wanted: dict[int, _Terms] = {}
    for place in bundles:
        bundle = problem.bundles[place]
        terms = wanted.setdefault(bundle.reach, _Terms())
        terms.plus(*_taking(problem, place, served, launches))
    given: dict[int, _Terms] = {}
    for arc, flow in flows.items():
        wanted.setdefault(int(problem.arc_reach[arc]), _Terms()).plus(flow, -1)
        given.setdefault(int(problem.arc_slot[arc]), _Terms()).plus(flow, 1)
    variables = solver.variables()
    for terms in wanted.values():
        terms.into(solver.Constraint(0, 0), variables)
    for slot, terms in given.items():
        terms.into(solver.Constraint(-solver.infinity(), int(problem.room[slot])), variables)


def _taking(
    problem: Problem, place: int, served: Mapping[int, Any], launches: Mapping[str, Any]
) -> tuple[Any, float]:
    """How many of a bundle have a slot: a variable and its factor."""
    bundle = problem.bundles[place]
    return (launches[bundle.gang], bundle.count) if bundle.must else (served[place], 1)


def _levels(
    problem: Problem,
    bundles: Sequence[int],
    served: Mapping[int, Any],
    launches: Mapping[str, Any],
    flows: Mapping[int, Any],
) -> Iterator[_Terms]:
    """What is to be made large, the most important first."""
    yield from _by_priority(problem, bundles, served, launches)
    launched, saved = _Terms(), _Terms()
    for place in bundles:
        bundle = problem.bundles[place]
        if bundle.gang:
            launched.plus(launches[bundle.gang], bundle.count)
        elif not bundle.rank.falls_back:
            launched.plus(served[place], 1)
        cost = round(-bundle.rank.cost * _DOLLAR)
        if bundle.rank.falls_back and cost:
            saved.plus(served[place], cost)
            if bundle.gang:
                saved.plus(launches[bundle.gang], -cost * bundle.count)
    yield launched
    yield saved
    for ranks in (problem.sizes, problem.ends):
        used = _Terms()
        for arc, flow in flows.items():
            used.plus(flow, -int(ranks[problem.arc_slot[arc]]))
        yield used
    first = _Terms()
    for place, variable in enumerate(launches.values()):
        first.plus(variable, len(launches) - place)
    yield first


def _by_priority(
    problem: Problem, bundles: Sequence[int], served: Mapping[int, Any], launches: Mapping[str, Any]
) -> Iterator[_Terms]:
    """How many of each priority have a slot, several priorities in one sum while its factors stay small."""
    found: dict[int, list[int]] = {}
    for place in bundles:
        found.setdefault(problem.bundles[place].rank.priority, []).append(place)
    held: list[list[int]] = []
    radix: list[int] = []
    for _, places in sorted(found.items()):
        most = 1 + sum(problem.bundles[place].count for place in places)
        if held and int(np.prod(radix)) * most > _RADIX:
            yield _mixed(problem, held, radix, served, launches)
            held, radix = [], []
        held.append(places)
        radix.append(most)
    if held:
        yield _mixed(problem, held, radix, served, launches)


def _mixed(
    problem: Problem,
    held: Sequence[Sequence[int]],
    radix: Sequence[int],
    served: Mapping[int, Any],
    launches: Mapping[str, Any],
) -> _Terms:
    terms, weight = _Terms(), 1
    for places, most in zip(reversed(held), reversed(radix), strict=True):
        for place in places:
            variable, factor = _taking(problem, place, served, launches)
            terms.plus(variable, factor * weight)
        weight *= most
    return terms
