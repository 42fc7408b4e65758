"""How results are written: as objects, as Tables for people, or as their metadata only.

Rule: https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from .options import Call
from .resources import Resource
from .store import Item
from .wire import JSON, Obj

_META = "meta.k8s.io/v1"


class Rendering:
    """Objects as they are: the bytes that the store keeps go out unchanged."""

    content_type = JSON

    def __init__(self, resource: Resource) -> None:
        self.resource = resource

    def one(self, item: Item) -> bytes:
        return item.wire

    def event(self, item: Item) -> bytes:
        return item.wire

    def many(self, items: Sequence[Item], meta: Obj) -> bytes:
        kind = self.resource.list_kind
        head = orjson.dumps({"kind": kind, "apiVersion": self.resource.api_version, "metadata": meta})
        return head[:-1] + b',"items":[' + b",".join([item.wire for item in items]) + b"]}"

    def bookmark(self, revision: int, *, initial: bool) -> bytes:
        return b'{"type":"BOOKMARK","object":' + orjson.dumps(self.marker(revision, initial=initial)) + b"}\n"

    def marker(self, revision: int, *, initial: bool) -> Obj:
        meta: Obj = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        return {"kind": self.resource.kind, "apiVersion": self.resource.api_version, "metadata": meta}


def partial(obj: Obj) -> Obj:
    return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": obj["metadata"]}


class Partial(Rendering):
    content_type = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

    def one(self, item: Item) -> bytes:
        return orjson.dumps(partial(item.obj))

    event = one

    def many(self, items: Sequence[Item], meta: Obj) -> bytes:
        rows = [partial(item.obj) for item in items]
        return orjson.dumps(
            {"kind": "PartialObjectMetadataList", "apiVersion": _META, "metadata": meta, "items": rows}
        )


@dataclass(frozen=True, slots=True)
class Accepted:
    """One media type of an Accept header with what Kubernetes reads in it."""

    form: str
    group: str
    version: str


def accepted(header: str) -> list[Accepted]:
    out = []
    for clause in header.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        if media not in (JSON, "*/*", "application/*", ""):
            continue
        values: dict[str, Any] = dict(part.split("=", 1) for part in parameters if "=" in part)
        out.append(Accepted(values.get("as", ""), values.get("g", ""), values.get("v", "")))
    return out


def rendering(resource: Resource, call: Call) -> Rendering:
    for wanted in accepted(call.request.header("Accept")):
        if wanted.group == "meta.k8s.io" and wanted.form.startswith("PartialObjectMetadata"):
            return Partial(resource)
    return Rendering(resource)
