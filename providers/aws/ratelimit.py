"""EC2's request token buckets, kept on this side so that a call waits here and is not refused there.

Invariant: in any span of t seconds an operation is sent at most `burst + rate * t` times. A caller over that
waits its turn, and never gets an error for it. The numbers are EC2's own (EC2 API Reference, "Throttle
requests to the Amazon EC2 API"). They hold for an account and a Region, so other clients draw on them too. A
RequestLimitExceeded therefore empties the bucket here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Rate(NamedTuple):
    """Tokens that the bucket holds at most, and tokens that come back a second."""

    burst: float
    rate: float


READ = Rate(100, 20)
WRITE = Rate(50, 5)

# Operations with a row of their own; the others are READ or WRITE by their verb.
REQUESTS: Mapping[str, Rate] = {
    "RunInstances": Rate(5, 2),
    "TerminateInstances": Rate(100, 5),
    "CreateTags": Rate(100, 10),
    # SQS limits no standard queue; a storm of notices is to be read as fast as it comes.
    "ReceiveMessage": Rate(1000, 100),
    "DeleteMessageBatch": Rate(1000, 100),
}

# Buckets that count instances, not calls.
RESOURCES: Mapping[str, Rate] = {
    "RunInstances": Rate(1000, 2),
    "TerminateInstances": Rate(1000, 20),
}

_READS = ("Describe", "Get", "List", "Search")


def request_rate(operation: str) -> Rate:
    """The published bucket of an operation."""
    default = READ if operation.startswith(_READS) else WRITE
    return REQUESTS.get(operation, default)


class TokenBucket:
    """One bucket. `reserve` takes tokens now, into debt if need be, and returns the wait for them."""

    def __init__(self, rate: Rate, *, monotonic: Callable[[], float]) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._tokens = float(rate.burst)
        self._at = monotonic()
        self._lock = threading.Lock()

    def reserve(self, cost: float = 1) -> float:
        """Seconds to wait before the tokens are there."""
        with self._lock:
            self._refill()
            self._tokens -= cost
            return max(0.0, -self._tokens / self._rate.rate)

    def drain(self) -> None:
        """Empties the bucket: EC2 reported that its own is empty."""
        with self._lock:
            self._refill()
            self._tokens = min(self._tokens, 0.0)

    def _refill(self) -> None:
        now = self._monotonic()
        self._tokens = min(self._rate.burst, self._tokens + max(0.0, now - self._at) * self._rate.rate)
        self._at = now


class RateLimiter:
    """All buckets of one account and Region."""

    def __init__(self, *, monotonic: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._buckets: dict[tuple[str, str], TokenBucket] = {}
        self._lock = threading.Lock()

    def wait(self, operation: str, *, resources: int = 0) -> float:
        """Waits for a token of the operation (and for `resources` instances); returns the seconds waited."""
        delay = self._bucket("requests", operation, request_rate(operation)).reserve()
        if resources and operation in RESOURCES:
            bucket = self._bucket("resources", operation, RESOURCES[operation])
            delay = max(delay, bucket.reserve(resources))
        if delay > 0:
            self._sleep(delay)
        return delay

    def throttled(self, operation: str) -> None:
        """EC2 refused a call for its rate: nothing is left in the bucket."""
        self._bucket("requests", operation, request_rate(operation)).drain()

    def _bucket(self, kind: str, operation: str, rate: Rate) -> TokenBucket:
        with self._lock:
            return self._buckets.setdefault((kind, operation), TokenBucket(rate, monotonic=self._monotonic))
