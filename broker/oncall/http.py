"""/metrics, /healthz and /readyz on one small server in a thread of its own.

/healthz says whether the process works at all; /readyz whether its caches are filled, naming those that lack.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Checks = Callable[[], Mapping[str, bool]]


class HttpServer:
    """Serves until `close`. `port` 0 picks a free one; `url` says which."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        ready: Checks,
        healthy: Checks,
        registries: Sequence[CollectorRegistry],
    ) -> None:
        self._registries = registries
        self._host, self._port = host, port
        self._ready, self._healthy = ready, healthy
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="http", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    def start(self) -> None:
        """Raises OSError naming the address when the port is taken."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(timeout=10)

    def close(self) -> None:
        if self._runner:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    async def _serve(self) -> None:
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", _handler(self._healthy)),
                web.get("/readyz", _handler(self._ready)),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _metrics(self, _request: web.Request) -> web.Response:
        texts = [await asyncio.to_thread(generate_latest, registry) for registry in self._registries]
        body = b"".join(texts)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _handler(checks: Checks) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        results = checks()
        failed = not all(results.values())
        text = "\n".join(f"[{'+' if ok else '-'}]{name}" for name, ok in sorted(results.items()))
        return web.Response(status=503 if failed else 200, text=f"{text}\n{'not ' if failed else ''}ok\n")

    return answer
