"""A few seeds of the simulation.

New seeds are run by `make simulate`, as many as wanted by `make soak`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext

import pytest

from tests.docs.commands import commands
from tests.docs.owners import SEED_TEST, owner, plain
from tests.simulation.__main__ import main
from tests.simulation.run import run
from tests.simulation.schedule import (
    FULL_WEIGHTS,
    POOL_WEIGHTS,
    about_full,
    about_pools,
    parse,
    schedule,
    shown,
)
from tests.simulation.world import Lab

# The last four: a wait that ended by a rounding too early, a record that only a restart deleted, a wait that
# grew by the time that a clock was behind, and listings without a pause after a clock was set back.
SEEDS = (1, 6, 8, 500063, 520279, 94028960, 157038906)
# Pods and NodePools: limits, budgets, a deleted pool and class, watch gaps.
POOL_SEEDS = (20071, 20079, 20090)
# Full reservations: rollouts, reboots, absorption, loans.
FULL_SEEDS = (3, 11)
REPLAYED = 6  # a gang, a kill, a roll-out and finalizers that were removed by hand


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as lab_:
        yield lab_


@pytest.mark.parametrize("seed", SEEDS)
def test_every_invariant_holds(lab: Lab, seed: int) -> None:
    report = run(lab, seed)
    assert not report.violation, f"{report.violation}\n{shown(report.operations)}"


@pytest.mark.covers("FLT-71")
@pytest.mark.parametrize("seed", POOL_SEEDS)
def test_every_invariant_of_pods_holds(lab: Lab, seed: int) -> None:
    assert about_pools(seed)
    report = run(lab, seed)
    assert not report.violation, f"{report.violation}\n{shown(report.operations)}"


@pytest.mark.covers("FUL-03", "FUL-04", "FUL-10", "FUL-21")
@pytest.mark.parametrize("seed", FULL_SEEDS)
def test_every_invariant_of_full_reservations_holds(lab: Lab, seed: int) -> None:
    assert about_full(seed)
    report = run(lab, seed)
    assert not report.violation, f"{report.violation}\n{shown(report.operations)}"


@pytest.mark.covers("FLT-71")
@pytest.mark.parametrize(("about", "weights"), [(about_pools, POOL_WEIGHTS), (about_full, FULL_WEIGHTS)])
def test_schedules_have_each_operation_of_their_part(
    about: Callable[[int], bool], weights: Mapping[str, int]
) -> None:
    operations = {op.name for seed in filter(about, range(2000)) for op in schedule(seed)}
    assert operations >= weights.keys()


def test_seed_replays_exactly_in_another_process(lab: Lab) -> None:
    """Each call with its body, in order, though sets there are iterated in another order."""
    program = (
        "from tests.simulation.run import run; from tests.simulation.world import Lab\n"
        f"with Lab() as lab: print(run(lab, {REPLAYED}).digest)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    other_process = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    run(lab, REPLAYED + 1)  # nothing depends on the remains of another run
    assert run(lab, REPLAYED).digest == other_process.stdout.strip()


@pytest.mark.covers("USR-24")
def test_shown_seed_ends_without_a_violation(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.simulation.__main__.Lab", lambda: nullcontext(lab))
    (text,) = {plain(command) for command in commands() if (by := owner(command)) and by.file == SEED_TEST}
    program, *arguments = shlex.split(text.removeprefix("python -m "))
    assert (program, main(arguments)) == ("tests.simulation", 0)
    assert "1 seeds in" in capsys.readouterr().out


def test_a_printed_schedule_is_the_same_schedule() -> None:
    assert parse(shown(schedule(7))) == schedule(7)
