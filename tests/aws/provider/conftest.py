"""The boto3 provider against local AWS as a server; a test starts from an account with a default network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.aws import LocalAws
from tests.support.direct import local_aws_here
from tests.support.service_models import models_read_once

from .world import World

__all__ = ["models_read_once"]


@pytest.fixture(scope="session")
def server() -> Iterator[LocalAws]:
    with local_aws_here() as aws:
        yield aws


@pytest.fixture
def world(server: LocalAws) -> World:
    server.reset()
    server.control.reset()
    server.control.clear_faults()
    server.control.clear_pools()
    server.control.clear_calls()
    return World(server)
