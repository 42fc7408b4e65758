"""Installs the conformance kinds for every check."""

import pytest

from tests.conformance.definitions import GIZMOS, WIDGETS
from tests.controlplane.client import Api


@pytest.fixture
def api(api: Api) -> Api:
    api.install(WIDGETS)
    api.install(GIZMOS)
    return api
