"""One run: a schedule is carried out, then faults stop, and the invariants are checked."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.controllers.provisioning.published import REPORTS
from broker.reservations.moves import MOVE_SPAN
from tests.simulation import full, pools, setting
from tests.simulation.chance import reseed
from tests.simulation.cluster_parts import run_cluster
from tests.simulation.faults import attempt
from tests.simulation.invariants import Watch
from tests.simulation.process import NEVER, Process, Step
from tests.simulation.rooms import kubelets
from tests.simulation.schedule import (
    ACTS,
    LIVE,
    PAUSE,
    RUN,
    Op,
    about_full,
    about_pools,
    about_rooms,
    schedule,
)
from tests.simulation.violation import Violation
from tests.simulation.world import Lab, World

MACHINES = 10.0  # seconds between two looks of the machines
STEPS = 4000  # of one stretch of time: more is no rest
# Longer than the hour for which a purchase may be unclear.
SETTLE, REST, ROUND = 4200.0, 100.0, 25.0
# Longer than the settings' longest wait for a state to last, and than a loss may be a move.
QUIET = MOVE_SPAN.total_seconds() + 20.0
# In a world with pods: longer than an empty node waits for them, and than a back-off of minutes.
PODS_QUIET, PODS_SETTLE = 350.0, 1500.0
TRIAL = ("LaunchTemplate",)  # each class's launch is tried once an hour, and anew after a restart
EMPTY = 75.0  # longer than it takes to describe EC2 anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How a run went; `violation` is empty where everything held."""

    seed: int
    operations: tuple[Op, ...]
    violation: str
    invariant: str
    digest: str
    faults: Mapping[str, int]  # injected, by kind
    calls: int
    seconds: float  # of the world's time
    lines: tuple[str, ...]


def run(lab: Lab, seed: int, operations: Sequence[Op] | None = None) -> Report:
    """Carries out the seed's schedule, or these operations of it."""
    chosen = schedule(seed) if operations is None else tuple(operations)
    world = World(lab, f"world {seed}")
    violation = invariant = ""
    try:
        _Run(world, seed).whole(chosen)
    except Violation as violated:
        violation, invariant = str(violated), violated.invariant
        world.gate.trace(f"violated: {violated}")
    finally:
        world.close()
    return Report(
        seed=seed,
        operations=chosen,
        violation=violation,
        invariant=invariant,
        digest=world.gate.digest,
        faults=world.gate.faults,
        calls=world.gate.calls,
        seconds=world.time.seconds,
        lines=tuple(world.gate.lines),
    )


class _Run:
    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._seed = seed
        self._watch = Watch(world)
        self._machines_at = 0.0

    def whole(self, operations: Sequence[Op]) -> None:
        world = self._world
        rng = random.Random(f"setting {self._seed}")
        full_ = about_full(self._seed)
        setting.begin(world, rng, rooms=about_rooms(self._seed), full=full_)
        if full_ or about_pools(self._seed):
            world.with_pools, world.pool_facts = True, pools.PoolFacts()
            (full if full_ else pools).begin(world, rng)
        self._watch.begin()
        for op in operations:
            self._do(op)
        reseed(f"end {self._seed}")
        world.random = random.Random(f"end {self._seed}")
        self._heal()
        quiet = PODS_QUIET if world.with_pools else QUIET
        at_rest = self._until_quiet("faults stopped", quiet + world.facts.ahead)
        self._watch.check_at_rest()
        if not at_rest:
            self._rest("at rest", but=TRIAL)
        self._restart()
        # Events are not remembered; and as they do, reports change when a shortage ends.
        self._rest("after a restart", but=("/events", REPORTS, *TRIAL))
        self._watch.remove_everything()
        self._until_quiet("everything was deleted", EMPTY)
        self._watch.empty()

    # ---- operations

    def _do(self, op: Op) -> None:
        world = self._world
        world.gate.trace(f"== {op}")
        reseed(op.seed)
        rng = world.random = random.Random(op.seed)
        if op.name == RUN:
            self._some_steps(rng, rng.choice((3, 10, 30)))
        elif op.name == LIVE:
            self._live(rng.choice((1.0, 20.0, 100.0, 300.0)))
        elif op.name == PAUSE:
            world.time.advance(rng.choice((1.0, 30.0, 130.0)))
        else:
            attempt(ACTS[op.name], world, rng)
        self._check()

    def _check(self) -> None:
        self._watch.check()

    def _some_steps(self, rng: random.Random, count: int) -> None:
        """Steps of any process in any order; where there is none, time passes."""
        for _ in range(count):
            self._housekeeping()
            steps = self._steps()
            if not steps or rng.random() < 0.05:
                self._pass(rng.choice((0.1, 1.0, 10.0)) if steps else 30.0)
                continue
            process, step = rng.choice(steps)
            self._take(process, step)

    def _steps(self) -> list[tuple[Process, Step]]:
        return [(process, step) for process in self._world.running for step in process.steps()]

    def _take(self, process: Process, step: Step) -> None:
        process.take(step)
        self._check()

    # ---- time

    def _housekeeping(self) -> None:
        """Background progress: machines, EC2's own clock, and a killed process that is started again."""
        world = self._world
        if len(world.running) < len(world.roles) and world.time.seconds >= world.restart_at:
            world.start()
        if world.time.seconds >= self._machines_at:
            self._machines_at = world.time.seconds + MACHINES
            world.catch_up_ec2()
            world.machines()
            kubelets(world)
            run_cluster(world)

    def _pass(self, most: float) -> None:
        """Time goes on to when something is due, by no more than `most`."""
        world = self._world
        now = world.time.seconds
        due = [p.due() - p.clock.monotonic() for p in world.running]
        due.append(self._machines_at - now)
        if world.restart_at > now:
            due.append(world.restart_at - now)
        due += map(world.gate.late_by, world.gate.late)
        soonest = min((d for d in due if d > 0), default=NEVER)
        world.time.advance(min(most, soonest))

    def _live(self, seconds: float) -> None:
        """Everything that is due is done, in turn, for so much time."""
        end = self._world.time.seconds + seconds
        while self._world.time.seconds < end:
            self._turn()
            self._pass(end - self._world.time.seconds)

    def _turn(self) -> None:
        """Everything that is due now, until nothing is."""
        for _ in range(STEPS):
            self._housekeeping()
            steps = self._steps()
            if not steps:
                return
            for process, step in steps:
                if process.alive:
                    self._take(process, step)
        raise Violation("rest", f"the broker never comes to rest: {[s.name for _, s in self._steps()]}")

    # ---- the end

    def _heal(self) -> None:
        world = self._world
        world.gate.armed.clear()
        world.gate.api_faults.clear()
        world.gate.watch_faults.clear()
        world.gate.late.clear()
        world.gate.api_gone_until = world.gate.api_slow_until = 0.0
        world.control.clear_faults()
        world.control.clear_pools()
        world.control.lag(0)
        world.control.slot_release(0)
        world.stubborn.clear()
        pools.heal(world)
        if world.kubelets is not None:
            world.kubelets.heal()
        world.restart_at = 0.0
        for process in world.running:
            process.clock.skew = 0.0
            process.frozen_until = 0.0

    def _until_quiet(self, why: str, seconds: float) -> bool:
        """Until nothing was changed for so long; returns whether that was within the time for it."""
        world = self._world
        world.gate.trace(f"== {why}")
        end = world.time.seconds + (PODS_SETTLE if world.with_pools else SETTLE)
        quiet, before = 0.0, self._changes()
        while quiet < seconds:
            if world.time.seconds >= end:
                self._watch.stuck(why)
                return False
            self._live(ROUND)
            now = self._changes()
            quiet = quiet + ROUND if now == before and self._watch.quiet() else 0.0
            before = now
        return True

    def _changes(self) -> tuple[int, int]:
        return len(self._world.gate.api_writes), len(self._world.gate.aws_writes)

    def _rest(self, why: str, *, but: Sequence[str] = ()) -> None:
        """Waits until nothing is written for a while, `but` for calls with one of these in name or path."""
        gate = self._world.gate
        gate.trace(f"== {why}")
        api, aws = self._changes()
        but = (*but, *self._watch.rooms.ending(REST))
        self._live(REST)
        changed = [*gate.api_writes[api:], *gate.aws_writes[aws:]]
        if changed := [write for write in changed if not any(part in write for part in but)]:
            raise Violation("rest", f"{why}, {len(changed)} writes: {'; '.join(changed[:4])}")

    def _restart(self) -> None:
        world = self._world
        for process in world.running:
            process.release()
            process.die()
