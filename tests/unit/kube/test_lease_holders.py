"""A Lease is held as long as its record changes; the clocks of the two sides do not matter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.coordination import Lease, LeaseSpec
from broker.apis.meta import ObjectMeta
from broker.kube.lease_holders import LeaseHolders

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def lease(*, holder: str = "karpenter-0", renewed: float = 0.0, lasts: int = 15) -> Lease:
    """`renewed` is on the holder's own clock."""
    return Lease(
        metadata=ObjectMeta(name="karpenter-leader-election", namespace="kube-system"),
        spec=LeaseSpec(
            holder_identity=holder,
            lease_duration_seconds=lasts,
            renew_time=NOW + timedelta(seconds=renewed),
        ),
    )


@pytest.mark.covers("KRP-26")
@pytest.mark.parametrize("left", [[], [lease(holder="")]], ids=["not there", "given back"])
def test_a_lease_without_a_holder_counts_for_its_duration(left: list[Lease]) -> None:
    holders = LeaseHolders()
    assert holders.alive([lease()], now=0.0)
    assert [holders.alive(left, now=now) for now in (1.0, 15.9, 16.0)] == [True, True, False]
    assert holders.alive([lease(renewed=17.0)], now=17.0)
    assert holders.alive(left, now=18.0)


@pytest.mark.covers("KRP-26")
@given(renewed=st.floats(-1e8, 1e8))
def test_an_unchanged_lease_is_alive_for_its_duration_with_any_renew_time(renewed: float) -> None:
    holders = LeaseHolders()
    assert [holders.alive([lease(renewed=renewed)], now=now) for now in (0.0, 14.9, 15.0)] == [
        True,
        True,
        False,
    ]


@pytest.mark.covers("KRP-26")
def test_the_duration_is_that_of_the_lease() -> None:
    holders = LeaseHolders()
    assert [holders.alive([lease(lasts=60)], now=now) for now in (0.0, 59.0, 60.0)] == [True, True, False]
    holders = LeaseHolders()
    assert [holders.alive([lease(lasts=0)], now=now) for now in (0.0, 14.0, 15.0)] == [True, True, False]


@pytest.mark.covers("KRP-26")
@given(skew=st.floats(-1e8, 1e8), steps=st.lists(st.floats(0.1, 14.9), max_size=20))
def test_a_renewed_lease_is_always_alive(skew: float, steps: list[float]) -> None:
    holders, now = LeaseHolders(), 0.0
    for step in steps:
        now += step
        assert holders.alive([lease(renewed=now + skew)], now=now)


@pytest.mark.covers("KRP-26")
def test_a_renewal_since_the_last_read_counts_at_once() -> None:
    holders = LeaseHolders()
    assert [holders.alive([lease()], now=now) for now in (0.0, 15.0)] == [True, False]
    assert not holders.moved([lease()])
    assert holders.moved([lease(renewed=1.0)])
    assert not holders.moved([lease(holder="", renewed=2.0)])
