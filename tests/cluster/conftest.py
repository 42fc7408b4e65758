"""One world for each test: an API server (embedded, then real), local AWS and a broker that the test
starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.apiserver import Cluster
from broker.kube.client import Transport
from broker.kube.transports import HttpTransport, InProcessTransport
from providers.local import LocalAws
from tests.cluster.stack import Stack
from tests.controlplane.client import Api
from tests.support.direct import local_aws_here
from tests.support.servers import REAL
from tests.support.service_models import models_read_once

__all__ = ["models_read_once"]


@pytest.fixture(scope="session")
def local_aws() -> Iterator[LocalAws]:
    with local_aws_here() as server:
        yield server


@pytest.fixture(params=["embedded", pytest.param("real", marks=REAL)])
def stack(request: pytest.FixtureRequest, local_aws: LocalAws, tmp_path: Path) -> Iterator[Stack]:
    """Both API servers with the CRDs and an account, without a broker: `stack.start()` starts one."""
    if request.config.getoption("--lag") and request.node.get_closest_marker("prompt"):
        pytest.skip("asserts what the broker does at its first look")
    local_aws.reset()
    transport: Transport
    if request.param == "embedded":
        transport = InProcessTransport(Cluster())
    else:
        api: Api = request.getfixturevalue("real")
        file = tmp_path / "kubeconfig"
        file.write_text(api.kubeconfig())
        transport = HttpTransport.from_kubeconfig(file)
    made = Stack(local_aws, transport, lag=request.config.getoption("--lag"))
    try:
        yield made
    finally:
        made.close()
