"""/metrics, /healthz and /readyz on one small server in its own thread.

/healthz reports whether the process works at all; /readyz whether its caches are filled, and names the
missing ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from broker.web import WebServer

Checks = Callable[[], Mapping[str, bool]]


class HttpServer(WebServer):
    """Serves until `close`. `port` 0 picks a free one; `url` contains it."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        ready: Checks,
        registries: Sequence[CollectorRegistry],
    ) -> None:
        self._registries = registries
        routes = [
            web.get("/metrics", self._metrics),
            web.get("/healthz", _handler(lambda: {"process": True})),
            web.get("/readyz", _handler(ready)),
        ]
        super().__init__(routes, host=host, port=port, name="http")

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
