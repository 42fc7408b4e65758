"""The real API server keeps definitions from one test to the next; a test begins without Kueue's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.stack import Stack
from tests.kueue.definitions import uninstall


@pytest.fixture(autouse=True)
def without_kueue_afterwards(stack: Stack) -> Iterator[None]:
    """Afterwards nothing of Kueue is left, nor any object that Kueue's objects hold up."""
    yield
    stack.close()
    stack.until(lambda: uninstall(stack.client), "Kueue is uninstalled")
