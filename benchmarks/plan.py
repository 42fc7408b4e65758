"""10,000 claims over 1,000 reservations and 400 instance types, planned at once.

The bound is a linear program's of the same needs, over single reservations and with fractions of claims
allowed, solved by another solver (GLOP). Its levels: most claims in reservations at each priority, fewest
waiting claims, least on-demand cost. The baseline is Karpenter's rule. It takes one claim after another as
they came, each into the reservation with most room, else into the cheapest on-demand pool. CPU seconds,
since a machine may be shared: planning is one thread.
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
from broker.memory import collect_seldom

SECONDS = 1.0
ABOVE_BOUND = 0.1  # per cent
RUNS = 5
PLAN_SECONDS = 5.0  # the limit of a plan
RULE = "Karpenter's rule"
_Need = tuple[CandidateOptions, int]  # and the priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of the claims; dollars an hour."""

    cost: float
    idle: int
    waiting: int
    first: int  # claims of the highest priority in reservations


def measure(*, small: bool) -> Sequence[Figure]:
    """Plans at full size: time, cost against the bound and against Karpenter's rule, growth."""
    collect_seldom()
    scale = 100 if small else 1
    sized = partial(world, odcrs=1000 // scale, types=400 // min(scale, 4))
    claims, shapes = 10_000 // scale, max(8, 200 // scale)
    this = sized(claims, shapes=shapes)
    seconds, plan = _timed(this)
    broker, rule, bound = _broker_outcome(this, plan), _rule_outcome(this), _bound(this)
    few, _ = _timed(sized(claims // 10, shapes=shapes))
    many, _ = _timed(sized(claims * 10, shapes=shapes))
    gangs, in_gangs = _timed(sized(claims, shapes=shapes, gangs=100 // scale))
    distinct, apart = _timed(sized(claims, shapes=claims), runs=1, seconds=60.0)
    alike = sized(claims, shapes=shapes, equal=True)
    _, alike_plan = _timed(alike, runs=1)
    return [
        Figure(
            name=f"plan {claims:,} claims in {shapes} shapes", measured=seconds, unit="s CPU", most=SECONDS
        ),
        Figure(name="of that, solving", measured=plan.solution.seconds, unit="s"),
        Figure(name="proven optimal", measured=plan.solution.optimal, least=1, most=1),
        *_compared("", broker, rule, bound),
        *_compared(", all equal", _broker_outcome(alike, alike_plan), _rule_outcome(alike), _bound(alike)),
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


def _in_parts(world: World) -> list[Figure]:
    """A plan of too many unlike claims, which leaves some for the next plan."""
    seconds, plan = _timed(world, runs=1)
    name = f"first plan of {len(world.claims):,} claims, no two alike"
    return [
        Figure(name=name, measured=seconds, unit="s CPU", most=PLAN_SECONDS),
        Figure(name="claims of it that are planned later", measured=len(plan.later)),
    ]


def _compared(suffix: str, broker: Outcome, rule: Outcome, bound: float) -> list[Figure]:
    """Claims that wait cost nothing an hour, so costs compare only if as many wait."""
    return [
        Figure(
            name=f"claims at first priority in reservations{suffix}",
            measured=broker.first,
            baseline=rule.first,
            of=RULE,
            least=rule.first,
        ),
        Figure(
            name=f"idle reserved slots{suffix}",
            measured=broker.idle,
            baseline=rule.idle,
            of=RULE,
            most=rule.idle,
        ),
        Figure(name=f"claims that wait{suffix}", measured=broker.waiting, baseline=rule.waiting, of=RULE),
        Figure(
            name=f"on-demand cost an hour{suffix}",
            measured=round(broker.cost, 2),
            unit="$",
            baseline=round(rule.cost, 2),
            of=RULE,
        ),
        Figure(
            name=f"cost above the bound{suffix}",
            measured=round(_percent(broker.cost, bound), 6) + 0.0,
            unit="%",
            most=ABOVE_BOUND,
            baseline=round(_percent(rule.cost, bound), 2),
            of=RULE,
        ),
    ]


def _timed(world: World, *, runs: int = RUNS, seconds: float = PLAN_SECONDS) -> tuple[float, Plan]:
    taken = []
    for _ in range(runs):
        began = time.process_time()
        plan = world.planned(seconds=seconds)
        taken.append(time.process_time() - began)
    return median(taken), plan


def _broker_outcome(world: World, plan: Plan) -> Outcome:
    highest = _highest(world)
    reserved = [
        assignment for assignment in plan.assignments if assignment.option.pool.capacity_type == "reserved"
    ]
    unreserved = [
        assignment.option.price or 0.0
        for assignment in plan.assignments
        if assignment.option.pool.capacity_type != "reserved"
    ]
    return Outcome(
        cost=sum(unreserved),
        idle=_slots(world) - len(reserved),
        waiting=len(plan.unplaced),
        first=sum(assignment.claim.priority == highest for assignment in reserved),
    )


def _rule_outcome(world: World) -> Outcome:
    catalog = OptionCatalog(world.supply)
    room = {odcr_id: world.inventory.free(odcr_id) for odcr_id in world.inventory.odcrs}
    highest = _highest(world)
    cost, waiting, first = 0.0, 0, 0
    for claim in sorted(world.claims, key=lambda claim: (claim.created or NOW, claim.name)):
        candidates = catalog.candidates(claim)
        most = max(candidates.slots, key=lambda odcr_id: (room[odcr_id], odcr_id), default="")
        if most and room[most]:
            room[most] -= 1
            first += claim.priority == highest
        elif candidates.unreserved:
            cost += candidates.unreserved.price or 0.0
        else:
            waiting += 1
    return Outcome(cost=cost, idle=sum(room.values()), waiting=waiting, first=first)


def _bound(world: World) -> float:
    """The least that any assignment as good in the levels before costs on demand, fractions allowed."""
    catalog = OptionCatalog(world.supply)
    counts = Counter((catalog.candidates(claim), claim.priority) for claim in world.claims)
    kinds = dict.fromkeys(candidates for candidates, _ in counts)
    solver = pywraplp.Solver.CreateSolver("GLOP")
    if solver is None:
        raise RuntimeError("this OR-tools was built without GLOP")
    served = {key: solver.NumVar(0, count, "") for key, count in counts.items()}
    demands = {candidates: solver.Constraint(0, 0) for candidates in kinds}
    rooms = {
        odcr_id: solver.Constraint(0, world.inventory.free(odcr_id)) for odcr_id in world.inventory.odcrs
    }
    for (kind, _), variable in served.items():
        demands[kind].SetCoefficient(variable, 1)
    for candidates in kinds:
        for odcr_id in candidates.slots:
            flow = solver.NumVar(0, solver.infinity(), "")
            demands[candidates].SetCoefficient(flow, -1)
            rooms[odcr_id].SetCoefficient(flow, 1)
    price = {
        candidates: candidates.unreserved.price or 0.0 if candidates.unreserved else None
        for candidates in kinds
    }
    levels: list[dict[_Need, float]] = [
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
    level: Mapping[_Need, float],
    served: Mapping[_Need, pywraplp.Variable],
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


def _slots(world: World) -> int:
    return sum(world.inventory.free(odcr_id) for odcr_id in world.inventory.odcrs)


def _highest(world: World) -> int:
    return max(claim.priority for claim in world.claims)


def _percent(cost: float, bound: float) -> float:
    return 100 * (cost / bound - 1) if bound else 0.0


if __name__ == "__main__":
    run(measure)
