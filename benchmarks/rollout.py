"""A rollout over full reservations: all nodes drift at once, each with a pod, and no slot is free.

First in simulated time, by the broker: 3 nodes in one reservation, 30 in three, 300 in ten. Its baseline for
3 and 30 is `capacity-broker.io/replace: launch-first`, as a broker that buys beside the slots would do it.
Then 3 nodes where EC2 counts no running instance in a freed slot: the last one is launched once more, into
it. Then on a real clock, 3 nodes by the broker and by Karpenter as released, one after the other on one API
server and one account, in four cases: a pool with reserved capacity only; the same beside a pod more than
slots; a pool with on-demand, too; a static pool. Karpenter has its alpha gates for replacement in full
reservations (`make peers` builds it). `NODES` sets the number of nodes of the last part.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.figures import Figure, run
from benchmarks.rollout_world import SimulatedRollout, simulated
from local.demo.rollout import RolloutResult
from local.demo.slot_timeline import SlotFigures
from tests.peers.rollouts import FALLBACK, Rollout, RolloutCase
from tests.peers.stage import ALPHA, BROKER, KARPENTER, Stage, missing

SIZES = ((1, 3), (3, 10), (10, 30))  # reservations, and slots of each
AT_ONCE = 1  # nodes of a reservation: the default of capacity-broker.io/replace-at-once
COMPARED = 30  # nodes: larger ones are not played with the baseline
NODES = int(os.environ.get("NODES", "3"))
CASES = (
    RolloutCase(name="reserved", nodes=NODES),
    RolloutCase(name="rival", nodes=NODES, rival=True),
    RolloutCase(name="on-demand", nodes=NODES, capacity=FALLBACK),
    RolloutCase(name="static", nodes=NODES, static=True),
)

FAILED = "claims that ended without an instance"
READINGS: Sequence[tuple[str, str, Callable[[SlotFigures], float]]] = (
    ("launches", "", lambda of: of.launches),
    ("empty slots", "slot-s", lambda of: of.idle),
    ("slots empty at its end", "", lambda of: of.idle_at_end),
    ("instances outside", "h", lambda of: of.outside / 3600),
    ("instances outside at its end", "", lambda of: of.outside_at_end),
    ("most pods away at once", "", lambda of: of.most_missing),
    ("missing pods", "pod-s", lambda of: of.missing),
    ("in all", "s", lambda of: of.seconds),
)


def readings(result: RolloutResult) -> Mapping[str, tuple[float, str]]:
    """Each figure of a rollout by its name, with its unit."""
    of = result.timeline.figures()
    return {FAILED: (result.failed, ""), **{name: (read(of), unit) for name, unit, read in READINGS}}


def played_readings(played: SimulatedRollout) -> Mapping[str, tuple[float, str]]:
    """The same, with the time until all nodes were new."""
    return {**readings(played.result), "in all": (played.seconds, "s")}


def measure(*, small: bool) -> Sequence[Figure]:
    """Rollouts of 3, 30 and 300 nodes over full reservations; 3 beside Karpenter."""
    figures = [figure for size in (SIZES[:1] if small else SIZES) for figure in _simulated(*size)]
    return figures if small else [*figures, *_not_absorbed(*SIZES[0]), *_beside_karpenter()]


def _simulated(reservations: int, slots: int) -> Iterator[Figure]:
    nodes = reservations * slots
    played = simulated(reservations, slots)
    plain = simulated(reservations, slots, way="launch-first") if nodes <= COMPARED else None
    least = {"launches": nodes}
    most = {
        **least,
        **dict.fromkeys((FAILED, "slots empty at its end", "instances outside at its end"), 0),
        "most pods away at once": reservations * AT_ONCE,
    }
    before = {} if plain is None else played_readings(plain)
    yield Figure(
        name=f"{nodes} nodes: launches that EC2 refused",
        measured=played.refused,
        most=0,
        baseline=None if plain is None else plain.refused,
        of="launch-first" if plain is not None else "",
    )
    for name, (value, unit) in played_readings(played).items():
        yield Figure(
            name=f"{nodes} nodes: {name}",
            measured=value,
            unit=unit,
            least=least.get(name),
            most=most.get(name),
            baseline=before[name][0] if before else None,
            of="launch-first" if before else "",
        )


def _not_absorbed(reservations: int, slots: int) -> Iterator[Figure]:
    nodes = reservations * slots
    most = {"launches": nodes + reservations, "slots empty at its end": 0, "instances outside at its end": 0}
    for name, (value, unit) in played_readings(simulated(reservations, slots, absorbs=False)).items():
        yield Figure(
            name=f"{nodes} nodes, not absorbed: {name}", measured=value, unit=unit, most=most.get(name)
        )


def _beside_karpenter() -> Iterator[Figure]:
    if reason := missing():
        yield Figure(name=f"{NODES} nodes, real clock", measured=0, of=f"Karpenter: not built ({reason})")
        return
    with Stage(poll_seconds=30.0, gates=ALPHA) as stage:
        for case in CASES:
            karpenter, broker = (readings(Rollout(stage, by, case).play()) for by in (KARPENTER, BROKER))
            for name, (value, unit) in broker.items():
                yield Figure(
                    name=f"{case.nodes} nodes, real clock, {case.name}: {name}",
                    measured=value,
                    unit=unit,
                    baseline=karpenter[name][0],
                    of="Karpenter 1.15",
                )


if __name__ == "__main__":
    run(measure)
