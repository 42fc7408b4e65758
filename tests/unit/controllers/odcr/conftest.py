from __future__ import annotations

import pytest

from tests.unit.controllers.odcr.world import World


@pytest.fixture
def world() -> World:
    return World()
