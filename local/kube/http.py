"""The HTTP front: an aiohttp server in its own thread over `Cluster.handle`.

Plain HTTP without authentication, on loopback by default.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from aiohttp import web

from local.kube.cluster import Cluster
from local.kube.watch import WatchStream
from local.kube.wire import ApiRequest, Response

_STOP_SECONDS = 5.0
_THREADS = 64  # a request that waits for a webhook, which calls this server in turn, holds two


class ApiServer:
    """Serves a cluster on a port (0 takes a free one) from `start` to `stop`."""

    def __init__(self, cluster: Cluster, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.cluster = cluster
        self._host, self._port = host, port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = asyncio.Event()
        self._failure: OSError | None = None

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    def kubeconfig(self, *, name: str = "embedded") -> str:
        """A kubeconfig that points kubectl and any client here."""
        return (
            "apiVersion: v1\n"
            "kind: Config\n"
            f"clusters: [{{name: {name}, cluster: {{server: '{self.url}'}}}}]\n"
            f"users: [{{name: {name}, user: {{}}}}]\n"
            f"contexts: [{{name: {name}, context: {{cluster: {name}, user: {name}, namespace: default}}}}]\n"
            f"current-context: {name}\n"
        )

    def start(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name="api-server", daemon=True)
        self._thread.start()
        started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        if self._loop is None or self._thread is None:
            return
        self.cluster.faults.drop_watches()
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_STOP_SECONDS)
        self._loop = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, started: threading.Event) -> None:
        asyncio.run(self._serve(started))

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_default_executor(ThreadPoolExecutor(_THREADS))
        runner = web.ServerRunner(web.Server(self._answer), handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._host, self._port, reuse_address=True)
            await site.start()
            addresses = runner.addresses
            self._port = addresses[0][1]
        except OSError as error:
            self._failure = error
            self._stopping.set()
        started.set()
        await self._stopping.wait()
        await runner.cleanup()

    async def _answer(self, incoming: web.BaseRequest) -> web.StreamResponse:
        body = await incoming.content.read() if incoming.can_read_body else None
        query = dict(incoming.query.items())
        request = ApiRequest(incoming.method, incoming.path, query, incoming.headers, body)
        # A request that waits must not delay other requests.
        slow = self.cluster.slow
        response = (
            await asyncio.to_thread(self.cluster.handle, request) if slow else self.cluster.handle(request)
        )
        if response.stream is not None:
            return await self._stream(incoming, response)
        return web.Response(status=response.status, headers=dict(response.headers), body=response.body)

    async def _stream(self, incoming: web.BaseRequest, response: Response) -> web.StreamResponse:
        stream = response.stream
        assert isinstance(stream, WatchStream)
        out = web.StreamResponse(status=response.status, headers=dict(response.headers))
        loop, ready, here = asyncio.get_running_loop(), asyncio.Event(), threading.get_ident()

        def wake() -> None:
            if threading.get_ident() == here:
                ready.set()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(ready.set)

        stream.on_ready(wake)
        try:
            await out.prepare(incoming)
            while (chunk := stream.poll()) is not None:
                if chunk:
                    await out.write(chunk)
                    continue
                try:
                    async with asyncio.timeout(max(stream.idle(), 0.001)):
                        await ready.wait()
                except TimeoutError:
                    continue
                finally:
                    ready.clear()
            await out.write_eof()
        except ConnectionError:
            return out  # the watcher went away
        finally:
            stream.close()
        return out
