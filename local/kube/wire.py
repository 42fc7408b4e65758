"""Requests and responses of a cluster: one shape for the HTTP front and callers in the process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

Obj = dict[str, Any]
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """`query` holds the last value of each parameter; header names are looked up without regard to case."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None

    def header(self, name: str) -> str:
        value = self.headers.get(name)
        if value is not None:
            return value
        lowered = name.lower()
        return next((v for k, v in self.headers.items() if k.lower() == lowered), "")


class ResponseStream(Protocol):
    """A watch: lines of JSON. Iterating blocks for the next ones; `close` from any thread ends it."""

    def __iter__(self) -> Iterator[bytes]: ...
    def __next__(self) -> bytes: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    stream: ResponseStream | None = None

    def json(self) -> Any:
        return orjson.loads(self.body)


def reply(value: object, *, status: int = 200, content_type: str = JSON) -> Response:
    return Response(status, {"Content-Type": content_type}, orjson.dumps(value))


def text(body: str, *, status: int = 200) -> Response:
    return Response(status, {"Content-Type": "text/plain; charset=utf-8"}, body.encode())
