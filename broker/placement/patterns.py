"""The pattern program: which machines to open, and how many pods of each shape on each of them.

A pattern is a machine class with a number of pods of each shape that fit it together. The program chooses
patterns and the units that host them, at the least cost (Gilmore and Gomory, 1961). Patterns come by column
generation: a linear program prices shapes and machine classes, and patterns that these prices favour join.
Then whole numbers are chosen: most of the linear optimum is rounded down, and the rest is a small integer
program. Without time for the latter, a greedy rule decides.

Invariant: no pattern exceeds the room of its machine class, and no source or limit is exceeded.
The solvers are OR-tools' GLOP and SCIP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver import pywraplp

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROUNDS: Final = 40
CHEAPEST: Final = 8  # machine classes of a shape by itself
KEPT_PER_CLASS: Final = 3  # new patterns of a class in one round
TOLERANCE: Final = 1e-6
GAP: Final = 2e-3  # of the integer program


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PatternProblem:
    """Shapes, machine classes, and units: the supply of a machine class at one cost from one source."""

    demand: Ints  # pods of each shape
    requests: Ints  # of each shape, by resource
    per_bin: Ints  # the most pods of the shape on one machine
    penalty: Floats  # for each pod without a machine
    group: Ints  # shapes of different groups never share a machine
    room: Ints  # of each machine class, by resource
    fits: NDArray[np.bool_]  # machine class by shape
    unit_class: Ints
    unit_cost: Floats
    unit_source: Ints  # -1: without bound
    sources: Ints  # the most units of each source
    # The use of each limit by each unit, and the most of each limit.
    limit_use: Floats
    limits: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Pods of each shape, as (shape, count), on one machine of the class."""

    machine: int
    content: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternSolution:
    """How often each pattern is used, and how many of each unit are opened.

    `bound`: the value of the linear program over the patterns found.
    """

    chosen: tuple[tuple[Pattern, int], ...] = ()
    units: tuple[int, ...] = ()
    bound: float = 0.0


def solve(problem: PatternProblem, *, seconds: float, timer: Callable[[], float]) -> PatternSolution:
    """The least cost within about `seconds`, measured by `timer`."""
    if not len(problem.demand) or not len(problem.unit_class):
        return PatternSolution()
    end = timer() + seconds
    known: set[Pattern] = set()
    master = PatternMaster(problem)

    def added_to_master(pattern: Pattern) -> bool:
        if not pattern.content or pattern in known:
            return False
        known.add(pattern)
        master.add(pattern)
        return True

    for pattern in _single_shapes(problem):
        added_to_master(pattern)
    bound, added = 0.0, 0
    for _ in range(ROUNDS):
        bound, sigma, prices = master.solve()
        added = 0
        for weights in _weightings(problem):
            for pattern in _best(problem, sigma, prices=prices, weights=weights):
                added += added_to_master(pattern)
        if not added or timer() > end - seconds / 2:
            break
    if added:
        bound = master.solve()[0]
    return _whole(problem, master, bound, remaining=lambda: end - timer())


# ---- the linear program


class PatternMaster:
    """The linear program over the patterns found; `add` keeps its basis."""

    def __init__(self, problem: PatternProblem) -> None:
        self.problem = problem
        self.patterns: list[Pattern] = []
        self.solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self.x: list[Any] = []
        infinity = self.solver.infinity()
        self._demand = [self.solver.Constraint(float(n), infinity) for n in problem.demand]
        self._machines = [self.solver.Constraint(0.0, infinity) for _ in problem.room]
        objective = self.solver.Objective()
        objective.SetMinimization()
        for shape, penalty in enumerate(problem.penalty):
            missing = self.solver.NumVar(0.0, infinity, "")
            self._demand[shape].SetCoefficient(missing, 1.0)
            objective.SetCoefficient(missing, float(penalty))
        self.y = _units(self.solver, problem, self._machines, objective, whole=False)

    def add(self, pattern: Pattern) -> None:
        variable = self.solver.NumVar(0.0, self.solver.infinity(), "")
        self._machines[pattern.machine].SetCoefficient(variable, -1.0)
        for shape, count in pattern.content:
            self._demand[shape].SetCoefficient(variable, float(count))
        self.x.append(variable)
        self.patterns.append(pattern)

    def solve(self) -> tuple[float, Floats, Floats]:
        """The value, and the prices of a pod of each shape and of a machine of each class."""
        status = self.solver.Solve()
        if status != pywraplp.Solver.OPTIMAL:
            raise PatternsUnsolved(f"GLOP: status {status}")
        sigma = np.array([row.dual_value() for row in self._demand])
        prices = np.array([row.dual_value() for row in self._machines])
        return self.solver.Objective().Value(), np.maximum(sigma, 0.0), np.maximum(prices, 0.0)

    def values(self) -> Floats:
        return np.array([variable.solution_value() for variable in self.x])


class PatternsUnsolved(Exception):
    """The solver returned no result."""


def _units(
    solver: Any, problem: PatternProblem, machines: Sequence[Any], objective: Any, *, whole: bool
) -> list[Any]:
    """The variables of the units, with their costs, sources and limits."""
    infinity = solver.infinity()
    make = solver.IntVar if whole else solver.NumVar
    sources = [solver.Constraint(-infinity, float(most)) for most in problem.sources]
    limits = [solver.Constraint(-infinity, float(most)) for most in problem.limits]
    variables = []
    for unit, machine in enumerate(problem.unit_class):
        variable = make(0.0, infinity, "")
        machines[machine].SetCoefficient(variable, 1.0)
        objective.SetCoefficient(variable, float(problem.unit_cost[unit]))
        if problem.unit_source[unit] >= 0:
            sources[problem.unit_source[unit]].SetCoefficient(variable, 1.0)
        for limit, used in zip(limits, problem.limit_use[unit], strict=True):
            if used:
                limit.SetCoefficient(variable, float(used))
        variables.append(variable)
    return variables


# ---- pricing


def _weightings(problem: PatternProblem) -> list[Floats]:
    """Resource weights for the density of a shape: all together, and each scarce one by itself."""
    used = problem.requests.sum(axis=0) > 0
    even = used.astype(float)
    singles = [np.where(np.arange(len(used)) == place, 1.0, 0.05) * used for place in np.flatnonzero(used)]
    return [even, *singles[:3]]


def _single_shapes(problem: PatternProblem) -> Iterator[Pattern]:
    """Each shape by itself, as often as it fits, on the machine classes where a pod is cheapest."""
    cost = np.full(len(problem.room), np.inf)
    np.minimum.at(cost, problem.unit_class, problem.unit_cost)
    for shape, need in enumerate(problem.requests):
        positive = need > 0
        most = min(problem.per_bin[shape], problem.demand[shape])
        counts = np.minimum((problem.room[:, positive] // need[positive]).min(axis=1), most)
        counts = np.where(problem.fits[:, shape], counts, 0)
        usable = np.flatnonzero(counts > 0)
        for machine in usable[np.argsort(cost[usable] / counts[usable], kind="stable")][:CHEAPEST]:
            yield Pattern(machine=int(machine), content=((shape, int(counts[machine])),))


def _best(problem: PatternProblem, sigma: Floats, *, weights: Floats, prices: Floats) -> list[Pattern]:
    """Patterns of each machine class with pods that are worth more than the machine, the best first.

    For each machine class and each first shape, the shapes fill the machine in the order of their value for
    each part of the room. All machine classes and first shapes are filled at once.
    """
    patterns: list[Pattern] = []
    for group in np.unique(problem.group):
        shapes = np.flatnonzero((problem.group == group) & (sigma > TOLERANCE))
        machines = np.flatnonzero(problem.fits[:, shapes].any(axis=1)) if len(shapes) else shapes
        if len(machines):
            patterns += _of_group(problem, sigma, shapes, machines, weights, prices)
    return patterns


def _of_group(
    problem: PatternProblem,
    sigma: Floats,
    shapes: Ints,
    machines: Ints,
    weights: Floats,
    prices: Floats,
) -> list[Pattern]:
    requests, room = problem.requests[shapes], problem.room[machines]
    most = np.minimum(problem.per_bin[shapes], problem.demand[shapes])
    share = (requests / np.maximum(room.mean(axis=0), 1.0)) @ weights
    ranked = np.argsort(-sigma[shapes] / np.maximum(share, 1e-12), kind="stable")
    fits = problem.fits[np.ix_(machines, shapes)]
    counts = _filled(requests, most, room, fits, ranked)
    worth = counts @ sigma[shapes]
    patterns: list[Pattern] = []
    for place, machine in enumerate(machines):
        for row in _top(worth[place], prices[machine] * (1 + TOLERANCE) + TOLERANCE, counts[place]):
            filled = counts[place, row]
            content = tuple((int(shapes[s]), int(filled[s])) for s in np.flatnonzero(filled))
            patterns.append(Pattern(machine=int(machine), content=content))
    return patterns


def _top(worth: Floats, floor: float, counts: Ints) -> list[int]:
    """The rows worth most, without repeats."""
    rows: list[int] = []
    seen: set[bytes] = set()
    for row in np.argsort(-worth, kind="stable"):
        if worth[row] <= floor or len(rows) == KEPT_PER_CLASS:
            break
        if (key := counts[row].tobytes()) not in seen:
            seen.add(key)
            rows.append(int(row))
    return rows


def _filled(requests: Ints, most: Ints, room: Ints, fits: NDArray[np.bool_], ranked: Ints) -> Ints:
    """Counts by machine, by first shape, by shape. The last row of a machine has no first shape."""
    machines, shapes = len(room), len(requests)
    counts = np.zeros((machines, shapes + 1, shapes), dtype=np.int64)
    free = np.repeat(room[:, None, :], shapes + 1, axis=1)
    first = fits & (most > 0) & (requests[None, :, :] <= room[:, None, :]).all(axis=2)
    shape_range = np.arange(shapes)
    counts[:, shape_range, shape_range] = first
    free[:, :shapes] -= first[:, :, None] * requests[None, :, :]
    for shape in ranked:
        need = requests[shape]
        take = np.minimum.reduce([free[:, :, r] // need[r] for r in np.flatnonzero(need)])
        np.minimum(take, most[shape] - counts[:, :, shape], out=take)
        np.maximum(take, 0, out=take)
        take *= fits[:, shape, None]
        counts[:, :, shape] += take
        free -= take[:, :, None] * need
    return counts


# ---- whole numbers


def _whole(
    problem: PatternProblem, master: PatternMaster, bound: float, *, remaining: Callable[[], float]
) -> PatternSolution:
    """Rounds the linear optimum down, and decides the rest by an integer program over all patterns."""
    values = master.values()
    counts = np.floor(values + TOLERANCE).astype(np.int64)
    demand = problem.demand.copy()
    for pattern, count in zip(master.patterns, counts, strict=True):
        for shape, pods in pattern.content:
            demand[shape] -= pods * count
    demand = np.maximum(demand, 0)
    units = _opened(problem, master.patterns, counts)
    if demand.any():
        more = _rest(problem, master.patterns, demand, counts, units, seconds=max(0.2, remaining()))
        counts = counts + more
        units = _opened(problem, master.patterns, counts)
    chosen = tuple(
        (pattern, int(count)) for pattern, count in zip(master.patterns, counts, strict=True) if count
    )
    return PatternSolution(chosen=chosen, units=tuple(int(n) for n in units), bound=bound)


def _opened(problem: PatternProblem, patterns: Sequence[Pattern], counts: Ints) -> Ints:
    """The cheapest units for these patterns; patterns beyond them are taken off `counts`."""
    units, missing = _cheapest(problem, _machines(problem, patterns, counts))
    for place, pattern in enumerate(patterns):
        if (short := missing[pattern.machine]) and counts[place]:
            cut = min(short, counts[place])
            counts[place] -= cut
            missing[pattern.machine] -= cut
    return units


def _machines(problem: PatternProblem, patterns: Sequence[Pattern], counts: Ints) -> Ints:
    """The machines of each class in so many of these patterns."""
    needed = np.zeros(len(problem.room), dtype=np.int64)
    for pattern, count in zip(patterns, counts, strict=True):
        needed[pattern.machine] += count
    return needed


def _cheapest(problem: PatternProblem, needed: Ints) -> tuple[Ints, Ints]:
    """Units for so many machines of each class at the least cost, and the machines without a unit."""
    solver: Any = pywraplp.Solver.CreateSolver("SCIP")
    objective = solver.Objective()
    objective.SetMinimization()
    rows = [solver.Constraint(float(n), float(n)) for n in needed]
    dear = 1e3 * (1.0 + float(problem.unit_cost.max()))
    lacking = []
    for row in rows:
        variable = solver.NumVar(0.0, solver.infinity(), "")
        row.SetCoefficient(variable, 1.0)
        objective.SetCoefficient(variable, dear)
        lacking.append(variable)
    variables = _units(solver, problem, rows, objective, whole=True)
    solver.SetTimeLimit(2000)
    if solver.Solve() not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        return np.zeros(len(variables), dtype=np.int64), needed.copy()
    units = np.array([round(variable.solution_value()) for variable in variables], dtype=np.int64)
    return units, np.array([math.ceil(v.solution_value() - TOLERANCE) for v in lacking], dtype=np.int64)


def _rest(
    problem: PatternProblem,
    patterns: Sequence[Pattern],
    demand: Ints,
    counts: Ints,
    units: Ints,
    *,
    seconds: float,
) -> Ints:
    """How often each pattern is used more, so that the remaining pods have machines."""
    solver: Any = pywraplp.Solver.CreateSolver("SCIP")
    infinity = solver.infinity()
    objective = solver.Objective()
    objective.SetMinimization()
    rows = {int(s): solver.Constraint(float(demand[s]), infinity) for s in np.flatnonzero(demand)}
    for shape, row in rows.items():
        missing = solver.NumVar(0.0, infinity, "")
        row.SetCoefficient(missing, 1.0)
        objective.SetCoefficient(missing, float(problem.penalty[shape]))
    # The machines of the rounded part are paid for by the same units, so that sources stay within bounds.
    machines = [solver.Constraint(float(n), infinity) for n in _machines(problem, patterns, counts)]
    _units(solver, problem, machines, objective, whole=True)
    variables: list[Any] = []
    for pattern in patterns:
        covered = [(shape, min(count, int(demand[shape]))) for shape, count in pattern.content]
        covered = [(shape, count) for shape, count in covered if count]
        variable = solver.IntVar(0.0, infinity if covered else 0.0, "")
        machines[pattern.machine].SetCoefficient(variable, -1.0)
        for shape, count in covered:
            rows[shape].SetCoefficient(variable, float(count))
        variables.append(variable)
    solver.SetTimeLimit(int(1000 * seconds))
    parameters = pywraplp.MPSolverParameters()
    parameters.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, GAP)
    if solver.Solve(parameters) not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        return np.zeros(len(patterns), dtype=np.int64)
    return np.array([round(variable.solution_value()) for variable in variables], dtype=np.int64)
