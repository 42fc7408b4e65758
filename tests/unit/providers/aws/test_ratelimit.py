"""Token buckets: EC2's published limits are never exceeded, and no call waits longer than they require."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.aws.ratelimit import READ, WRITE, Rate, RateLimiter, TokenBucket, request_rate

from .support import ManualClock


@pytest.mark.parametrize(
    ("operation", "rate"),
    [
        ("DescribeCapacityReservations", Rate(100, 20)),
        ("DescribeInstances", Rate(100, 20)),
        ("GetGroupsForCapacityReservation", Rate(100, 20)),
        ("CreateFleet", Rate(50, 5)),
        ("CreateLaunchTemplate", Rate(50, 5)),
        ("DeleteLaunchTemplate", Rate(50, 5)),
        ("CreateCapacityReservation", Rate(50, 5)),
        ("RunInstances", Rate(5, 2)),
        ("TerminateInstances", Rate(100, 5)),
        ("CreateTags", Rate(100, 10)),
    ],
)
def test_the_published_buckets(operation: str, rate: Rate) -> None:
    assert request_rate(operation) == rate


rates = st.builds(Rate, st.integers(1, 100), st.floats(0.15, 20))


@given(rates, st.lists(st.floats(0, 5), max_size=60))
def test_no_time_span_has_more_calls_than_the_bucket_allows(rate: Rate, gaps: list[float]) -> None:
    clock = ManualClock()
    bucket = TokenBucket(rate, monotonic=clock.monotonic)
    sent = []
    for gap in gaps:
        clock.advance(gap)
        sent.append(clock.monotonic() + bucket.reserve())
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            span = sent[last] - sent[first]
            assert last - first + 1 <= rate.burst + rate.rate * span + 1e-6


@given(rates, st.integers(1, 300))
def test_a_burst_goes_at_once_and_the_rest_at_the_rate(rate: Rate, calls: int) -> None:
    clock = ManualClock()
    limiter = TokenBucket(rate, monotonic=clock.monotonic)
    waits = [limiter.reserve() for _ in range(calls)]
    free = int(rate.burst)
    assert all(wait == 0 for wait in waits[:free])
    assert all(wait == pytest.approx((n + 1) / rate.rate) for n, wait in enumerate(waits[free:]))


def test_operations_do_not_share_a_bucket() -> None:
    clock = ManualClock()
    limiter = RateLimiter(monotonic=clock.monotonic, sleep=clock.sleep)
    for _ in range(int(WRITE.burst)):
        assert limiter.wait("CreateFleet") == 0
    assert limiter.wait("CreateLaunchTemplate") == 0
    assert limiter.wait("CreateFleet") == pytest.approx(1 / WRITE.rate)
    assert clock.slept == [pytest.approx(1 / WRITE.rate)]


def test_instances_are_counted_besides_calls() -> None:
    clock = ManualClock()
    limiter = RateLimiter(monotonic=clock.monotonic, sleep=clock.sleep)
    assert limiter.wait("TerminateInstances", resources=500) == 0
    assert limiter.wait("TerminateInstances", resources=500) == 0
    assert limiter.wait("TerminateInstances", resources=500) == pytest.approx(25)


def test_after_throttling_the_bucket_is_empty() -> None:
    clock = ManualClock()
    limiter = RateLimiter(monotonic=clock.monotonic, sleep=clock.sleep)
    limiter.throttled("CreateFleet")
    assert limiter.wait("CreateFleet") == pytest.approx(1 / WRITE.rate)


def test_threads_share_the_burst() -> None:
    clock = ManualClock()
    bucket = TokenBucket(READ, monotonic=clock.monotonic)
    waits: list[float] = []

    def reserve() -> None:
        for _ in range(25):
            waits.append(bucket.reserve())

    threads = [threading.Thread(target=reserve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(waits)[:100] == [0.0] * 100
    assert sorted(waits)[100:] == [pytest.approx(n / READ.rate) for n in range(1, 101)]
