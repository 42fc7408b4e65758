"""The deliberate faults of the simulation apply to the code: one that does not is never looked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.simulation.mutant import Mutant
from tests.simulation.mutants import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_deliberate_fault_applies(mutant: Mutant) -> None:
    spec = importlib.util.find_spec(mutant.module)
    assert spec is not None and spec.origin is not None
    assert Path(spec.origin).read_text(encoding="utf-8").count(mutant.old) == mutant.times
