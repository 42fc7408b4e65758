"""The HTTP servers under idle, slow and many clients."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import urllib3

from broker import web
from broker.oncall.http import HttpServer
from broker.run import allow_many_files

HALF = b"GET /healthz HTTP/1.1\r\nHost: broker\r\n"


@pytest.fixture
def server() -> Iterator[HttpServer]:
    http_server = HttpServer(host="127.0.0.1", port=0, ready=dict, registries=())
    http_server.start()
    yield http_server
    http_server.close()


def connected(server: HttpServer, stack: ExitStack) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return stack.enter_context(socket.create_connection((host, int(port)), timeout=30))


@pytest.mark.covers("SAF-58")
def test_healthz_is_answered_beside_1100_idle_connections(server: HttpServer) -> None:
    allow_many_files()
    with ExitStack() as stack:
        idle = [connected(server, stack) for _ in range(1100)]
        for connection in idle[-100:]:
            connection.sendall(HALF)
        assert urllib3.request("GET", f"{server.url}/healthz", timeout=30, retries=False).status == 200
        # No more are open than the limit: the oldest were displaced.
        assert [connection.recv(1) for connection in idle[: 1101 - web.CONNECTIONS]] == [b""] * (
            1101 - web.CONNECTIONS
        )


@pytest.mark.covers("SAF-58")
@pytest.mark.parametrize("sent", [b"", HALF], ids=["nothing", "half a header"])
def test_a_connection_without_a_complete_header_is_dropped(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    assert web.HEADER == 5.0
    monkeypatch.setattr(web, "HEADER", 0.05)
    with ExitStack() as stack:
        slow = connected(server, stack)
        slow.sendall(sent)
        assert slow.recv(1) == b""


def test_a_request_after_a_slow_header_is_answered_and_the_connection_closed(server: HttpServer) -> None:
    with ExitStack() as stack:
        slow = connected(server, stack)
        for part in (HALF, b"\r", b"\n"):
            slow.sendall(part)
        answer = b"".join(iter(lambda: slow.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 200") and b"Connection: close" in answer
