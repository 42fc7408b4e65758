"""Every test of local AWS runs in process and against the server: the client must not see a difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from moto import mock_aws

from local.aws import Control, LocalAws, install
from tests.aws.local.kit import Aws


@pytest.fixture(scope="session")
def server() -> Iterator[LocalAws]:
    with LocalAws() as running:
        yield running


@pytest.fixture(params=["in process", "server"])
def aws(request: pytest.FixtureRequest) -> Iterator[Aws]:
    if request.param == "in process":
        install()
        with mock_aws():
            yield Aws(None, Control())
        return
    running: LocalAws = request.getfixturevalue("server")
    running.reset()
    yield Aws(running.endpoint, running.control)


@pytest.fixture
def ec2(aws: Aws) -> Any:
    return aws.client()
