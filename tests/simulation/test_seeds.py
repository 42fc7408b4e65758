"""A few seeds of the simulation.

New seeds are run by `make simulate`, as many as wanted by `make soak`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.run import run
from tests.simulation.schedule import parse, schedule, shown
from tests.simulation.world import Lab

SEEDS = (1, 6, 8)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


@pytest.mark.parametrize("seed", SEEDS)
def test_every_invariant_holds(lab: Lab, seed: int) -> None:
    report = run(lab, seed)
    assert not report.violation, f"{report.violation}\n{shown(report.operations)}"


def test_a_printed_schedule_is_the_same_schedule() -> None:
    assert parse(shown(schedule(7))) == schedule(7)
