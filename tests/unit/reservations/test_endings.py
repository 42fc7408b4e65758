"""When nodes drain before their reservation ends, and when users are notified of an end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from broker.reservations.endings import drains, next_moment, notice
from providers.model import Odcr
from tests.unit.capacity.builders import NOW, minutes, odcr


def block(left: float, **more: Any) -> Odcr:
    return odcr("cr-block", reservation_type="capacity-block", end=NOW + minutes(left), **more)


def plain(left: float, **more: Any) -> Odcr:
    return odcr("cr-plain", end=NOW + minutes(left), **more)


@pytest.mark.covers("KRP-29")
@pytest.mark.parametrize(
    ("reservation", "expected"),
    [
        (block(40.1), False),
        (block(40), True),
        (block(5), True),
        (block(-5, state="expired"), True),
        (block(70.1, ultraserver=True), False),
        (block(70, ultraserver=True), True),
        (odcr("cr-1", reservation_type="capacity-block"), False),
        (plain(1), False),
        (plain(-1), False),
    ],
)
def test_blocks_drain_before_ec2_takes_their_instances(reservation: Odcr, expected: bool) -> None:
    assert drains(reservation, NOW) is expected


@pytest.mark.covers("KRP-29")
@pytest.mark.parametrize(
    ("reservation", "expected"),
    [
        (plain(60.1), None),
        (plain(60), minutes(60)),
        (plain(10.1), minutes(60)),
        (plain(10), minutes(10)),
        (plain(0), None),
        (plain(-1), None),
        (plain(30, state="cancelled"), None),
        (plain(30, state="expired"), None),
        (plain(30, interruptible=True), minutes(60)),
        (block(30), None),
        (odcr("cr-1"), None),
    ],
)
def test_notices(reservation: Odcr, expected: timedelta | None) -> None:
    assert notice(reservation, NOW) == expected


@pytest.mark.parametrize(
    ("reservations", "expected"),
    [
        ([], None),
        ([odcr("cr-1")], None),
        ([plain(90)], 30),
        ([plain(60)], 50),
        ([plain(5)], None),
        ([plain(90, state="cancelled")], None),
        ([block(90)], 50),
        ([block(40)], None),
        ([block(90, ultraserver=True)], 20),
        ([plain(90), block(90, ultraserver=True)], 20),
    ],
)
def test_the_next_time_of_interest(reservations: list[Odcr], expected: float | None) -> None:
    assert next_moment(reservations, NOW) == (None if expected is None else NOW + minutes(expected))
