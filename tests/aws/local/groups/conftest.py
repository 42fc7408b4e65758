"""Resource Groups in both of moto's modes; a test with the fixture `fake` scripts EC2's side."""

from typing import Any

import pytest

from local.aws.groups import reservations
from tests.aws.local.groups.world import FakeEc2
from tests.aws.local.kit import Aws


@pytest.fixture
def fake(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> FakeEc2:
    source = FakeEc2()
    monkeypatch.setattr(reservations, "_sources", [source])
    return source


@pytest.fixture
def client(aws: Aws) -> Any:
    return aws.client("resource-groups")
