"""Requests and responses of HTTP/1.1, byte by byte: a response is the same however it is split."""

from __future__ import annotations

import socket
import weakref
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import ProtocolError

from broker.kube.exchange import Answer, Incoming, exchange, request
from tests.support.scripted_http import Web, respond


class Pieces:
    """A socket with these bytes, in these pieces, and then the end."""

    def __init__(self, data: bytes, cuts: Iterable[int]) -> None:
        edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
        self._pieces = [data[a:b] for a, b in pairwise(edges)]

    def recv(self, _size: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def read(data: bytes, cuts: Iterable[int] = ()) -> tuple[Answer, bool]:
    incoming = Incoming()
    return incoming.read(cast(socket.socket, Pieces(data, cuts))), incoming.keep


def chunked(body: bytes, sizes: list[int]) -> bytes:
    out = b""
    for size in sizes:
        piece, body = body[:size], body[size:]
        out += b"%x;ext=1\r\n%b\r\n" % (len(piece), piece) if piece else b""
    return out + (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\nTrailer: x\r\n\r\n"


def test_a_read_response_leaves_nothing_for_the_garbage_collector() -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    incoming = Incoming()
    incoming.read(cast(socket.socket, Pieces(data, ())))
    gone = weakref.ref(incoming)
    del incoming
    assert gone() is None


@given(
    body=st.binary(max_size=200),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
    sizes=st.lists(st.integers(1, 40), max_size=6),
    framing=st.sampled_from(["length", "chunks", "end"]),
    interim=st.booleans(),
)
@example(body=b"\r\n\r\n0\r\n\r\n", cuts=[*range(300)], sizes=[3], framing="chunks", interim=True)
def test_a_response_is_the_same_for_any_packets(
    body: bytes, cuts: list[int], sizes: list[int], framing: str, interim: bool
) -> None:
    head, sent = {
        "length": (b"content-length: %d\r\n" % len(body), body),
        "chunks": (b"Transfer-Encoding: Chunked\r\n", chunked(body, sizes)),
        "end": (b"", body),
    }[framing]
    before = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" if interim else b""
    data = before + b"HTTP/1.1 429 Too Many Requests\r\nretry-after:  7 \r\n" + head + b"\r\n" + sent
    (status, headers, got), keep = read(data, cuts)
    assert (status, headers["Retry-After"], got) == (429, "7", body)
    assert keep is (framing != "end")


@pytest.mark.parametrize(
    "data",
    [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"],
)
def test_responses_204_and_304_have_no_body(data: bytes) -> None:
    (_, _, body), keep = read(data)
    assert (body, keep) == (b"", True)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n",
    ],
)
def test_a_closed_or_overfull_connection_is_not_reused(data: bytes) -> None:
    assert read(data) == ((200, read(data)[0][1], b"{}"), False)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "closed before the answer was complete"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "closed before"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "closed before"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}", "closed before"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n", "chunk data"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "chunk size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "closed before"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n{}", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "Content-Length"),
        (b"HTTP/1.1 abc\r\n\r\n", "status code"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "Expected HTTP/"),
        (b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", "another protocol"),
    ],
)
def test_an_incomplete_response_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        read(data, range(0, len(data), 5000))


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nX: y", "a\rX"])
def test_a_header_with_a_line_break_is_refused(value: str) -> None:
    with pytest.raises(ProtocolError, match="line break"):
        request("GET", "/", {"Authorization": value}, None)


def test_a_connection_is_reused_and_reopened_after_the_server_closed_it() -> None:
    ports: list[int] = []

    def answer(handler: Any) -> None:
        ports.append(handler.client_address[1])
        respond(handler, 200, {"n": len(ports)})
        handler.close_connection = len(ports) == 2

    with Web(answer) as web:
        pool = HTTPConnectionPool("127.0.0.1", web.port)

        def get() -> bytes:
            _, _, body = exchange(
                pool, method="GET", target="/", headers={"Host": "x"}, body=None, connect=5, read=5
            )
            return body

        assert [get(), get()] == [b'{"n":1}', b'{"n":2}']
        connection = cast(Any, pool.pool).queue[-1]
        connection.sock.settimeout(5)
        assert connection.sock.recv(1, socket.MSG_PEEK) == b""  # the server has closed the connection
        assert get() == b'{"n":3}'
    assert ports[0] == ports[1] != ports[2]


def test_the_response_after_a_broken_one_is_complete() -> None:
    seen: list[int] = []

    def answer(handler: Any) -> None:
        seen.append(1)
        if len(seen) == 1:
            handler.send_response(200)
            handler.send_header("Content-Length", "9")
            handler.end_headers()
            handler.wfile.write(b"{}")
            handler.close_connection = True
        else:
            respond(handler, 200, {"whole": True})

    with Web(answer) as web:
        pool = HTTPConnectionPool("127.0.0.1", web.port)
        given = {"headers": {"Host": "x"}, "body": None, "connect": 5.0, "read": 5.0}
        with pytest.raises(ProtocolError, match="closed before"):
            exchange(pool, method="GET", target="/", **given)  # type: ignore[arg-type]
        assert exchange(pool, method="GET", target="/", **given)[2] == b'{"whole":true}'  # type: ignore[arg-type]
