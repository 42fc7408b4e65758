"""Assigns slots by constraint programming, if gangs, quota or lending bind: the objective level by level.

Invariant: a gang is whole or absent, no limit is exceeded, and each claim that keeps a slot has one. The
levels are maximized one after another, and each is held from then on. A result that is proven is the best in
the order of `levels.levels`, then of age, then of who has lent slots.

A variable counts the claims of a kind (equal but for their age) or the claims of a reach in a slot class; the
first claims of a kind are the oldest. The solver is OR-tools' CP-SAT with one worker and a fixed seed, so
equal problems have equal results unless the time is over. It begins with a valid assignment and never returns
a worse one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from broker.capacity.levels import Level, levels
from broker.capacity.problem import Bundle, SlotChoice, SlotFlow, SlotProblem
from broker.capacity.time_budget import TimeBudget
from broker.quota.model import summed

_MOST_WEIGHT: Final = 2**40  # levels are maximized together while the product of their ranges is less
_WORK_A_SECOND: Final = 0.25  # the solver's own measure of time, which does not depend on the machine's load


def solve(problem: SlotProblem, start: SlotChoice, budget: TimeBudget) -> SlotChoice:
    """The best assignment that is found from `start` on in the time that is left."""
    model = _SlotModel(problem, start, budget)
    proven = model.maximize_levels() and model.prefer_older() and model.lend_to_weaker()
    return SlotChoice(taken=model.taken(), launched=model.launched(), proven=proven)


Factors = Mapping[int, int]  # a sum over variables, by their number


class _Term(NamedTuple):
    """A sum to be maximized, and an upper bound of its range."""

    factors: Factors
    range: int


class _SlotModel:
    def __init__(self, problem: SlotProblem, start: SlotChoice, budget: TimeBudget) -> None:
        self._problem, self._budget = problem, budget
        self._seconds, self._spent = budget.seconds_left(), 0.0  # the solver measures its time itself
        self._model = cp_model.CpModel()
        self._variables: list[Any] = []
        self._most: list[int] = []
        self._values: list[int] = []  # of the best assignment so far
        self._flow = [
            self._variable(int(problem.room[slot]), int(count))
            for slot, count in zip(problem.arc_slot, start.taken.flow, strict=True)
        ]
        self._gangs = {gang: self._variable(1, int(gang in start.launched)) for gang in problem.gangs}
        self._kinds = _kinds(problem.bundles)  # the bundles of each kind, the oldest first
        self._kind = {place: places for places in self._kinds for place in places}
        self._served = [self._served_of(places, start.taken) for places in self._kinds]
        self._in_network()
        self._in_limits()

    def _served_of(self, places: Sequence[int], start: SlotFlow) -> Factors:
        """The claims of a kind that have a slot: a variable, or all of a gang that launches."""
        bundle, count = self._problem.bundles[places[0]], int(self._problem.counts[places].sum())
        if bundle.must:
            return {self._gangs[bundle.gang]: bundle.count}
        served = self._variable(count, int(start.served[places].sum()))
        if bundle.gang:
            self._model.add(self._sum({served: 1, self._gangs[bundle.gang]: -count}) <= 0)
        return {served: 1}

    def _variable(self, most: int, value: int) -> int:
        self._variables.append(self._model.new_int_var(0, most, ""))
        self._most.append(most)
        self._values.append(value)
        return len(self._variables) - 1

    def _sum(self, factors: Factors) -> Any:
        variables = [self._variables[number] for number in factors]
        return cp_model.LinearExpr.weighted_sum(variables, list(factors.values()))

    def _value(self, factors: Factors) -> int:
        return sum(factor * self._values[number] for number, factor in factors.items())

    def _in_network(self) -> None:
        """The claims of each reach are in its slot classes, and no slot class exceeds its room."""
        problem = self._problem
        reaches: list[dict[int, int]] = [defaultdict(int) for _ in range(problem.reaches)]
        slots: list[dict[int, int]] = [{} for _ in problem.room]
        for variable, reach, slot in zip(self._flow, problem.arc_reach, problem.arc_slot, strict=True):
            reaches[reach][variable] = slots[slot][variable] = 1
        for places, served in zip(self._kinds, self._served, strict=True):
            for variable, factor in served.items():
                reaches[problem.bundles[places[0]].reach][variable] -= factor
        for factors in reaches:
            self._model.add(self._sum(factors) == 0)
        for factors, room in zip(slots, problem.room.tolist(), strict=True):
            self._model.add(self._sum(factors) <= room)

    def _in_limits(self) -> None:
        """Quota, lending and borrowing limits; claims that keep a slot; of equal gangs the first launch."""
        problem = self._problem
        for limit in problem.limits:
            self._model.add(self._sum({self._flow[arc]: 1 for arc in limit.arcs}) <= limit.most)
        kept = problem.kept.served if problem.kept is not None else np.zeros_like(problem.counts)
        for places, served in zip(self._kinds, self._served, strict=True):
            if least := int(kept[places].sum()):
                self._model.add(self._sum(served) >= least)
        for gangs in problem.equal_gangs:
            for first, second in pairwise(gangs):
                if not kept[list(problem.gangs[second])].any():
                    self._model.add(self._sum({self._gangs[second]: 1, self._gangs[first]: -1}) <= 0)

    def maximize_levels(self) -> bool:
        """Reaches the most on each level, in order; whether that is proven."""
        terms = [self._term(level) for level in levels(self._problem)]
        proven = [self._maximize(block) for block in _blocks(terms)]  # also after one that is not
        return all(proven)

    def _term(self, level: Level) -> _Term:
        factors: dict[int, int] = defaultdict(int)
        for places, served in zip(self._kinds, self._served, strict=True):
            for variable, factor in served.items():
                factors[variable] += int(level.served[places[0]]) * factor
            if launched := int(level.launched[places[0]]):
                factors[self._gangs[self._problem.bundles[places[0]].gang]] += launched
        for arc in np.nonzero(level.used)[0]:
            factors[self._flow[arc]] += int(level.used[arc])
        factors = {variable: factor for variable, factor in factors.items() if factor}
        return _Term(factors, sum(abs(factor) * self._most[number] for number, factor in factors.items()))

    def _maximize(self, terms: Sequence[_Term]) -> bool:
        """Reaches the most of each term, the first in front, and holds it; whether that is proven."""
        objective: dict[int, int] = defaultdict(int)
        weight = 1
        for term in reversed(terms):
            for number, factor in term.factors.items():
                objective[number] += weight * factor
            weight *= term.range + 1
        proven = not objective or self._solved(objective)
        for term in terms:
            if term.factors:
                self._model.add(self._sum(term.factors) == self._value(term.factors))
        return proven

    def _solved(self, objective: Factors) -> bool:
        """Replaces the assignment by the best one for an objective; whether that is proven."""
        before = self._value(objective)
        if before == sum(max(0, factor) * self._most[number] for number, factor in objective.items()):
            return True
        left = min(self._seconds - self._spent, self._budget.seconds_left()) / 2  # the rest for later levels
        if left <= 0:
            return False
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.linearization_level = 2  # most constraints are those of a network
        solver.parameters.max_time_in_seconds = left
        solver.parameters.max_deterministic_time = left * _WORK_A_SECOND
        self._model.clear_hints()  # type: ignore[no-untyped-call]
        for variable, value in zip(self._variables, self._values, strict=True):
            self._model.add_hint(variable, value)
        self._model.maximize(self._sum(objective))
        status = solver.solve(self._model)
        self._spent += solver.wall_time
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) and solver.objective_value >= before:
            self._values = [solver.value(variable) for variable in self._variables]
        return bool(status == cp_model.OPTIMAL)

    def prefer_older(self) -> bool:
        """Serves the older claims of each priority, age by age; whether that is proven."""
        problem, served = self._problem, self.taken().served
        if (served == problem.counts).all():
            return True
        ages: dict[tuple[int, datetime], list[int]] = defaultdict(list)
        for place, bundle in enumerate(problem.bundles):
            ages[bundle.rank.priority, bundle.rank.created].append(place)
        older: dict[int, Factors] = {}  # the claims of each bundle that have a slot
        for places, count in zip(self._kinds, self._served, strict=True):
            if len(places) == 1:
                older[places[0]] = count
                continue
            variables = [self._variable(problem.bundles[place].count, int(served[place])) for place in places]
            self._model.add(self._sum(dict.fromkeys(variables, 1)) == self._sum(count))
            older |= {place: {variable: 1} for place, variable in zip(places, variables, strict=True)}
        terms = {
            age: _Term(summed(older[place] for place in ages[age]), int(problem.counts[ages[age]].sum()))
            for age in sorted(ages)
        }
        begun = 0
        for block in _blocks([*terms.values()]):
            if not self._maximize(block):
                return False
            self._close([ages[age] for age in [*terms][begun : begun + len(block)]], older)
            begun += len(block)
        return True

    def lend_to_weaker(self) -> bool:
        """Has claims of lower priority in lent slots rather than others; whether that is proven."""
        exposed = self._problem.exposed
        factors = {self._flow[arc]: -int(exposed[arc]) for arc in np.nonzero(exposed)[0]}
        return self._maximize([_Term(factors, 0)])

    def _close(self, ages: Iterable[Sequence[int]], older: Mapping[int, Factors]) -> None:
        """Rules out younger claims of kinds of which an older claim cannot have a slot."""
        served = self.taken().served
        for places in ages:
            if len(places) > 1 and served[places].any():
                continue
            for place in places:
                if served[place] < self._problem.bundles[place].count:
                    kind = self._kind[place]
                    for younger in kind[kind.index(place) + 1 :]:
                        self._most[next(iter(older[younger]))] = 0

    def taken(self) -> SlotFlow:
        """The slots of the best assignment so far."""
        served = np.zeros_like(self._problem.counts)
        for places, factors in zip(self._kinds, self._served, strict=True):
            remaining = self._value(factors)
            for place in places:
                served[place] = min(remaining, self._problem.bundles[place].count)
                remaining -= int(served[place])
        flow = np.array([self._values[variable] for variable in self._flow], dtype=np.int64)
        return SlotFlow(served=served, flow=flow)

    def launched(self) -> frozenset[str]:
        """The gangs that launch in the best assignment so far."""
        return frozenset(gang for gang, variable in self._gangs.items() if self._values[variable])


def _kinds(bundles: Sequence[Bundle]) -> list[list[int]]:
    kinds: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, bundle in enumerate(bundles):
        rank = bundle.rank
        own = place if bundle.gang else -1
        kinds[bundle.reach, rank.priority, rank.unheld, rank.falls_back, rank.cost, own].append(place)
    return [*kinds.values()]


def _blocks(terms: Iterable[_Term]) -> Iterator[list[_Term]]:
    """Terms that are maximized together: the product of their ranges is not too large."""
    block: list[_Term] = []
    weight = 1
    for term in terms:
        if block and weight * (term.range + 1) > _MOST_WEIGHT:
            yield block
            block, weight = [], 1
        block.append(term)
        weight *= term.range + 1
    if block:
        yield block
