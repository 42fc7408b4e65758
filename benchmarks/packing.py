"""10,000 pods in 100 shapes packed over 1,000 reserved slots of 20 types, and on demand.

The bound is that of the linear program over all patterns, so that no packing costs less. The baseline is
Karpenter's rule: pods in order of their size, each on the first machine that some type can still be. At the
end each machine is of the cheapest type, free slots first. Dollars an hour count on-demand machines; a slot
is paid for already and counts a thousandth. CPU seconds, since a machine may be shared: packing is one
thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver import pywraplp

from benchmarks.figures import Figure, run
from broker.placement.machines import MachineTable
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.packing import pack
from broker.placement.packing_model import MachineOption, Packing, PendingPod
from broker.placement.packing_state import PackingState, Supply
from broker.placement.patterns import Pattern, PatternMaster, PatternProblem, solve
from broker.placement.program import problem_of
from broker.placement.shapes import shapes_of
from broker.placement.snapshot import PlacementSnapshot
from broker.placement.storage import Storage

SECONDS = 5.0
ABOVE_BOUND = 1.0  # per cent
RULE = "Karpenter's rule"
ZONE: Final = "us-east-1a"
RESOURCES: Final = ("cpu", "memory", "pods")
# GiB of memory for each core, and dollars an hour for each core.
FAMILIES: Final = {"c5": (2, 0.0425), "m5": (4, 0.048), "r5": (8, 0.063), "x1": (16, 0.0834)}
CORES: Final = (2, 4, 8, 16, 32)
GI: Final = 2**30
CLOSE: Final = 1e-6
Ints = NDArray[np.int64]


def measure(*, small: bool) -> Sequence[Figure]:
    """Packs at full size: cost against the bound and against Karpenter's rule, and time."""
    scale = 50 if small else 1
    pods, options, room = _world(10_000 // scale, max(5, 100 // scale), max(20, 1000 // scale))
    began = time.process_time()
    packing = pack(pods, options, room=room, seconds=SECONDS, timer=time.process_time)
    seconds = time.process_time() - began
    bound = _bound(pods, options, room)
    rule, of_rule = _rule(pods, options, dict(room))
    return [
        Figure(name=f"pack {len(pods):,} pods", measured=round(seconds, 2), unit="s CPU", most=SECONDS),
        Figure(name="pods without a machine", measured=len(packing.reasons), most=0),
        Figure(
            name="cost above the bound",
            measured=round(100 * (packing.cost / bound - 1), 3),
            unit="%",
            most=ABOVE_BOUND,
            baseline=round(100 * (rule / bound - 1), 1),
            of=RULE,
        ),
        Figure(
            name="cost an hour", measured=round(packing.cost, 2), unit="$", baseline=round(rule, 2), of=RULE
        ),
        Figure(name="machines", measured=len(packing.bins), baseline=of_rule, of=RULE),
        Figure(name="idle slots", measured=sum(room.values()) - _reserved(packing)),
    ]


def _reserved(packing: Packing) -> int:
    return sum(bool(item.option.source) for item in packing.bins)


def _world(
    count: int, shapes: int, slots: int
) -> tuple[list[PendingPod], list[MachineOption], dict[str, int]]:
    rng = Random(1)
    pods = []
    for shape in range(shapes):
        cores = rng.choice([250, 500, 1000, 2000, 3000, 4000, 6000, 7000, 12000])
        memory = cores * rng.choice([1, 2, 3, 4, 6, 8]) * GI // 1000
        requests = {"cpu": cores, "memory": memory}
        for number in range(count // shapes):
            info = PodInfo(namespace="default", name=f"s{shape}-{number}", requests=requests)
            pods.append(PendingPod(info=info))
    options, room = [], {}
    for family, (gib, dollars) in FAMILIES.items():
        for cores in CORES:
            name = f"{family}.{cores}"
            price = cores * dollars
            options.append(_option(name, cores, gib, price, ""))
            options.append(_option(name, cores, gib, price / 1000, f"cr-{name}"))
            room[f"cr-{name}"] = slots // (len(FAMILIES) * len(CORES))
    return pods, options, room


def _option(name: str, cores: int, gib: int, cost: float, source: str) -> MachineOption:
    allocatable = {
        "cpu": cores * 1000 - 80,
        "memory": int(cores * gib * 0.925 * GI) - GI // 2,
        "pods": min(110, 15 * cores),
    }
    node = NodeInfo(name=name, labels={"topology.kubernetes.io/zone": ZONE}, allocatable=allocatable)
    kind = "reserved" if source else "on-demand"
    return MachineOption(
        pool="default",
        node=node,
        instance_type=name,
        zone=ZONE,
        capacity_type=kind,
        cost=cost,
        source=source,
        capacity=allocatable,
    )


def _amounts(pod: PodInfo) -> list[int]:
    return [pod.requests["cpu"], pod.requests["memory"], 1]


def _bound(pods: Sequence[PendingPod], options: Sequence[MachineOption], room: dict[str, int]) -> float:
    """The least cost of the linear program over all patterns (Gilmore and Gomory), from below.

    Any prices of pods give a bound if no pattern is worth more than its machine. The program grows until this
    holds; the pattern worth most on each machine is found exactly, by an integer program.
    """
    shapes = shapes_of(pods, PlacementSnapshot())
    table = MachineTable(options, shapes, Storage())
    state = PackingState(snapshot=PlacementSnapshot(), supply=Supply(room=dict(room), limits={}))
    fits = np.array([table.fits(shape) for shape in shapes], dtype=bool)
    problem, classes = problem_of(shapes, table, state, np.arange(len(options)), fits)
    master = PatternMaster(problem)
    for pattern, _ in solve(problem, seconds=60, timer=time.process_time).chosen:
        master.add(pattern)
    while True:
        _, worth, prices = master.solve()
        knapsacks = [_knapsack(problem, machine, worth) for machine in range(len(problem.room))]
        better = [
            pattern
            for price, (most, pattern) in zip(prices, knapsacks, strict=True)
            if most > price * (1 + CLOSE)
        ]
        known = set(master.patterns)
        for pattern in better:
            master.add(pattern)
        if not {*better} - known:
            break
    best = [most for most, _ in knapsacks]
    bought = {int(classes[n]): o.cost for n, o in enumerate(options) if not o.source}
    scale = min([1.0, *(cost / best[machine] for machine, cost in bought.items() if best[machine])])
    saved = sum(
        room[option.source] * max(0.0, scale * best[classes[place]] - option.cost)
        for place, option in enumerate(options)
        if option.source
    )
    return float(scale * (worth * problem.demand).sum() - saved)


def _knapsack(problem: PatternProblem, machine: int, worth: NDArray[np.float64]) -> tuple[float, Pattern]:
    """The pattern worth most on a machine of the class, with an upper bound on the worth of any pattern."""
    solver: Any = pywraplp.Solver.CreateSolver("SCIP")
    objective = solver.Objective()
    rows = [solver.Constraint(-solver.infinity(), float(amount)) for amount in problem.room[machine]]
    counts: dict[int, Any] = {}
    for shape in np.flatnonzero(problem.fits[machine]).tolist():
        counts[shape] = solver.IntVar(0.0, float(problem.demand[shape]), "")
        objective.SetCoefficient(counts[shape], float(worth[shape]))
        for row, need in zip(rows, problem.requests[shape], strict=True):
            row.SetCoefficient(counts[shape], float(need))
    objective.SetMaximization()
    solver.SetTimeLimit(20_000)
    solver.Solve()
    filled = {shape: round(count.solution_value()) for shape, count in counts.items()}
    pattern = Pattern(machine=machine, content=tuple((s, n) for s, n in filled.items() if n))
    return float(max(objective.Value(), objective.BestBound())), pattern


def _rule(
    pods: Sequence[PendingPod], options: Sequence[MachineOption], room: dict[str, int]
) -> tuple[float, int]:
    """First fit decreasing: the cost, and the number of machines."""
    have = np.array([[o.node.allocatable[name] for name in RESOURCES] for o in options], dtype=np.int64)
    costs = np.array([o.cost for o in options])
    used = np.zeros((0, len(RESOURCES)), dtype=np.int64)
    for pod in sorted(pods, key=lambda pending: _amounts(pending.info)[:2], reverse=True):
        need = np.array(_amounts(pod.info), dtype=np.int64)
        fits = np.any(np.all((used + need)[:, None, :] <= have[None, :, :], axis=2), axis=1)
        place = int(fits.argmax()) if fits.any() else len(used)
        if place == len(used):
            used = np.vstack([used, np.zeros(len(RESOURCES), dtype=np.int64)])
        used[place] += need
    total = 0.0
    for load in used:
        places: list[int] = np.flatnonzero((load <= have).all(axis=1)).tolist()
        usable = [place for place in places if not options[place].source or room[options[place].source]]
        best = min(usable, key=lambda place: float(costs[place]))
        if options[best].source:
            room[options[best].source] -= 1
        total += float(costs[best])
    return total, len(used)


if __name__ == "__main__":
    run(measure)
