"""10,000 claims over 1,000 reservations and 400 instance types, planned at once.

The bound is a linear program's of the same needs, over single reservations and with fractions of claims
allowed, solved by another solver (GLOP): as many claims in reservations at each priority, as few that wait,
and then the least on-demand cost. The baseline is Karpenter's rule: one claim after another as they came,
each into the reservation with most room, else on demand where it is cheapest. CPU seconds, since a machine
may be shared: planning is one thread.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from ortools.linear_solver import pywraplp

from benchmarks.figures import Figure, run
from benchmarks.plan_world import NOW, World, world
from broker.capacity.model import Plan
from broker.capacity.option_catalog import CandidateOptions, OptionCatalog
from broker.capacity.shortages import Shortages
from broker.oncall.metrics import tune_collector

SECONDS = 1.0
ABOVE_BOUND = 0.1  # per cent
RUNS = 5
PLAN_SECONDS = 5.0  # the limit of a plan
RULE = "Karpenter's rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of the claims; dollars an hour."""

    cost: float
    idle: int
    waiting: int
    first: int  # claims of the highest priority in reservations


def measure(*, small: bool) -> Sequence[Figure]:
    """Plans at full size: time, cost against the bound and against Karpenter's rule, growth."""
    tune_collector()
    scale = 100 if small else 1
    sized = partial(world, odcrs=1000 // scale, types=400 // min(scale, 4))
    claims, shapes = 10_000 // scale, max(8, 200 // scale)
    this = sized(claims, shapes=shapes)
    seconds, made = _timed(this)
    ours, rule, bound = _ours(this, made), _rule(this), _bound(this)
    few, _ = _timed(sized(claims // 10, shapes=shapes))
    many, _ = _timed(sized(claims * 10, shapes=shapes))
    gangs, in_gangs = _timed(sized(claims, shapes=shapes, gangs=100 // scale))
    distinct, apart = _timed(sized(claims, shapes=claims), runs=1, seconds=60.0)
    alike = sized(claims, shapes=shapes, equal=True)
    _, planned = _timed(alike, runs=1)
    return [
        Figure(
            name=f"plan {claims:,} claims in {shapes} shapes", measured=seconds, unit="s CPU", most=SECONDS
        ),
        Figure(name="of that, solving", measured=made.solution.seconds, unit="s"),
        Figure(name="proven optimal", measured=made.solution.optimal, least=1, most=1),
        *_compared("", ours, rule, bound),
        *_compared(", all equal", _ours(alike, planned), _rule(alike), _bound(alike)),
        Figure(name=f"plan {claims // 10:,} claims", measured=few, unit="s CPU"),
        Figure(
            name=f"plan {claims * 10:,} claims",
            measured=many,
            unit="s CPU",
            most=round(100 * few, 3),
            baseline=100 * few,
            of="linear",
        ),
        Figure(name=f"with {100 // scale} gangs of 8 that bind", measured=gangs, unit="s CPU"),
        Figure(name="proven optimal with gangs", measured=in_gangs.solution.optimal, least=1, most=1),
        Figure(name=f"plan {claims:,} claims, no two alike", measured=distinct, unit="s CPU"),
        Figure(name="proven optimal, no two alike", measured=apart.solution.optimal, least=1, most=1),
        *_in_parts(sized(claims * 10, shapes=claims * 10)),
    ]


def _in_parts(of: World) -> list[Figure]:
    """A plan of too many unlike claims, which leaves some for the next plan."""
    seconds, made = _timed(of, runs=1)
    name = f"first plan of {len(of.claims):,} claims, no two alike"
    return [
        Figure(name=name, measured=seconds, unit="s CPU", most=PLAN_SECONDS),
        Figure(name="claims of it that are planned later", measured=len(made.later)),
    ]


def _compared(where: str, ours: Outcome, rule: Outcome, bound: float) -> list[Figure]:
    """Claims that wait cost nothing an hour, so costs compare only where as many wait."""
    return [
        Figure(
            name=f"claims at first priority in reservations{where}",
            measured=ours.first,
            baseline=rule.first,
            of=RULE,
            least=rule.first,
        ),
        Figure(
            name=f"idle reserved slots{where}",
            measured=ours.idle,
            baseline=rule.idle,
            of=RULE,
            most=rule.idle,
        ),
        Figure(name=f"claims that wait{where}", measured=ours.waiting, baseline=rule.waiting, of=RULE),
        Figure(
            name=f"on-demand cost an hour{where}",
            measured=round(ours.cost, 2),
            unit="$",
            baseline=round(rule.cost, 2),
            of=RULE,
        ),
        Figure(
            name=f"cost above the bound{where}",
            measured=round(_percent(ours.cost, bound), 6) + 0.0,
            unit="%",
            most=ABOVE_BOUND,
            baseline=round(_percent(rule.cost, bound), 2),
            of=RULE,
        ),
    ]


def _timed(of: World, *, runs: int = RUNS, seconds: float = PLAN_SECONDS) -> tuple[float, Plan]:
    taken = []
    for _ in range(runs):
        began = time.process_time()
        made = of.planned(seconds=seconds)
        taken.append(time.process_time() - began)
    return median(taken), made


def _ours(of: World, made: Plan) -> Outcome:
    highest = _highest(of)
    reserved = [each for each in made.assignments if each.option.pool.capacity_type == "reserved"]
    unreserved = [
        each.option.price or 0.0 for each in made.assignments if each.option.pool.capacity_type != "reserved"
    ]
    return Outcome(
        cost=sum(unreserved),
        idle=_slots(of) - len(reserved),
        waiting=len(made.unplaced),
        first=sum(each.claim.priority == highest for each in reserved),
    )


def _rule(of: World) -> Outcome:
    catalog = _catalog(of)
    room = {odcr_id: of.inventory.free(odcr_id) for odcr_id in of.inventory.odcrs}
    highest = _highest(of)
    cost, waiting, first = 0.0, 0, 0
    for claim in sorted(of.claims, key=lambda each: (each.created or NOW, each.name)):
        candidates = catalog.candidates(claim)
        most = max(candidates.slots, key=lambda each: (room[each], each), default="")
        if most and room[most]:
            room[most] -= 1
            first += claim.priority == highest
        elif candidates.unreserved:
            cost += candidates.unreserved.price or 0.0
        else:
            waiting += 1
    return Outcome(cost=cost, idle=sum(room.values()), waiting=waiting, first=first)


def _bound(of: World) -> float:
    """The least that any assignment as good in the levels before costs on demand, fractions allowed."""
    catalog = _catalog(of)
    candidates_by_claim: dict[int, CandidateOptions] = {}
    counts: Counter[tuple[int, int]] = Counter()
    for claim in of.claims:
        candidates = catalog.candidates(claim)
        candidates_by_claim[id(candidates)] = candidates
        counts[id(candidates), claim.priority] += 1
    solver = pywraplp.Solver.CreateSolver("GLOP")
    if solver is None:
        raise RuntimeError("this OR-tools was built without GLOP")
    served = {key: solver.NumVar(0, count, "") for key, count in counts.items()}
    wanted = {key: solver.Constraint(0, 0) for key in candidates_by_claim}
    rooms = {odcr_id: solver.Constraint(0, of.inventory.free(odcr_id)) for odcr_id in of.inventory.odcrs}
    for (kind, _), variable in served.items():
        wanted[kind].SetCoefficient(variable, 1)
    for kind, candidates in candidates_by_claim.items():
        for odcr_id in candidates.slots:
            flow = solver.NumVar(0, solver.infinity(), "")
            wanted[kind].SetCoefficient(flow, -1)
            rooms[odcr_id].SetCoefficient(flow, 1)
    price = {
        kind: each.unreserved.price or 0.0 if each.unreserved else None
        for kind, each in candidates_by_claim.items()
    }
    levels: list[dict[tuple[int, int], float]] = [
        {key: 1.0 for key in served if key[1] == priority}
        for priority in sorted({priority for _, priority in served}, reverse=True)
    ]
    levels.append({key: 1.0 for key in served if price[key[0]] is None})
    levels.append({key: cost for key in served if (cost := price[key[0]])})
    saved = 0.0
    for level in levels:
        saved = _most(solver, level, served)
    return sum(count * (price[kind] or 0.0) for (kind, _), count in counts.items()) - saved


def _most(
    solver: pywraplp.Solver,
    level: Mapping[tuple[int, int], float],
    served: Mapping[tuple[int, int], pywraplp.Variable],
) -> float:
    """The most that a level reaches, which is held from then on."""
    objective = solver.Objective()
    objective.Clear()
    for key, factor in level.items():
        objective.SetCoefficient(served[key], factor)
    objective.SetMaximization()
    if solver.Solve() != solver.OPTIMAL:
        raise RuntimeError("the linear program has no optimum")
    reached = float(objective.Value())
    held = solver.Constraint(reached - 1e-6, solver.infinity())
    for key, factor in level.items():
        held.SetCoefficient(served[key], factor)
    return reached


def _catalog(of: World) -> OptionCatalog:
    return OptionCatalog(of.classes, of.types, of.inventory, Shortages(), NOW)


def _slots(of: World) -> int:
    return sum(of.inventory.free(odcr_id) for odcr_id in of.inventory.odcrs)


def _highest(of: World) -> int:
    return max(each.priority for each in of.claims)


def _percent(cost: float, bound: float) -> float:
    return 100 * (cost / bound - 1) if bound else 0.0


if __name__ == "__main__":
    run(measure)
