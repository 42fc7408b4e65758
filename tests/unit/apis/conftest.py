"""An API server that serves our CRDs, one a module; tests send dryRun requests, so it stays empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.apis import crds
from tests.controlplane.client import Api
from tests.support.servers import REAL, over_embedded


@pytest.fixture(scope="module", params=["embedded", pytest.param("real", marks=REAL)])
def served(request: pytest.FixtureRequest) -> Iterator[Api]:
    """The embedded API server, then the real one, with EC2NodeClass, NodeClaim and NodePool."""
    if request.param == "real":
        yield _installed(request.getfixturevalue("real_api"))
        return
    with over_embedded() as api:
        yield _installed(api)


def _installed(api: Api) -> Api:
    for definition in crds.load():
        api.install(definition)
    return api
