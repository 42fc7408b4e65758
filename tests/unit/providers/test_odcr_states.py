"""The table of states: each state that EC2 has is in exactly one phase."""

from __future__ import annotations

from typing import get_args

import pytest

from providers.model import Odcr
from providers.odcr_states import STATES, OdcrState, Phase, facts_of

PHASES: dict[Phase, set[str]] = {
    "active": {"active"},
    "begins": {"pending", "scheduled", "assessing", "delayed", "payment-pending"},
    "unavailable": {"unavailable"},
    "ending": {"cancelling"},
    "ended": {"cancelled", "expired"},
    "failed": {"failed", "payment-failed", "unsupported"},
    "unknown": set(),
}


def test_each_state_has_one_row() -> None:
    assert STATES.keys() == {*get_args(OdcrState)}
    assert {phase: {s for s, facts in STATES.items() if facts.phase == phase} for phase in PHASES} == PHASES


@pytest.mark.parametrize("state", get_args(OdcrState))
def test_launches_use_a_reservation_or_wait_for_it_or_have_a_reason(state: OdcrState) -> None:
    odcr = Odcr(id="cr-1", instance_type="m5.large", zone="us-east-1a", total=1, available=1, state=state)
    assert (odcr.active or odcr.begins) == (odcr.state_misfit == "")
    assert odcr.idle == odcr.active
    assert not odcr.released or odcr.over


def test_a_state_that_is_newer_than_the_table_is_not_used() -> None:
    facts = facts_of("something-new")
    assert (facts.phase, facts.misfit) == ("unknown", "ReservationNotActive")
