"""The cost of idle slots, and the start of their idle time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.reservations.idle import idle_cost, idle_since
from tests.unit.capacity.builders import NOW, TYPES, odcr

ACCOUNT = "111122223333"
EARLIER = NOW - timedelta(hours=3)

P5 = replace(TYPES["p5.48xlarge"], zones=frozenset({"us-east-1a"}))


@pytest.mark.parametrize(
    ("before", "since", "available", "expected"),
    [
        (0, None, 0, None),
        (0, None, 2, NOW),  # first seen idle
        (2, EARLIER, 2, EARLIER),
        (2, EARLIER, 1, EARLIER),  # one was taken: the other remains idle
        (2, EARLIER, 3, NOW),  # three idle only since now
        (2, EARLIER, 0, None),
        (2, None, 2, NOW),  # a record from before the time was kept
    ],
)
def test_since(before: int, since: datetime | None, available: int, expected: datetime | None) -> None:
    reservation = odcr("cr-1", total=4, free=available)
    assert idle_since(reservation, before=before, since=since, now=NOW) == expected


def test_an_inactive_reservation_has_no_idle_slots() -> None:
    reservation = replace(odcr("cr-1", total=4, free=4), state="pending")
    assert reservation.idle == 0
    assert idle_since(reservation, before=4, since=EARLIER, now=NOW) is None
    assert idle_cost(reservation, P5, account=ACCOUNT) == 0


def test_an_idle_slot_costs_its_types_price_or_is_unknown() -> None:
    reservation = odcr("cr-1", total=4, free=3)
    priced = replace(P5, on_demand_price=2.5)
    assert idle_cost(reservation, priced, account=ACCOUNT) == 7.5
    assert idle_cost(reservation, replace(priced, on_demand_price=None), account=ACCOUNT) is None
    assert idle_cost(reservation, None, account=ACCOUNT) is None


@pytest.mark.covers("SAF-11")
@pytest.mark.parametrize(
    ("more", "cost"),
    [
        ({}, 7.5),
        ({"reservation_type": "capacity-block"}, 0.0),
        ({"owner_id": ACCOUNT}, 7.5),
        ({"owner_id": "999988887777"}, 0.0),  # shared with this account: its owner pays
        ({"owner_id": ACCOUNT, "billing_owner_id": "999988887777"}, 0.0),
        ({"owner_id": "999988887777", "billing_owner_id": ACCOUNT}, 7.5),
    ],
)
def test_idle_cost_counts_only_what_this_account_pays(more: dict[str, Any], cost: float) -> None:
    reservation = odcr("cr-1", total=4, free=3, **more)
    priced = replace(P5, on_demand_price=2.5)
    assert idle_cost(reservation, priced, account=ACCOUNT) == cost


@pytest.mark.covers("SAF-08")
def test_idle_slot_costs_the_price_of_its_platform_and_tenancy() -> None:
    priced = replace(P5, on_demand_price=2.5, other_prices={"Windows": {"default": 9.0}})

    def cost(**more: str) -> float | None:
        return idle_cost(odcr("cr-1", total=4, free=3, **more), priced, account=ACCOUNT)

    assert cost(platform="Windows") == 27.0
    assert cost(platform="SUSE Linux") is None
    assert cost(tenancy="dedicated") is None


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_idle_since_holds_for_every_observation(observations: list[int]) -> None:
    before, since = 0, None
    for n, available in enumerate(observations):
        now = NOW + timedelta(minutes=n)
        reservation = odcr("cr-1", total=4, free=available)
        since, before = idle_since(reservation, before=before, since=since, now=now), available
        if since is not None:
            first = int((since - NOW).total_seconds()) // 60
            assert min(observations[first : n + 1]) >= available
        assert (since is None) == (available == 0)
