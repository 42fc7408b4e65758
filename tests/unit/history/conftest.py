"""The databases that the history runs on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.history.store import HistoryStore
from tests.support.postgres import INSTALLED, postgres
from tests.unit.history.facts import empty


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    if not INSTALLED:
        assert not os.environ.get("CI_REQUIRE_POSTGRES"), "PostgreSQL is not installed"
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with postgres() as url:
        yield url


@pytest.fixture(params=["file", "memory", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        url: str = request.getfixturevalue("server")
        return url
    return "memory" if request.param == "memory" else str(tmp_path / "new" / "history.db")


@pytest.fixture
def store(location: str) -> Iterator[HistoryStore]:
    history = HistoryStore(location)
    history.open()
    empty(history)
    yield history
    history.close()
