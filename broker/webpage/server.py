"""The web page on a server of its own: server-rendered and read-only.

Invariant: a request reads caches and the history's database and writes nothing. Without the database, or
without leadership, a page reports that and shows the rest. Each request is authenticated and answered within
the rights of its person (broker.webpage.access), unless only this machine reaches the page. The
Content-Security-Policy lets a browser run the scripts of this server only, and none inside of a page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Any, Final

import structlog
from aiohttp import hdrs, web
from sqlalchemy.exc import SQLAlchemyError

from broker.history.recorder import HistoryRecorder
from broker.kube.clock import Clock
from broker.web import WebServer
from broker.webpage import pages
from broker.webpage.access import AccessDenied, PageAccess, Person
from broker.webpage.details import NO_DETAILS, Details, visible_details
from broker.webpage.documentation import document, picture
from broker.webpage.live import Live, LiveState
from broker.webpage.pages import PageNotFound, PageRequest
from broker.webpage.render import environment
from broker.webpage.scope import NOTHING, VisibleHistory, visible

STATIC: Final[Mapping[str, str]] = {
    "htmx.min.js": "text/javascript",
    "page.js": "text/javascript",
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
}
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
# A stream ends before the server's limit for an answer; the browser opens the next one.
STREAM: Final = 25.0
POLL: Final = 0.5
OFTEN: Final = 2.0  # seconds between two changes that are sent to a browser
STEADY: Final = 10.0  # seconds after which a page is read again without a new entry
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

_log = structlog.get_logger("web")
_Build = Callable[[PageRequest], Mapping[str, Any]]
# By path: the template, and the function of its values.
PAGES: Final[Mapping[str, tuple[str, Callable[[PageRequest], Mapping[str, Any]]]]] = {
    "/": ("overview.html", pages.overview),
    "/record": ("record.html", pages.record),
    "/shortages": ("shortages.html", pages.shortages),
    "/reservations": ("reservations.html", pages.reservations),
    "/reservations/{namespace}/{name}": ("reservation.html", pages.reservation),
    "/cohorts": ("cohorts.html", pages.cohorts),
    "/rooms": ("rooms.html", pages.rooms),
    "/waiting": ("waiting.html", pages.waiting),
    "/advice": ("advice.html", pages.advice),
    "/claims/{name}": ("claim.html", pages.claim),
    "/classes/{name}": ("owner.html", pages.node_class),
    "/pools/{name}": ("owner.html", pages.node_pool),
    "/odcrs/{name}": ("odcr.html", pages.odcr),
    "/nodes": ("nodes.html", pages.nodes),
    "/pods/{namespace}/{name}": ("pod.html", pages.pod),
    "/namespaces/{name}": ("namespace.html", pages.namespace),
}


class WebPage:
    """Serves from `start` to `close`; `url` is its address."""

    def __init__(
        self,
        history: HistoryRecorder,
        live: Live,
        access: PageAccess,
        *,
        clock: Clock,
        host: str,
        port: int,
        cluster: str = "",
        details: Callable[[], Details] = lambda: NO_DETAILS,
    ) -> None:
        self._history, self._live, self._access, self._clock = history, live, access, clock
        self._cluster, self._details, self._closing = cluster, details, False
        self._templates = environment()
        static = files("broker.webpage") / "static"
        self._static = {name: (static / name).read_bytes() for name in STATIC}
        routes: list[web.AbstractRouteDef] = [web.get(r"/docs/{path:.+\.png}", self._picture)]
        routes.append(web.get("/docs/{path:.*}", self._document))
        routes += [web.get(path, self._page(template, build)) for path, (template, build) in PAGES.items()]
        routes += [web.get("/static/{name}", self._file), web.get("/changes", self._changes)]
        routes.append(web.get("/{path:.*}", self._page("message.html", no_page)))  # after all others
        self._server = WebServer(routes, host=host, port=port, name="web")

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> None:
        """Raises OSError naming the address when the port is taken."""
        self._server.start()

    def close(self) -> None:
        self._closing = True  # open streams end
        self._server.close()

    def _page(self, template: str, build: _Build) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            self._check_host(request)
            return await asyncio.to_thread(self._answer, request, template, build)

        return answer

    def _answer(self, request: web.Request, template: str, build: _Build) -> web.Response:
        try:
            return self._render(request, self._access.person(request), template, build)
        except AccessDenied as error:
            return _denied(error)

    def _render(
        self, request: web.Request, person: Person | None, template: str, build: _Build
    ) -> web.Response:
        now = self._clock.now()
        live = self._live()
        status, values, shared = 200, dict[str, Any](), dict[str, Any]()
        try:
            scope = self._access.scope(person, {*self._namespaces(person, live), *_namespace_of(request)})
            live = visible(live, scope) if live is not None else None
            shared = {"live": live, "scope": scope, "now": now}
            page_request = PageRequest(
                path=request.path,
                query=dict(request.query),
                match=dict(request.match_info),
                store=VisibleHistory(self._history.store, scope),
                scope=scope,
                live=live,
                forecasts=self._history.forecasts() if scope.cluster else {},
                turnovers=self._history.turnovers() if scope.cluster else {},
                now=now,
                details=visible_details(self._details(), scope),
            )
            values = dict(build(page_request))
        except PageNotFound as error:
            template, status, values = "message.html", 404, {"title": "Not found", "text": str(error)}
        except SQLAlchemyError as error:
            _log.warning("history cannot be read", error=str(error).partition("\n")[0])
            text = "The history's database cannot be read now. Launches go on without it."
            template, status, values = "message.html", 503, {"title": "History unavailable", "text": text}
        return self._html(request, template, shared | {"person": person} | values, status=status)

    def _html(
        self, request: web.Request, template: str, values: Mapping[str, Any], *, status: int
    ) -> web.Response:
        shared: dict[str, Any] = {"live": None, "scope": NOTHING, "person": None, "now": self._clock.now()}
        shared |= {"path": request.path, "here": str(request.rel_url), "cluster": self._cluster}
        text = self._templates.get_template(template).render({**shared, **values})
        return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)

    async def _document(self, request: web.Request) -> web.Response:
        """A page of the documentation, such as a runbook: the same for everybody, and there while neither the
        API server nor EC2 answers.
        """
        self._check_host(request)
        return await asyncio.to_thread(self._answer_document, request)

    def _answer_document(self, request: web.Request) -> web.Response:
        shown = document(request.match_info["path"])
        if shown is None:
            text = f"The documentation has no page {request.path}."
            missing = {"title": "Not found", "text": text, "cluster": ""}
            return self._html(request, "message.html", missing, status=404)
        return self._html(request, "document.html", {**shown, "cluster": ""}, status=200)

    def _namespaces(self, person: Person | None, live: LiveState | None) -> set[str]:
        """All that the page could show to the person."""
        if person is None:
            return set()
        namespaces = set[str]()
        if live is not None:
            namespaces |= {row.namespace for row in live.reservations}
            namespaces |= {row.namespace for row in live.waiters} | {row.namespace for row in live.rooms}
        with suppress(SQLAlchemyError):  # a page reports it when it reads its rows
            namespaces |= {*self._history.store.namespaces()}
        return namespaces

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in STATIC:
            raise web.HTTPNotFound(headers=HEADERS)
        headers = {**HEADERS, "Cache-Control": "public, max-age=3600"}
        return web.Response(body=self._static[name], content_type=STATIC[name], headers=headers)

    async def _picture(self, request: web.Request) -> web.Response:
        body = picture(request.match_info["path"])
        if body is None:
            raise web.HTTPNotFound(headers=HEADERS)
        return web.Response(body=body, content_type="image/png", headers=HEADERS)

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: one after each change of the history, and now and then without."""
        self._check_host(request)
        try:
            await asyncio.to_thread(self._access.person, request)
        except AccessDenied as error:
            return _denied(error)
        response = web.StreamResponse(headers={**HEADERS, hdrs.CONTENT_TYPE: "text/event-stream"})
        with suppress(ConnectionError):  # the browser went to another page
            await response.prepare(request)
            await self._stream(response)
        return response

    async def _stream(self, response: web.StreamResponse) -> None:
        await response.write(b"retry: 1000\n\n")
        seen, sent, left = self._history.version, 0.0, int(STREAM / POLL)
        while left > 0 and not self._closing:
            await asyncio.sleep(POLL)
            sent, left = sent + POLL, left - 1
            version = self._history.version
            if (version != seen and sent >= OFTEN) or sent >= STEADY:
                await response.write(b"event: changed\ndata: \n\n")
                seen, sent = version, 0.0

    def _check_host(self, request: web.Request) -> None:
        """Without authentication, a page of another site must not reach this one through a name that it
        points at this machine."""
        if self._access.rules.required:
            return
        if request.host.removesuffix(f":{request.url.port}") not in _LOCAL:
            raise web.HTTPForbidden(text=f"{request.host} is not a name of this machine", headers=HEADERS)


def _namespace_of(request: web.Request) -> set[str]:
    """The namespace that a page is about: pods may run where nothing else is known of."""
    match = request.match_info
    key = "name" if request.path.startswith("/namespaces/") else "namespace"
    return {match[key]} if key in match else set()


def _denied(error: AccessDenied) -> web.Response:
    _log.info("page refused", status=error.status, why=error.text)
    more = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    return web.Response(text=f"{error.text}\n", status=error.status, headers={**HEADERS, **more})


def no_page(request: PageRequest) -> Mapping[str, Any]:
    """Raises PageNotFound for a path without a page."""
    raise PageNotFound(f"This server has no page {request.path}.")
