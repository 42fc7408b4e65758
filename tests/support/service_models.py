"""The SDK reads its service models once for all clients of a run, not once a client (0.3 s for EC2's)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from botocore.loaders import create_loader


@pytest.fixture(scope="session", autouse=True)
def models_read_once() -> Iterator[None]:
    loader = create_loader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", lambda *_: loader)
        yield
