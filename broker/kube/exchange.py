"""One request and its answer over a connection of urllib3's pool: what a thousand writes spend most on.

Invariant: a connection goes back open only when its answer was read to the last byte and the server keeps it;
whatever fails closes it and is raised. The pool opens connections, with all that TLS needs, and finds those
that the server has closed; on the wire its requests cost 0.4 ms of CPU time each, for headers that are parsed
as e-mail's are and for two writes where one will do. Message syntax: RFC 9112 (HTTP/1.1), §2, §6, §7, §9.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import cast

from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ProtocolError

PIECE = 65536
HEAD = 65536  # bytes; an answer whose head is longer is none of an API server's
EMPTY = frozenset({204, 304})  # answers that have no body whatever their headers say
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

    `connect` is the time for a new connection, `read` the longest silence.
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
        incoming = Incoming(sock)
        answer = incoming.answer(method)
        keep = incoming.keep
        return answer
    finally:
        if not keep:
            connection.close()
        pool._put_conn(connection)


def request(method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """The bytes of a request. Raises ProtocolError for what would be read as more than one header."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ProtocolError("a header has a line break in it")
    return text.encode("latin-1") + b"\r\n\r\n" + (body or b"")


class Incoming:
    """The bytes of one answer as they come; `keep` says afterwards whether another may follow."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()
        self.keep = False

    def answer(self, method: str) -> Answer:
        status = 100
        while 100 <= status < 200:  # interim answers, §15.2 of RFC 9110
            version, status, headers = _head(self._until(b"\r\n\r\n", most=HEAD))
        kept = version == b"HTTP/1.1" and "close" not in headers.get("Connection", "").lower()
        if method == "HEAD" or status in EMPTY:
            body = b""
        elif "Transfer-Encoding" in headers:
            if headers["Transfer-Encoding"].lower() != "chunked":
                raise ProtocolError(f"transfer encoding {headers['Transfer-Encoding']!r}")
            body = self._chunks()
        elif (length := headers.get("Content-Length")) is not None:
            body = self._take(_number(length.encode(), 10))
        else:
            kept, body = False, self._rest()
        self.keep = kept and not self._data
        return status, headers, body

    def _more(self) -> None:
        piece = self._sock.recv(PIECE)
        if not piece:
            raise ProtocolError(CLOSED)
        self._data += piece

    def _until(self, mark: bytes, *, most: int) -> bytes:
        """What comes before the mark."""
        seen = 0
        while (end := self._data.find(mark, seen)) < 0:
            if (seen := max(0, len(self._data) - len(mark))) > most:
                raise ProtocolError(f"no end of the line or the headers within {most} bytes")
            self._more()
        found = bytes(self._data[:end])
        del self._data[: end + len(mark)]
        return found

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            self._more()
        found = bytes(self._data[:size])
        del self._data[:size]
        return found

    def _chunks(self) -> bytes:
        found = []
        while size := _number(self._until(b"\r\n", most=HEAD).partition(b";")[0].strip(), 16):
            found.append(self._take(size))
            if self._take(2) != b"\r\n":
                raise ProtocolError("a chunk is longer than it says")
        while self._until(b"\r\n", most=HEAD):  # trailers
            continue
        return b"".join(found)

    def _rest(self) -> bytes:
        """An answer that ends with its connection."""
        while piece := self._sock.recv(PIECE):
            self._data += piece
        return self._take(len(self._data))


def _head(raw: bytes) -> tuple[bytes, int, dict[str, str]]:
    first, *lines = raw.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise ProtocolError(f"not an answer of HTTP/1: {first[:100]!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.decode("latin-1").title()] = value.strip().decode("latin-1")
    return version, _number(rest[:3], 10), headers


def _number(text: bytes, base: int) -> int:
    try:
        return int(text, base)
    except ValueError as error:
        raise ProtocolError(f"{text[:100]!r} where a number was expected") from error
