"""The server's version is read again after an interval, and the known one is kept while the server is
away."""

from __future__ import annotations

import orjson
import pytest

from broker.kube.client import Client, Reply, Request, Stream
from broker.kube.errors import Unavailable
from broker.kube.version import EVERY, ServerVersion
from tests.support.clock import FakeClock


class Server:
    """An API server that returns its version, or is away."""

    def __init__(self, **reply: str) -> None:
        self.reply: dict[str, str] | None = reply
        self.requests = 0

    def request(self, request: Request, *, timeout: float) -> Reply:
        assert (request.method, request.path) == ("GET", "/version"), timeout
        self.requests += 1
        if self.reply is None:
            raise Unavailable(0, "Away", "no answer")
        return Reply(status=200, body=orjson.dumps(self.reply))

    def stream(self, request: Request, *, timeout: float) -> Stream:
        raise AssertionError(f"{request} {timeout}")


@pytest.mark.parametrize(
    ("reply", "version"),
    [({"major": "1", "minor": "34"}, "1.34"), ({"major": "1", "minor": "31+"}, "1.31")],
)
def test_an_image_has_the_clusters_version(reply: dict[str, str], version: str) -> None:
    """EKS writes a plus after the minor version."""
    assert ServerVersion(Client(Server(**reply)), clock=FakeClock())() == version


def test_an_upgrade_is_noticed_by_rare_requests() -> None:
    server, clock = Server(major="1", minor="32"), FakeClock()
    version = ServerVersion(Client(server), clock=clock)
    assert [version() for _ in range(5)] == ["1.32"] * 5
    server.reply = {"major": "1", "minor": "33"}
    clock.advance(EVERY - 1)
    assert (version(), server.requests) == ("1.32", 1)
    clock.advance(1)
    assert (version(), server.requests) == ("1.33", 2)


def test_the_known_version_is_used_while_the_server_is_unavailable() -> None:
    server, clock = Server(major="1", minor="32"), FakeClock()
    version = ServerVersion(Client(server), clock=clock)
    assert version() == "1.32"
    server.reply = None
    clock.advance(EVERY)
    assert version() == "1.32"


def test_without_a_known_version_the_error_is_raised() -> None:
    server = Server()
    server.reply = None
    with pytest.raises(Unavailable, match="no answer"):
        ServerVersion(Client(server), clock=FakeClock())()
