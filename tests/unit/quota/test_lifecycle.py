"""The life of a reservation: each step as a table, and every path that steps can make."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quota.lifecycle import Limits, Obstacle, ObstacleKind, State, advance, ready

LIMITS = Limits(creating=100, updating=1000)
STATES: tuple[State, ...] = get_args(State)


def because(kind: ObstacleKind | None) -> Obstacle | None:
    return None if kind is None else Obstacle(kind=kind, reason=kind.name, message="why")


@pytest.mark.covers("OME-018", "OME-019", "OME-020", "OME-023", "OME-083")
@pytest.mark.parametrize(
    ("before", "kind", "lasted", "changed", "after"),
    [
        (None, None, 0, False, "Creating"),
        (None, ObstacleKind.SPEC, 0, False, "Creating"),
        ("Creating", None, 0, False, "Active"),
        ("Creating", ObstacleKind.SUPPLY, 99, False, "Creating"),
        ("Creating", ObstacleKind.SUPPLY, 100, False, "Failed"),
        ("Creating", ObstacleKind.QUEUE, 100, False, "Failed"),
        # A purchase is waited for, however long EC2 has no capacity.
        ("Creating", ObstacleKind.BUYING, 1e9, False, "Creating"),
        ("Creating", ObstacleKind.SPEC, 0, False, "Failed"),
        ("Creating", ObstacleKind.USE, 0, False, "Active"),
        ("Active", None, 0, False, "Active"),
        ("Active", None, 0, True, "Updating"),
        ("Active", ObstacleKind.SUPPLY, 0, True, "Updating"),
        ("Active", ObstacleKind.SUPPLY, 99, False, "Active"),
        ("Active", ObstacleKind.SUPPLY, 100, False, "Failed"),
        ("Active", ObstacleKind.BUYING, 99, False, "Active"),
        ("Active", ObstacleKind.BUYING, 100, False, "Failed"),
        ("Active", ObstacleKind.QUEUE, 0, False, "Failed"),
        ("Active", ObstacleKind.USE, 1e9, False, "Active"),
        ("Updating", None, 0, False, "Active"),
        ("Updating", None, 0, True, "Active"),
        ("Updating", ObstacleKind.SUPPLY, 999, False, "Updating"),
        ("Updating", ObstacleKind.SUPPLY, 1000, False, "Failed"),
        ("Updating", ObstacleKind.BUYING, 1000, False, "Failed"),
        ("Updating", ObstacleKind.USE, 999, False, "Updating"),
        ("Updating", ObstacleKind.USE, 1000, False, "Active"),
        ("Updating", ObstacleKind.SPEC, 0, False, "Failed"),
        ("Failed", None, 0, False, "Active"),
        ("Failed", ObstacleKind.SUPPLY, 1e9, False, "Failed"),
        ("Failed", ObstacleKind.SUPPLY, 1e9, True, "Updating"),
        ("Failed", ObstacleKind.SPEC, 0, True, "Failed"),
        # As it was restored from a backup.
        ("Deleting", None, 0, False, "Creating"),
    ],
)
def test_next_state_by_state_and_obstacle(
    before: State | None, kind: ObstacleKind | None, lasted: float, changed: bool, after: State
) -> None:
    obstacle = because(kind)
    state = advance(before, obstacle, deleting=False, changed=changed, lasted=lasted, limits=LIMITS)
    assert state == after


ALLOWED = {
    None: {"Creating"},
    "Creating": {"Creating", "Active", "Failed", "Deleting"},
    "Active": {"Active", "Updating", "Failed", "Deleting"},
    "Updating": {"Updating", "Active", "Failed", "Deleting"},
    "Failed": {"Failed", "Active", "Updating", "Deleting"},
    "Deleting": {"Deleting"},
}


@pytest.mark.covers("OME-023")
@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, *ObstacleKind]), st.booleans(), st.sampled_from([0.0, 50.0, 100.0, 1000.0])
        ),
        max_size=12,
    ),
    st.integers(0, 14),
)
def test_only_allowed_transitions_occur(
    steps: list[tuple[ObstacleKind | None, bool, float]], deleted: int
) -> None:
    state: State | None = None
    for number, (kind, changed, lasted) in enumerate(steps):
        deleting = number >= deleted and state is not None
        after = advance(
            state, because(kind), deleting=deleting, changed=changed, lasted=lasted, limits=LIMITS
        )
        assert after in ALLOWED[state]
        state = after


@pytest.mark.covers("OME-017", "OME-019")
@pytest.mark.parametrize("state", [state for state in STATES if state != "Deleting"])
def test_reservation_without_obstacle_is_active_and_a_deleted_one_deleting(state: State) -> None:
    seen: State = state
    for _ in range(2):
        seen = advance(seen, None, deleting=False, changed=False, lasted=1e9, limits=LIMITS)
    assert seen == "Active"
    for kind in (None, *ObstacleKind):
        gone = advance(state, because(kind), deleting=True, changed=True, lasted=0, limits=LIMITS)
        assert gone == "Deleting"


@pytest.mark.covers("OME-070")
@pytest.mark.parametrize(
    ("state", "kind", "was", "serves"),
    [
        ("Active", None, False, True),
        ("Active", ObstacleKind.USE, True, True),
        ("Creating", ObstacleKind.SUPPLY, False, False),
        ("Failed", ObstacleKind.QUEUE, True, False),
        ("Deleting", None, True, False),
        ("Updating", None, True, True),
        ("Updating", ObstacleKind.SUPPLY, True, True),
        ("Updating", ObstacleKind.QUEUE, True, False),
        ("Updating", None, False, False),
    ],
)
def test_readiness_by_state_and_obstacle(
    state: State, kind: ObstacleKind | None, was: bool, serves: bool
) -> None:
    assert ready(state, because(kind), was_ready=was) is serves
