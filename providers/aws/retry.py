"""Retries of one call, as the policy of its error's class has them.

Invariant: only THROTTLING and TRANSIENT are ever repeated, with the same parameters and so the same client
token. A refusal about capacity never is, though EC2 sends it as a server error (EC2 API Reference, "Ensuring
idempotency": repeat a 5xx; "Error codes": InsufficientInstanceCapacity is one).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from providers.errors import ProviderError

T = TypeVar("T")


def call(function: Callable[[], T], *, sleep: Callable[[float], None]) -> T:
    """Calls until it succeeds, fails for good, or its class's attempts are used up; then the last error."""
    attempt = 1
    while True:
        try:
            return function()
        except ProviderError as error:
            retry = error.class_.policy.retry
            if retry is None or attempt >= retry.attempts:
                raise
        sleep(random.uniform(0.0, min(retry.longest, retry.first * 2 ** (attempt - 1))))
        attempt += 1
