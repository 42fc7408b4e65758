"""The operator's bounds on kept room: how long, and how much of a namespace's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from broker.apis.godel import LONGEST_TTL
from broker.placement.holds_bounds import NamespaceRoom, RoomBounds, within
from broker.placement.quantities import PODS

pytestmark = pytest.mark.covers("FLT-70")
NOW = datetime(2026, 11, 1, tzinfo=UTC)
HOUR = 3600


@pytest.mark.parametrize(
    ("requested", "longest", "expected"),
    [
        (HOUR, 2 * HOUR, HOUR),
        (3 * HOUR, 2 * HOUR, 2 * HOUR),
        (0, 2 * HOUR, 60),
        (-5, 2 * HOUR, 60),
        (0, 30, 30),
        (10**12, 0, LONGEST_TTL),  # without a bound, what a time of Kubernetes can hold
        (10**12, 10**11, LONGEST_TTL),
    ],
)
def test_room_is_kept_as_long_as_requested_within_the_bound(
    requested: int, longest: int, expected: int
) -> None:
    assert RoomBounds(longest=longest).seconds(requested) == expected


@pytest.mark.parametrize(
    ("created", "requested", "longest", "expected"),
    [
        (NOW, None, HOUR, timedelta(hours=1)),
        (NOW, timedelta(minutes=5), HOUR, timedelta(minutes=5)),
        (NOW, timedelta(hours=5), HOUR, timedelta(hours=1)),
        (NOW, timedelta(hours=5), 0, timedelta(hours=5)),
        (NOW, timedelta(hours=5), 10**15, timedelta(hours=5)),
        (NOW, None, 0, None),
        (None, timedelta(hours=5), HOUR, timedelta(hours=5)),
    ],
)
def test_end_of_a_reservation_is_bounded_from_its_creation(
    created: datetime | None, requested: timedelta | None, longest: int, expected: timedelta | None
) -> None:
    asked = None if requested is None else NOW + requested
    assert RoomBounds(longest=longest).end(created, asked) == (expected and NOW + expected)


@pytest.mark.parametrize(
    ("rooms", "limits", "refused"),
    [
        ([2000, 2000], {"cpu": 4000}, set()),
        ([2000, 2000, 1000], {"cpu": 4000}, {"2"}),
        ([5000, 3000], {"cpu": 4000}, {"0"}),  # a room that is refused takes nothing
        ([100, 100], {PODS: 1}, {"1"}),  # each room is of one pod
        ([9000], {"memory": 1}, set()),
        ([0], {"cpu": 0}, set()),
    ],
)
def test_rooms_of_a_namespace_stay_within_its_limits(
    rooms: Sequence[int], limits: Mapping[str, int], refused: set[str]
) -> None:
    kept = [NamespaceRoom(id=str(number), amount={"cpu": cpu}) for number, cpu in enumerate(rooms)]
    assert within(kept, limits).keys() == refused


def test_refused_room_names_what_is_kept_already() -> None:
    rooms = [NamespaceRoom(id=name, amount={"cpu": 3000}) for name in "ab"]
    assert within(rooms, {"cpu": 4000}) == {
        "b": "3 of cpu is requested, the namespace may keep 4 and keeps 3"
    }
