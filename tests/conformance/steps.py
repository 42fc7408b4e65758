"""The requests of a sequence, written once for two servers.

Values known only to a server (a uid, a resourceVersion, the current object) are references; each server's
own `History` resolves them just before the request is sent. So a sequence is plain data: it can be
printed, sent again, and shortened.
"""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@dataclass(frozen=True)
class Version:
    """The resourceVersion that an object had `age` versions ago."""

    target: str
    age: int = 0

    def __str__(self) -> str:
        return f"<version of {self.target}, {self.age} ago>"


@dataclass(frozen=True)
class Uid:
    target: str

    def __str__(self) -> str:
        return f"<uid of {self.target}>"


@dataclass(frozen=True)
class Live:
    """The object as last seen, with a change merged into it (None removes)."""

    target: str
    change: Any
    age: int = 0

    def __str__(self) -> str:
        return f"<{self.target}, {self.age} versions ago> + {json.dumps(self.change, default=str)}"


@dataclass(frozen=True)
class Token:
    """The continue token of the last list."""

    def __str__(self) -> str:
        return "<token of the last page>"


@dataclass(frozen=True, kw_only=True)
class Step:
    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    content: str = JSON
    accept: str = JSON

    def __str__(self) -> str:
        query = "&".join(f"{key}={value}" for key, value in self.query.items())
        line = f"{self.method} {self.path}" + (f"?{query}" if query else "")
        line += f"  [{self.content}]" if self.content != JSON else ""
        line += "  [as Table]" if self.accept == TABLE else ""
        if self.body is None:
            return line
        body = self.body if isinstance(self.body, str) else json.dumps(self.body, default=str)
        return f"{line}\n    {body}"


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A watch from the list's version at the start: opened `live` before the first request or after the last.

    It is read until `last` shows, an object that its selectors keep, created after the last request.
    """

    path: str
    last: Any
    query: Mapping[str, Any] = field(default_factory=dict)
    live: bool = False

    def __str__(self) -> str:
        query = "&".join(f"{key}={value}" for key, value in self.query.items())
        return f"WATCH {self.path}?{query} ({'live' if self.live else 'replayed'})"


@dataclass(frozen=True, kw_only=True)
class Sequence:
    seed: int
    steps: tuple[Step, ...]
    streams: tuple[Stream, ...]


class History:
    """One server's responses for each object, by the object's path."""

    def __init__(self) -> None:
        self._seen: dict[str, list[dict[str, Any]]] = {}
        self._token = ""

    def record(self, step: Step, status: int, body: Any) -> None:
        if status not in (200, 201) or not isinstance(body, dict):
            return
        meta = body.get("metadata") or {}
        if "items" in body:
            self._token = meta.get("continue", "")
        elif "uid" in meta and "dryRun" not in step.query and step.accept == JSON:
            target = (
                f"{step.path}/{meta['name']}"
                if step.method == "POST"
                else _object_path(step.path, meta["name"])
            )
            versions = self._seen.setdefault(target, [])
            if not versions or versions[-1]["metadata"]["resourceVersion"] != meta["resourceVersion"]:
                versions.append(body)

    def resolve(self, value: Any) -> Any:
        resolved = _RESOLVE.get(type(value))
        if resolved is not None:
            return resolved(self, value)
        if isinstance(value, dict):
            return {key: self.resolve(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item) for item in value]
        return value

    def _at(self, target: str, age: int) -> dict[str, Any] | None:
        versions = self._seen.get(target, [])
        return versions[max(len(versions) - 1 - age, 0)] if versions else None

    def version(self, reference: Version) -> str:
        seen = self._at(reference.target, reference.age)
        return str(seen["metadata"]["resourceVersion"]) if seen else "1"

    def uid(self, reference: Uid) -> str:
        seen = self._at(reference.target, 0)
        return str(seen["metadata"]["uid"]) if seen else "00000000-0000-0000-0000-000000000000"

    def live(self, reference: Live) -> Any:
        seen = self._at(reference.target, reference.age)
        name = reference.target.rpartition("/")[2]
        return merged(
            copy.deepcopy(seen) if seen else {"metadata": {"name": name}}, self.resolve(reference.change)
        )

    def token(self, reference: Token) -> str:
        return self._token


_RESOLVE: dict[type, Callable[[History, Any], Any]] = {
    Version: History.version,
    Uid: History.uid,
    Live: History.live,
    Token: History.token,
}


def _object_path(path: str, name: str) -> str:
    """The path without its subresource."""
    head, _, last = path.rpartition("/")
    return path if last == name else head


def merged(base: Any, change: Any) -> Any:
    """A JSON merge (RFC 7386)."""
    if not isinstance(change, dict):
        return change
    out = dict(base) if isinstance(base, dict) else {}
    for key, value in change.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), value)
    return out
