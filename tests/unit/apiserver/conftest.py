"""A cluster with a clock that stands until a test moves it."""

from __future__ import annotations

import pytest

from local.kube import Cluster

from .objects import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(clock: Clock) -> Cluster:
    return Cluster(clock=clock, seed=1)
