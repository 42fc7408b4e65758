"""One request and its response over a connection of urllib3's pool, the largest cost of many writes.

Invariant: a connection goes back open only if its response was read to the last byte and the server keeps
it. Any failure closes the connection and is raised. The pool opens connections, with TLS, and finds those
that the server has closed; httptools (llhttp) reads the responses. urllib3's own way costs 0.4 ms of CPU
time a request: it parses headers as e-mail's, and writes twice instead of once.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import cast

import httptools
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ProtocolError

PIECE = 65536
FRAMES = frozenset({"Content-Length", "Transfer-Encoding"})
CLOSED = "the connection was closed before the answer was complete"

Answer = tuple[int, dict[str, str], bytes]


def exchange(
    pool: HTTPConnectionPool,
    *,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes | None,
    connect: float,
    read: float,
) -> Answer:
    """Status, headers (named as in `Retry-After`) and body. Raises OSError or urllib3's HTTPError.

    `connect` is the time for a new connection, `read` the longest silence. HEAD is not among the methods.
    """
    message = request(method, target, headers, body)
    connection = cast("HTTPConnection", pool._get_conn())
    keep = False
    try:
        if connection.is_closed:
            connection.timeout = connect
            connection.connect()
        sock = connection.sock
        sock.settimeout(read)
        sock.sendall(message)
        incoming = Incoming()
        answer = incoming.read(sock)
        keep = incoming.keep
        return answer
    finally:
        if not keep:
            connection.close()
        pool._put_conn(connection)


def request(method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """The bytes of a request. Raises ProtocolError for a header that could be read as more than one."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ProtocolError("a header has a line break in it")
    return text.encode("latin-1") + b"\r\n\r\n" + (body or b"")


class Incoming:
    """Reads one response as its bytes come; `keep` is then true if the connection may carry another."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._status = 0
        self._begun = self._whole = False
        self.keep = False

    def read(self, sock: socket.socket) -> Answer:
        trouble: Exception | None = None
        while not self._whole and trouble is None:
            piece = sock.recv(PIECE)
            if not piece and not self._ends_with_the_connection():
                raise ProtocolError(CLOSED)
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as error:
                raise ProtocolError("the answer changes to another protocol") from error
            except httptools.HttpParserError as error:
                trouble = error
            if not piece:
                break
        if trouble is not None and not self._whole:  # bytes after the response only cost the connection
            raise ProtocolError(str(trouble)) from trouble
        del self._parser  # it refers to this object: the pieces would stay until garbage is collected
        return self._status, self._headers, b"".join(self._body)

    def _ends_with_the_connection(self) -> bool:
        return self._begun and not FRAMES & self._headers.keys()

    def on_message_begin(self) -> None:
        self.keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._whole and not self._begun:  # not of a trailer, nor of bytes after it
            self._headers[name.decode("latin-1").title()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        if not self._whole:
            self._begun, self._status = True, self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if not self._whole:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._whole:
            return
        if self._status < 200:  # an interim answer, RFC 9110 §15.2
            self._headers, self._begun = {}, False
            return
        self._whole, self.keep = True, self._parser.should_keep_alive()
