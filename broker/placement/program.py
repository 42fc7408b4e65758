"""States the pattern program for shapes and machine options, and opens the machines that it chooses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from broker.placement.machines import Ints, MachineTable, undominated
from broker.placement.packing_model import MachineOption, PendingPod
from broker.placement.packing_state import PackingState
from broker.placement.patterns import PatternProblem, PatternSolution, PatternsUnsolved, solve
from broker.placement.shapes import PodShape

# A pod without a machine costs more than any machine, and each priority more than the one below it.
MISSING = 10.0
BY_PRIORITY = 4.0
LEVELS = 6


def packed_together(
    shapes: Sequence[PodShape],
    table: MachineTable,
    state: PackingState,
    *,
    seconds: float,
    timer: Callable[[], float],
) -> float:
    """Opens machines for the shapes, and puts their pods on them; pods that get none are left out.

    Returns the bound of the program. If the solver has no answer, no machine is opened: the pods are placed
    one after another instead, and `unsolved` of the state has the reason.
    """
    if not shapes or not table.options:
        return 0.0
    fits = np.array([table.fits(shape) for shape in shapes], dtype=bool)
    usable = fits.any(axis=0) & np.array([state.supply.has(option) for option in table.options], dtype=bool)
    places = np.flatnonzero(undominated(table, usable, state.supply.limits))
    if not len(places):
        return 0.0
    problem, classes = problem_of(shapes, table, state, places, fits)
    try:
        solution = solve(problem, seconds=seconds, timer=timer)
    except PatternsUnsolved as error:
        state.unsolved = str(error)
        return 0.0
    _open(shapes, table, state, places, classes, solution)
    return solution.bound


def problem_of(
    shapes: Sequence[PodShape], table: MachineTable, state: PackingState, places: Ints, fits: np.ndarray
) -> tuple[PatternProblem, Ints]:
    """The problem, and the machine class of each option: the same room, for the same shapes."""
    options = [table.options[place] for place in places]
    known: dict[bytes, int] = {}
    rooms: list[Ints] = []
    fitting: list[np.ndarray] = []
    classes = np.zeros(len(places), dtype=np.int64)
    for number, place in enumerate(places):
        key = table.room[place].tobytes() + fits[:, place].tobytes() + table.options[place].pool.encode()
        if key not in known:
            known[key] = len(known)
            rooms.append(table.room[place])
            fitting.append(fits[:, place])
        classes[number] = known[key]
    sources = sorted({option.source for option in options if option.source})
    # Another pool may be over its limits by now: its row, without a machine, could never hold.
    pools = sorted({option.pool for option in options} & state.supply.limits.keys())
    limited = [(pool, name) for pool in pools for name in sorted(state.supply.limits[pool])]
    groups = {group: number for number, group in enumerate(dict.fromkeys(shape.group for shape in shapes))}
    dear = MISSING * max(1e-3, max(option.cost for option in options))
    levels = sorted({shape.pods[0].priority for shape in shapes})
    problem = PatternProblem(
        demand=np.array([len(shape.pods) for shape in shapes], dtype=np.int64),
        requests=np.array([table.requests(shape.example) for shape in shapes], dtype=np.int64),
        per_bin=np.array([shape.per_bin for shape in shapes], dtype=np.int64),
        penalty=np.array(
            [dear * BY_PRIORITY ** min(LEVELS, levels.index(shape.pods[0].priority)) for shape in shapes]
        ),
        group=np.array([groups[shape.group] for shape in shapes], dtype=np.int64),
        room=np.array(rooms, dtype=np.int64),
        fits=np.array(fitting, dtype=bool),
        unit_class=classes,
        unit_cost=np.array([option.cost for option in options]),
        unit_source=np.array(
            [sources.index(option.source) if option.source else -1 for option in options], dtype=np.int64
        ),
        sources=np.array([state.supply.room.get(name, 0) for name in sources], dtype=np.int64),
        limit_use=np.array(
            [
                [option.capacity.get(name, 0) if option.pool == pool else 0 for pool, name in limited]
                for option in options
            ],
            dtype=float,
        ).reshape(len(options), len(limited)),
        limits=np.array([state.supply.limits[pool][name] for pool, name in limited], dtype=float),
    )
    return problem, classes


def _open(
    shapes: Sequence[PodShape],
    table: MachineTable,
    state: PackingState,
    places: Ints,
    classes: Ints,
    solution: PatternSolution,
) -> None:
    """Opens the units and fills them pattern by pattern, the reserved units first."""
    supply: dict[int, deque[MachineOption]] = {}
    for place, machine, count in zip(places, classes, solution.units, strict=False):
        supply.setdefault(int(machine), deque()).extend([table.options[place]] * count)
    waiting = [deque(shape.pods) for shape in shapes]
    coupled = {shape: shapes[shape].coupled for shape in range(len(shapes))}
    # Patterns with the most pods first, so that a unit is not opened for pods that are placed already.
    for pattern, count in sorted(solution.chosen, key=lambda chosen: -sum(n for _, n in chosen[0].content)):
        units = supply.get(pattern.machine, deque())
        for _ in range(count):
            taken: list[tuple[int, PendingPod]] = []
            for shape, most in pattern.content:
                taken += [(shape, waiting[shape].popleft()) for _ in range(min(most, len(waiting[shape])))]
            if not taken:
                break
            # The solver's numbers are exact only within its tolerance.
            if not units or not state.supply.has(units[0]):
                for shape, pod in taken:
                    waiting[shape].append(pod)
                break
            opened = state.open(units.popleft())
            opened.coupled = any(coupled[shape] for shape, _ in taken)
            for _, pod in taken:
                state.put(pod, opened)
