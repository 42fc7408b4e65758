"""Retries: one policy for each class of error that may be repeated, with its attempts and waits.

Invariant: only THROTTLING and TRANSIENT are ever repeated, with the same parameters and so the same client
token. A refusal about capacity never is, though EC2 sends it as a server error (EC2 API Reference, "Ensuring
idempotency": repeat a 5xx; "Error codes": InsufficientInstanceCapacity is one).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import tenacity
from tenacity.wait import wait_base

from providers.model import ErrorClass, ProviderError

T = TypeVar("T")

_ATTEMPTS: Mapping[ErrorClass, int] = {ErrorClass.THROTTLING: 6, ErrorClass.TRANSIENT: 4}
_WAITS: Mapping[ErrorClass, wait_base] = {
    ErrorClass.THROTTLING: tenacity.wait_random_exponential(multiplier=0.5, max=10),
    ErrorClass.TRANSIENT: tenacity.wait_random_exponential(multiplier=0.2, max=5),
}
_NO_POLICY = "the retry policy read the wait of an error that is never retried"


def _class(state: tenacity.RetryCallState) -> ErrorClass | None:
    class_: ErrorClass | None = state.outcome.result() if state.outcome else None
    return class_


class _Repeated(tenacity.retry_base):
    """True for a ProviderError of a class with attempts left; False for everything else."""

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        class_ = _class(retry_state)
        return class_ is not None and retry_state.attempt_number < _ATTEMPTS.get(class_, 0)


class _Wait(wait_base):
    """The wait of the class of the last error."""

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        class_ = _class(retry_state)
        if class_ is None or class_ not in _WAITS:
            raise RuntimeError(_NO_POLICY)
        return _WAITS[class_](retry_state)


def call(function: Callable[[], T], *, sleep: Callable[[float], None]) -> T:
    """Calls until it succeeds, fails for good, or its class's attempts are used up; then the last error."""
    results: list[T] = []
    last_error: list[ProviderError] = []

    # Tenacity's states are cycles, so they get the class alone. A state with a response, or an error with
    # the frames of all callers, would keep it until the garbage collector runs.
    def tried() -> ErrorClass | None:
        last_error.clear()
        try:
            results.append(function())
        except ProviderError as error:
            last_error.append(error)
            return error.class_
        return None

    tenacity.Retrying(retry=_Repeated(), wait=_Wait(), sleep=sleep)(tried)
    if last_error:
        raise last_error.pop()
    return results.pop()
