"""A server in memory and a clock that stands still, for the runtime's tests."""

from __future__ import annotations

import pytest

from tests.support.clock import FakeClock
from tests.support.kube_server import Server


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server(clock: FakeClock) -> Server:
    return Server(clock=clock)
