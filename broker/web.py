"""A small HTTP server in a thread of its own: metrics and probes are served by it, and the webhook."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterable

from aiohttp import web

STOPS = 3.0  # seconds for requests that are under way at the end


class WebServer:
    """Serves `routes` from `start` to `close`. `port` 0 picks a free one; `url` says which."""

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
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self._host}:{self._port}"

    def start(self) -> None:
        """Raises OSError naming the address when the port is taken."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(timeout=10)

    def close(self) -> None:
        if self._runner:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    def between_requests(self, does: Callable[[], None]) -> None:
        """Runs `does` in the server's own thread, where no handshake is under way."""

        async def run() -> None:
            does()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(timeout=10)

    async def _serve(self) -> None:
        app = web.Application(client_max_size=self._largest)
        app.add_routes(self._routes)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOPS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls)
        await site.start()
        self._port = self._runner.addresses[0][1]
