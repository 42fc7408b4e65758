"""Retries of one call, as the policy of its error's class has them.

Invariant: only THROTTLING and TRANSIENT are ever repeated, with the same parameters and so the same client
token. A call without a token is repeated only if it was certainly not carried out. A refusal about capacity
is never repeated, though EC2 sends it as a server error (EC2 API Reference, "Ensuring idempotency": repeat a
5xx; "Error codes": InsufficientInstanceCapacity is one).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from providers.errors import ProviderError

T = TypeVar("T")


def call(function: Callable[[], T], *, sleep: Callable[[float], None], repeats_lost: bool = True) -> T:
    """Calls until it succeeds, fails for good, or its class's attempts are used up; then the last error.

    `repeats_lost`: also a call that may have been carried out, which needs a client token.
    """
    attempt = 1
    while True:
        try:
            return function()
        except ProviderError as error:
            retry = error.class_.policy.retry
            if retry is None or attempt >= retry.attempts or (error.lost and not repeats_lost):
                raise
        sleep(random.uniform(0.0, min(retry.longest, retry.first * 2 ** (attempt - 1))))
        attempt += 1
