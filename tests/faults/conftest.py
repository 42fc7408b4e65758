"""Fixtures of the fault tests: one local AWS a process, emptied by each test that uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.controllers.launch import waves
from local.aws import LocalAws
from tests.cluster.conftest import local_aws
from tests.faults.walk import World, account, share_clients
from tests.support.service_models import models_read_once

__all__ = ["local_aws", "models_read_once"]


@pytest.fixture
def world(local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A cluster and an account in which one process at a time is driven by hand, one fleet call at a time."""
    share_clients(monkeypatch)
    monkeypatch.setattr(waves, "PARALLEL", 1)
    account(local_aws, fresh=True)
    new_world = World(local_aws, 1)
    yield new_world
    if new_world.process is not None:
        new_world.process.bury()
    local_aws.control.reset()
