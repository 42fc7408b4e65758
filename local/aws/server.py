"""Local AWS as an HTTP server: in a thread (`LocalAws`) or as a program (`python -m local.aws`).

One process has one AWS: two servers in it, or a server and `mock_aws`, show the same resources.
"""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
import threading
import urllib.request
from functools import cache
from types import TracebackType

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from local.aws.assembly import install
from local.aws.control import Control

LOOPBACK = "127.0.0.1"


class LocalAws:
    """A running server. `endpoint` is the URL for every AWS service, `control` the knobs.

    `application` answers a client in this process without the socket.
    """

    def __init__(self, *, host: str = LOOPBACK, port: int = 0):
        install()
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # one line for each request would add nothing
        listener = socket.create_server((host, port), backlog=128)
        bound = listener.getsockname()[1]
        self.application = application = DomainDispatcherApplication(create_backend_app)
        # moto lists its own folder to answer this, for each request.
        application.get_backend_for_host = cache(application.get_backend_for_host)  # type: ignore[method-assign]
        self._server = make_server(
            host,
            bound,
            application,
            threaded=True,
            request_handler=MotoRequestHandler,
            fd=listener.detach(),
        )
        shown = LOOPBACK if host in ("0.0.0.0", "") else host
        self.endpoint = f"http://{shown}:{bound}"
        self.control = Control(self.endpoint)
        self._thread = threading.Thread(target=self._server.serve_forever, name="local-aws", daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Drop every resource and put every knob back."""
        request = urllib.request.Request(f"{self.endpoint}/moto-api/reset", data=b"", method="POST")
        urllib.request.urlopen(request, timeout=300).close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> LocalAws:
        """A new account: moto keeps its state for the whole process, not for a server."""
        self.reset()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m local.aws", description=__doc__)
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=5000, help="port; 0 takes a free one (default: 5000)")
    options = parser.parse_args(argv)
    try:
        aws = LocalAws(host=options.host, port=options.port)
    except OSError as taken:
        print(f"--port {options.port}: {taken}; give another one, or 0 for any", file=sys.stderr)  # noqa: T201
        return 1
    print(f"Local AWS: export AWS_ENDPOINT_URL={aws.endpoint}", flush=True)  # noqa: T201
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
    aws.close()
    return 0
