"""One world for each test: an API server (embedded, then real), local AWS and a broker that the test
starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.kube.client import Transport
from broker.kube.transports import HttpTransport
from local.aws import LocalAws
from local.in_process import InProcessTransport
from local.kube import ApiServer, Cluster
from tests.cluster.stack import Stack
from tests.controlplane.client import Api
from tests.kueue.definitions import install, ready, uninstall
from tests.support.definitions import defined
from tests.support.direct import local_aws_here
from tests.support.servers import REAL
from tests.support.service_models import models_read_once

__all__ = ["models_read_once"]


# Seconds that EC2 shows changes late.
LAG = 0.3


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests marked `both_servers` alone on the real API server: they cover all others."""
    if config.getoption("--all-real"):
        return
    left_out = [item for item in items if _real(item) and not item.get_closest_marker("both_servers")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def _real(item: pytest.Item) -> bool:
    return item.path.is_relative_to(Path(__file__).parent) and (
        isinstance(item, pytest.Function)
        and "callspec" in vars(item)
        and item.callspec.params.get("stack") == "real"
    )


@pytest.fixture(scope="session")
def local_aws() -> Iterator[LocalAws]:
    with local_aws_here() as server:
        yield server


@pytest.fixture(params=["embedded", pytest.param("real", marks=REAL)])
def stack(request: pytest.FixtureRequest, local_aws: LocalAws, tmp_path: Path) -> Iterator[Stack]:
    """Both API servers with the CRDs and an account, without a broker: `stack.start()` starts one."""
    lag: float | None = request.config.getoption("--lag")
    prompt = request.node.get_closest_marker("prompt") is not None
    if lag and prompt:
        pytest.skip("asserts what the broker does in its first pass")
    if lag is None:
        lag = 0.0 if prompt else LAG
    local_aws.reset()
    transport: Transport
    if request.param == "embedded":
        transport = InProcessTransport(defined())
    else:
        api: Api = request.getfixturevalue("real")
        file = tmp_path / "kubeconfig"
        file.write_text(api.kubeconfig())
        transport = HttpTransport.from_kubeconfig(file)
    cluster = Stack(local_aws, transport, lag=lag)
    try:
        yield cluster
    finally:
        cluster.close()


class ServedStack(NamedTuple):
    """A stack with its embedded API server on a port, and the kubeconfig for commands."""

    stack: Stack
    server: Cluster
    kubeconfig: str


@pytest.fixture
def served(local_aws: LocalAws, tmp_path: Path) -> Iterator[ServedStack]:
    local_aws.reset()
    cluster = defined()
    with ApiServer(cluster) as api:
        stack = Stack(local_aws, InProcessTransport(cluster))
        file = tmp_path / "kubeconfig"
        file.write_text(api.kubeconfig())
        try:
            yield ServedStack(stack, cluster, str(file))
        finally:
            stack.close()


@pytest.fixture
def kueue(stack: Stack) -> Iterator[None]:
    """Kueue's kinds are served during the test."""
    install(stack.client)
    stack.until(lambda: ready(stack.client, "v1beta2"), "Kueue's kinds are served")
    yield
    stack.close()
    stack.until(lambda: uninstall(stack.client), "Kueue is uninstalled")
