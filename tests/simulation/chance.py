"""Time and chance of one run: every difference between two runs of a program comes from here.

Invariant: inside `ruled(seed, time)` the machine's clock and its random numbers decide nothing. The product
takes its clock as an argument. Ids come from `uuid` and `secrets`, back-off from `random`, and moto dates
its objects by one function. These four are ruled where the libraries too find them. The order of a set
decides nothing either: the product sorts the elements that it takes from one.
"""

from __future__ import annotations

import random
import secrets
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import FunctionType
from typing import Any, cast
from unittest.mock import patch

from moto.core import utils as moto_utils
from moto.moto_api._internal import mock_random

from broker.kube.clock import Signal

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Time:
    """Seconds since the world began, the same for EC2, the API server and every process."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.seconds)

    def advance(self, seconds: float) -> None:
        """Rounds a wait that is shorter than a microsecond up to one."""
        if seconds > 0:
            self.seconds = round(self.seconds + max(seconds, 1e-6), 6)


class SimulatedClock:
    """One process's clock. A wait is over at once, and the world is that much older.

    `skew` is how far the wall clock of the process is ahead of EC2's, in seconds.
    """

    def __init__(self, time: Time, *, skew: float = 0.0) -> None:
        self._time = time
        self.skew = skew

    def now(self) -> datetime:
        return self._time.now() + timedelta(seconds=self.skew)

    def monotonic(self) -> float:
        return 1000.0 + self._time.seconds

    def wait(self, signal: Signal, timeout: float | None = None) -> bool:
        if isinstance(signal, threading.Event) and signal.is_set():
            return True
        if timeout is None:
            raise AssertionError("a wait without end in a world of one thread")
        self.sleep(timeout)
        return False

    def sleep(self, seconds: float) -> None:
        self._time.advance(seconds)


def _dated() -> datetime:
    return _simulated_now()  # type: ignore[name-defined,no-any-return]  # noqa: F821


def reseed(seed: str) -> None:
    """Makes all later draws of libraries and product follow from `seed`."""
    random.seed(seed)
    _ids.seed(f"{seed} ids")
    mock_random.seed(f"{seed} moto")


_ids = random.Random()


def _uuid4() -> uuid.UUID:
    return uuid.UUID(int=_ids.getrandbits(128), version=4)


def _token_hex(size: int | None = None) -> str:
    return f"{_ids.getrandbits(8 * (size or 32)):0{2 * (size or 32)}x}"


@contextmanager
def ruled(seed: str, time: Time) -> Iterator[None]:
    """Chance follows from `seed` and moto's dates from `time`, until the block ends."""
    dated = cast(FunctionType, moto_utils.utcnow)
    before, state = dated.__code__, random.getstate()
    names: dict[str, Any] = vars(moto_utils)
    names["_simulated_now"] = lambda: time.now().replace(tzinfo=None)
    dated.__code__ = _dated.__code__
    reseed(seed)
    try:
        with patch.object(uuid, "uuid4", _uuid4), patch.object(secrets, "token_hex", _token_hex):
            yield
    finally:
        dated.__code__ = before
        random.setstate(state)
        del names["_simulated_now"]
