"""A small HTTP server in its own thread, for metrics, probes and the webhook.

Invariant: idle or slow clients never keep others out. Each connection carries one request. Its header must
be complete within `HEADER` seconds, and its answer is sent within `ANSWER` seconds. At most `CONNECTIONS`
are open; beyond that a new connection displaces the oldest, those without a complete header first.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final

from aiohttp import hdrs, web

STOPS = 3.0  # seconds for requests that are under way at the end
CONNECTIONS: Final = 256
HEADER: Final = 5.0  # seconds from the accept to a complete header; of a TLS handshake, too
ANSWER: Final = 30.0  # seconds from the complete header to the end of the answer
_END: Final = b"\r\n\r\n"


class WebServer:
    """Serves `routes` from `start` to `close`. `port` 0 picks a free one, which `url` has then."""

    def __init__(
        self,
        routes: Iterable[web.AbstractRouteDef],
        *,
        host: str,
        port: int,
        name: str,
        tls: ssl.SSLContext | None = None,
        largest: int = 1 << 20,
    ) -> None:
        self._routes = [*routes]
        self._host, self._port = host, port
        self._tls, self._largest = tls, largest
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self._host}:{self._port}"

    def start(self) -> None:
        """Raises OSError naming the address when the port is taken."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(timeout=10)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    def between_requests(self, does: Callable[[], None]) -> None:
        """Runs `does` in the server's own thread, where no handshake is under way."""

        async def run() -> None:
            does()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(timeout=10)

    async def _serve(self) -> None:
        app = web.Application(client_max_size=self._largest)
        app.on_response_prepare.append(_last_of_its_connection)
        app.add_routes(self._routes)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOPS)
        await self._runner.setup()
        handler = self._runner.server
        assert handler is not None
        open_ = _Open()
        self._listener = await self._loop.create_server(
            lambda: _Connection(handler(), open_, self._loop),
            self._host,
            self._port,
            ssl=self._tls,
            ssl_handshake_timeout=HEADER if self._tls else None,
            backlog=CONNECTIONS,
        )
        self._port = self._listener.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()


async def _last_of_its_connection(_request: web.Request, response: web.StreamResponse) -> None:
    """A kept connection would need a time limit of its own for each further header."""
    response.force_close()
    response.headers[hdrs.CONNECTION] = "close"  # aiohttp writes this header before it calls this


class _Open:
    """The connections of a server, oldest first, as dicts keep their order."""

    def __init__(self) -> None:
        self.waiting: dict[_Connection, None] = {}  # without a complete header
        self.answering: dict[_Connection, None] = {}

    def admit(self, connection: _Connection) -> None:
        if len(self.waiting) + len(self.answering) >= CONNECTIONS:
            next(chain(self.waiting, self.answering)).abort()
        self.waiting[connection] = None

    def complete(self, connection: _Connection) -> None:
        if connection in self.waiting:
            del self.waiting[connection]
            self.answering[connection] = None

    def forget(self, connection: _Connection) -> None:
        self.waiting.pop(connection, None)
        self.answering.pop(connection, None)


class _Connection(asyncio.Protocol):
    """Passes one connection on to `inner` within the limits of this module."""

    def __init__(self, inner: asyncio.Protocol, open_: _Open, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._open, self._loop = inner, open_, loop
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen = b""  # the last bytes of a header that is not complete yet

    def abort(self) -> None:
        self._open.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inner.connection_made(transport)
        self._open.admit(self)
        self._timer = self._loop.call_later(HEADER, self.abort)

    def data_received(self, data: bytes) -> None:
        if self in self._open.waiting:
            seen = self._seen + data
            if _END in seen:
                self._open.complete(self)
                self._limit(ANSWER)
            self._seen = seen[1 - len(_END) :]
        self._inner.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._open.forget(self)
        self._inner.connection_lost(error)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def _limit(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.abort)
