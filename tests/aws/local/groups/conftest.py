"""Resource Groups in both of moto's modes, beside an EC2 that the test scripts."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.server import ThreadedMotoServer

from providers.local import groups
from providers.local.groups import reservations
from tests.aws.local.groups.world import REGION, FakeEc2


def connect(endpoint: str | None = None) -> Any:
    session = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local", region_name=REGION)
    return session.client("resource-groups", endpoint_url=endpoint)


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> FakeEc2:
    source = FakeEc2()
    monkeypatch.setattr(reservations, "_sources", [source])
    return source


@pytest.fixture(scope="session")
def of_server() -> Iterator[Any]:
    groups.install()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield connect(f"http://{host}:{port}")
    server.stop()


@pytest.fixture(params=["in process", "server"])
def client(request: pytest.FixtureRequest, ec2: FakeEc2) -> Iterator[Any]:
    groups.install()
    if request.param == "in process":
        with mock_aws():
            yield connect()
        return
    client = request.getfixturevalue("of_server")
    yield client
    for group in client.list_groups()["Groups"]:
        client.delete_group(Group=group["Name"])
