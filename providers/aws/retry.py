"""Retries: one policy for each class of error that may be repeated, with its attempts and waits.

Invariant: only THROTTLING and TRANSIENT are ever repeated, with the same parameters and so the same client
token. A refusal about capacity never is, though EC2 sends it as a server error (EC2 API Reference, "Ensuring
idempotency": repeat a 5xx; "Error codes": InsufficientInstanceCapacity is one).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from providers.errors import ErrorClass, ProviderError

T = TypeVar("T")


class _Policy(NamedTuple):
    """A wait is a random part of `first` seconds, doubled at each attempt up to `longest`."""

    attempts: int
    first: float
    longest: float


_POLICIES: Mapping[ErrorClass, _Policy] = {
    ErrorClass.THROTTLING: _Policy(attempts=6, first=0.5, longest=10.0),
    ErrorClass.TRANSIENT: _Policy(attempts=4, first=0.2, longest=5.0),
}


def call(function: Callable[[], T], *, sleep: Callable[[float], None]) -> T:
    """Calls until it succeeds, fails for good, or its class's attempts are used up; then the last error."""
    attempt = 1
    while True:
        try:
            return function()
        except ProviderError as error:
            policy = _POLICIES.get(error.class_)
            if policy is None or attempt >= policy.attempts:
                raise
        sleep(random.uniform(0.0, min(policy.longest, policy.first * 2 ** (attempt - 1))))
        attempt += 1
