"""One API server as a test sees it: a request in one line, a watch as an iterator.

Invariant: a response is passed on unchanged: no retries, no raised statuses, no models.
"""

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

import orjson
import urllib3

from tests.controlplane.server import kubeconfig

TIMEOUT = urllib3.Timeout(connect=60, read=120)

Json = Any
Query = Mapping[str, str | int | bool]


class Reply(NamedTuple):
    status: int
    body: Json


class Answer(NamedTuple):
    """A reply with the headers that carry meaning: the content type and the warnings."""

    status: int
    body: Json
    kind: str
    warnings: tuple[str, ...]


class Watch:
    """One watch stream; `status` is the answer's, `until` and `rest` give its events in order."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self.status = response.status
        self._response = response
        self._lines = self._split()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        # A generator left to the garbage collector would give its connection back inside the pool's own lock.
        self._lines.close()
        self._response.close()

    def _split(self) -> Generator[bytes]:
        rest = b""
        for chunk in self._response.stream(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
        if rest:
            yield rest

    def next(self) -> Json:
        """The next event; None when the server has ended the stream."""
        line = next(self._lines, None)
        return None if line is None else orjson.loads(line)

    def until(self, last: Callable[[Json], bool]) -> list[Json]:
        """Every event up to and with the first that is `last`."""
        seen = []
        while (event := self.next()) is not None:
            seen.append(event)
            if last(event):
                return seen
        raise AssertionError(f"the watch ended before the event that was waited for: {seen}")

    def take(self, count: int) -> list[Json]:
        seen = [event for _ in range(count) if (event := self.next()) is not None]
        assert len(seen) == count, f"the watch ended after {len(seen)} of {count} events: {seen}"
        return seen

    def rest(self) -> list[Json]:
        return list(iter(self.next, None))


@dataclass(frozen=True, kw_only=True)
class Api:
    """One API server: its address, its user, and a request in one line."""

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    token: str = ""
    ca: Path | None = None
    compact: Callable[[], None]
    wipe: Callable[[], None] | None = None  # where a test may empty the store itself
    pool: urllib3.PoolManager

    def kubeconfig(self) -> str:
        return kubeconfig(url=self.url, token=self.token, ca=self.ca)

    def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """The status and the decoded body; text stays text. `bytes` are sent as they are."""
        answer = self.send(method, path, query, body, headers)
        return Reply(answer.status, answer.body)

    def send(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        response = self._send(method, path, query, body, headers, stream=False, wait=TIMEOUT)
        kind = response.headers.get("Content-Type", "")
        is_json = response.data.startswith((b"{", b"["))  # discovery of OpenAPI is JSON called text/plain
        decoded = orjson.loads(response.data) if is_json else response.data.decode()
        return Answer(response.status, decoded, kind, tuple(response.headers.getlist("Warning")))

    def install(self, definition: Json) -> None:
        """Creates or replaces a CustomResourceDefinition and returns when its objects are served."""
        collection = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        path = f"{collection}/{definition['metadata']['name']}"
        stored = self.request("GET", path)
        if stored.status == 404:
            reply = self.request("POST", collection, body=definition)
        else:
            held = {"resourceVersion": stored.body["metadata"]["resourceVersion"], **definition["metadata"]}
            reply = self.request("PUT", path, body={**definition, "metadata": held})
        assert reply.status in (200, 201), reply.body
        spec = definition["spec"]
        paths = [
            f"/apis/{spec['group']}/{v['name']}/{spec['names']['plural']}"
            for v in spec["versions"]
            if v["served"]
        ]
        deadline = time.monotonic() + 120
        while not all(self.request("GET", path).status == 200 for path in paths):
            assert time.monotonic() < deadline, f"{definition['metadata']['name']} is not served after 120 s"
            time.sleep(0.01)

    def watch(
        self,
        path: str,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        patience: float = 120,
    ) -> Watch:
        """Opens a watch; reading it fails if the server sends nothing for `patience` seconds."""
        wait = urllib3.Timeout(connect=60, read=patience)
        query = {"watch": "true", **(query or {})}
        return Watch(self._send("GET", path, query, None, headers, stream=True, wait=wait))

    def _send(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: Json,
        headers: Mapping[str, str] | None,
        *,
        stream: bool,
        wait: urllib3.Timeout,
    ) -> urllib3.BaseHTTPResponse:
        text = {
            key: str(value).lower() if isinstance(value, bool) else value
            for key, value in (query or {}).items()
        }
        url = self.url + path + ("?" + urlencode(text) if text else "")
        data = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        sent = {"Content-Type": "application/json"} if data is not None else {}
        return self.pool.request(
            method,
            url,
            body=data,
            headers={**sent, **self.headers, **(headers or {})},
            preload_content=not stream,
            timeout=wait,
            retries=False,
        )
