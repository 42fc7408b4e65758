"""An instance that EC2 refuses to terminate for days does not keep the others from being looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from broker.controllers.lifecycle.terminations import LONGEST_BACKOFF, Terminations
from providers.errors import ErrorClass, ProviderError
from providers.model import Instance
from tests.support.clock import FakeClock

PROTECTED = "i-protected"


class Ec2:
    """Terminates every instance but the protected one."""

    def __init__(self) -> None:
        self.states = {PROTECTED: "running", "i-other": "running"}
        self.requests = 0

    def instances(self, ids: Sequence[str]) -> list[Instance]:
        return [Instance(id=id_, instance_type="m5.large", zone="a", state=self.states[id_]) for id_ in ids]

    def terminate(self, ids: Sequence[str]) -> None:
        self.requests += 1
        if PROTECTED in ids:
            raise ProviderError("OperationNotPermitted", "protected", class_=ErrorClass.CONFIGURATION)
        self.states |= dict.fromkeys(ids, "terminated")


@pytest.mark.covers("SAF-05")
def test_instance_that_was_refused_for_a_day_keeps_no_other_alive() -> None:
    ec2, clock = Ec2(), FakeClock()
    terminations = Terminations(cast(Any, ec2), clock=clock, check=lambda: None, wake=lambda _: None)
    terminations.end(PROTECTED)
    for _ in range(1100):
        terminations.run(())
        clock.advance(LONGEST_BACKOFF)
    assert ec2.requests == 1100
    terminations.end("i-other")
    terminations.run(())
    terminations.run(())
    seen = terminations.watch("i-other")
    assert seen is not None and seen.gone
