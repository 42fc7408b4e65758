"""The way to an API server over HTTP.

The official `kubernetes` package provides configuration, credentials (tokens that are re-read, exec plugins)
and the connection pool. Its retries are off: repeating a write is the caller's decision. Streams and requests
through a proxy are urllib3's; other requests are `exchange`d over its connections.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import structlog
import urllib3
import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError
from urllib3.util import parse_url

from broker.kube.client import Reply, Request, Stream
from broker.kube.errors import from_reply, no_answer
from broker.kube.exchange import exchange

USER_AGENT = "capacity-broker"
CONNECT_TIMEOUT = 10.0
CONNECTIONS = 64  # watches hold one each; more than this wait for none, they are opened and closed

A = TypeVar("A", Reply, urllib3.BaseHTTPResponse)

log = structlog.get_logger(__name__)


class ConfigurationError(Exception):
    """No usable configuration of a cluster; the text lists the places that were searched."""


class NoClusterNamed(ConfigurationError):
    """The same where neither a kubeconfig nor a context was named: a command may do without a cluster."""


class HttpTransport:
    """An API server's URL with credentials. `load` is called again when the server answers 401."""

    def __init__(self, load: Callable[[], Configuration]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._api = _api(load())

    @classmethod
    def from_kubeconfig(cls, path: str | Path | None = None, *, context: str | None = None) -> HttpTransport:
        """A kubeconfig, or where none is named: KUBECONFIG, the pod's service account, ~/.kube/config."""
        return cls(_loader(path, context))

    @property
    def url(self) -> str:
        return str(self._api.configuration.host)

    def request(self, request: Request, *, timeout: float) -> Reply:
        return self._send(self._reply, request, timeout=timeout)

    def stream(self, request: Request, *, timeout: float) -> Stream:
        response = self._send(self._open, request, timeout=timeout)
        if response.status >= 300:
            with _answering():
                body = response.data
            raise from_reply(response.status, body, response.headers)
        return _HttpStream(response)

    def _send(self, once: Callable[..., A], request: Request, *, timeout: float) -> A:
        api = self._api
        response = once(api, request, timeout=timeout)
        if response.status != 401:
            return response
        if isinstance(response, urllib3.BaseHTTPResponse):
            response.drain_conn()
        with self._lock:
            if self._api is api:  # the first thread that is refused renews the credentials for all
                log.info("credentials refused, loading them again", server=self.url)
                try:
                    self._api = _api(self._load())
                except ConfigurationError as error:
                    raise no_answer(error) from error
        return once(self._api, request, timeout=timeout)

    def _reply(self, api: ApiClient, request: Request, *, timeout: float) -> Reply:
        if isinstance(api.rest_client.pool_manager, urllib3.ProxyManager):
            response = self._open(api, request, timeout=timeout)
            with _answering():
                return Reply(status=response.status, headers=response.headers, body=response.data)
        with _answering():
            server = _parsed(api.configuration.host)
            status, headers, body = exchange(
                _pool(api.rest_client.pool_manager, api.configuration.host),
                method=request.method,
                target=(server.path or "").rstrip("/") + _target(request),
                headers={
                    "Host": server.netloc or "",
                    "Accept-Encoding": "identity",  # without it any would do, RFC 9110 §12.5.3
                    **self._headers(api, request),
                },
                body=request.body,
                connect=min(CONNECT_TIMEOUT, timeout),
                read=timeout,
            )
        return Reply(status=status, headers=headers, body=body)

    def _open(self, api: ApiClient, request: Request, *, timeout: float) -> urllib3.BaseHTTPResponse:
        with _answering():
            response: urllib3.BaseHTTPResponse = api.rest_client.pool_manager.request(
                request.method,
                api.configuration.host + _target(request),
                body=request.body,
                headers=self._headers(api, request),
                timeout=urllib3.Timeout(connect=min(CONNECT_TIMEOUT, timeout), read=timeout),
                preload_content=False,
                retries=False,
                redirect=False,
            )
        return response

    def _headers(self, api: ApiClient, request: Request) -> dict[str, str]:
        headers = {"User-Agent": USER_AGENT, **request.headers}
        with self._lock:  # the package renews expired tokens here, and is not thread-safe
            api.update_params_for_auth(headers, [], ["BearerToken"], request.path, request.method, None)
        return headers


_parsed = lru_cache(maxsize=8)(parse_url)


@lru_cache(maxsize=8)
def _pool(manager: urllib3.PoolManager, host: str) -> urllib3.HTTPConnectionPool:
    return manager.connection_from_url(host)


@contextmanager
def _answering() -> Iterator[None]:
    """Reports failures on the way to a response, and of credentials, as a missing response."""
    try:
        yield
    except (HTTPError, OSError, ApiException, config.ConfigException) as error:
        raise no_answer(error) from error


def _target(request: Request) -> str:
    query = urlencode(request.query)
    return request.path + ("?" + query if query else "")


class _HttpStream:
    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        try:
            # Without chunked encoding `stream` would wait until a whole chunk size has come.
            chunks = self._response.read_chunked() if self._response.chunked else self._pieces()
            for chunk in chunks:
                if self._closed.is_set():
                    return
                yield chunk
        except (HTTPError, OSError, ValueError, AttributeError) as error:
            # A shut socket or a closed response shows as any of these; without `close` they are real.
            if not self._closed.is_set():
                if isinstance(error, HTTPError | OSError):
                    raise no_answer(error) from error
                raise
        finally:
            self._response.close()

    def _pieces(self) -> Iterator[bytes]:
        while piece := self._response.read1():
            yield piece

    def close(self) -> None:
        self._closed.set()
        try:
            self._response.shutdown()  # wakes a thread that reads
        except (AttributeError, RuntimeError, ValueError, OSError):
            return  # it has ended by itself


def _api(configuration: Configuration) -> ApiClient:
    configuration.retries = False
    configuration.keep_alive = True
    configuration.connection_pool_maxsize = CONNECTIONS
    return ApiClient(configuration)


def _loader(path: str | Path | None, context: str | None) -> Callable[[], Configuration]:
    named = str(path or os.environ.get("KUBECONFIG") or "")
    error = ConfigurationError if named or context else NoClusterNamed
    default_file = Path("~/.kube/config").expanduser()
    if not named and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return partial(_load, "the pod's service account", error, config.load_incluster_config)
    if not named and not default_file.exists():
        raise error(
            f"none is configured: KUBECONFIG is not set, this is not a pod, and there is no {default_file}; "
            "name a kubeconfig with --kubeconfig"
        )
    file = named or str(default_file)
    if not any(Path(path).expanduser().exists() for path in file.split(os.pathsep)):
        raise error(f"kubeconfig {file!r}: there is no such file")
    read = partial(config.load_kube_config, config_file=file, context=context or None, persist_config=False)
    return partial(_load, f"kubeconfig {file!r}" + (f", context {context!r}" if context else ""), error, read)


def _load(where: str, failed: type[ConfigurationError], read: Callable[..., None]) -> Configuration:
    configuration = Configuration()
    try:
        read(client_configuration=configuration)
    except (config.ConfigException, OSError, ValueError, yaml.YAMLError) as error:
        raise failed(f"{where}: {error}") from error
    except (AttributeError, LookupError, TypeError) as error:
        # The package reads the content without checking its shape.
        raise failed(f"{where}: its content is not a kubeconfig") from error
    return configuration
