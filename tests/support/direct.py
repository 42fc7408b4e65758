"""A local AWS in the tests' own process answers the SDK's clients without a socket and a thread a call.

Invariant: the same application answers as on the socket, with the same status, headers and bytes. A reply
that a fault drops is the SDK's error for a closed connection. The SDK takes a response from a handler of its
`before-send` event (botocore, `Endpoint._do_get_response`), and sends nothing then.

The socket itself is tested by tests/aws/local. botocore gives each session of a process the same handlers;
this one leaves requests to other servers alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.handlers import BUILTIN_HANDLERS

from local.aws import LocalAws
from local.aws.control import Control

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


class _Raw:
    """The body as botocore reads it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        yield self._body


class Direct:
    """Answers requests to `endpoint`; other requests go to the network."""

    def __init__(self, endpoint: str, application: WSGIApplication) -> None:
        self._endpoint = f"{endpoint}/"
        self._application = application

    def __call__(self, request: AWSPreparedRequest) -> AWSResponse | None:
        if not str(request.url).startswith(self._endpoint):
            return None
        response: dict[str, Any] = {}

        def start(status: str, headers: list[tuple[str, str]], _: object = None) -> Any:
            response.update(status=int(status.split(" ", 1)[0]), headers=headers)

        body = b"".join(_closed(self._application(_environ(request), start)))
        return AWSResponse(
            request.url, response["status"], HTTPHeaders.from_pairs(response["headers"]), _Raw(body)
        )


def _closed(parts: Iterable[bytes]) -> list[bytes]:
    try:
        return list(parts)
    finally:
        if close := getattr(parts, "close", None):
            close()


def _environ(request: AWSPreparedRequest) -> dict[str, Any]:
    """PEP 3333's, as werkzeug makes it of the same request."""
    url = urlsplit(str(request.url))
    sent: Any = request.body or b""
    body = sent.encode() if isinstance(sent, str) else bytes(sent)
    raw = url.path + (f"?{url.query}" if url.query else "")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote(url.path, "latin-1"),
        "QUERY_STRING": url.query,
        "RAW_URI": raw,
        "REMOTE_ADDR": url.hostname,
        "SERVER_NAME": url.hostname,
        "SERVER_PORT": str(url.port),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": url.netloc,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": url.scheme,
        "wsgi.input": BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    headers: Any = request.headers
    for name, value in headers.items():
        key = name.upper().replace("-", "_")
        if key not in ("CONTENT_LENGTH", "HOST"):
            text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
            environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = text
    return environ


answering: dict[LocalAws, Callable[[AWSPreparedRequest], AWSResponse | None]] = {}


def _answer(request: AWSPreparedRequest, **_: object) -> AWSResponse | None:
    answers = (direct(request) for direct in answering.values())
    return next((answer for answer in answers if answer is not None), None)


BUILTIN_HANDLERS.append(("before-send", _answer))


@contextmanager
def local_aws_here() -> Iterator[LocalAws]:
    """One server, in reach of this process and of others."""
    with LocalAws() as server:
        server.control = Control()
        answering[server] = Direct(server.endpoint, server.application)
        try:
            yield server
        finally:
            del answering[server]
