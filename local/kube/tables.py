"""Writes results: as objects, as Tables for people, or as their metadata only.

Rule: https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
Objects of built-in kinds in a list do not repeat their kind; custom ones do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson

from local.kube.columns import Cells, Columns, definition, of
from local.kube.durations import age
from local.kube.errors import StatusError, bad_request
from local.kube.jsonpath import compiled
from local.kube.options import ApiCall
from local.kube.resources import Resource
from local.kube.store import Item
from local.kube.times import parse
from local.kube.wire import JSON, Obj

_META = "meta.k8s.io/v1"
_INCLUDE = ("", "Metadata", "None", "Object")


class Rendering:
    """Objects as they are: the bytes that the store keeps go out unchanged."""

    content_type = JSON

    def __init__(self, resource: Resource, *, custom: bool) -> None:
        self.resource = resource
        # The fields that the stored bytes of a built-in kind leave out.
        head = orjson.dumps({"kind": resource.kind, "apiVersion": resource.api_version})
        self._head = b"" if custom else head[:-1] + b","
        self._custom = custom

    def one(self, item: Item) -> bytes:
        return self._head + item.wire[1:] if self._head else item.wire

    def event(self, item: Item) -> bytes:
        return self.one(item)

    def many(self, items: Sequence[Item], meta: Obj) -> bytes:
        if self._custom:
            meta = {"continue": "", **meta}
        head = orjson.dumps(
            {"kind": self.resource.list_kind, "apiVersion": self.resource.api_version, "metadata": meta}
        )
        return head[:-1] + b',"items":[' + b",".join([item.wire for item in items]) + b"]}"

    def bookmark(self, revision: int, *, initial: bool) -> bytes:
        return self._bookmark(self._marker(revision, initial=initial))

    def _bookmark(self, obj: Obj) -> bytes:
        return b'{"type":"BOOKMARK","object":' + orjson.dumps(obj) + b"}\n"

    def _marker(self, revision: int, *, initial: bool) -> Obj:
        meta: Obj = {"resourceVersion": str(revision)}
        if initial:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        return {"kind": self.resource.kind, "apiVersion": self.resource.api_version, "metadata": meta}


def partial(obj: Obj) -> Obj:
    return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": obj["metadata"]}


class Partial(Rendering):
    def one(self, item: Item) -> bytes:
        return orjson.dumps(partial(item.obj))

    def many(self, items: Sequence[Item], meta: Obj) -> bytes:
        kind = {"kind": "PartialObjectMetadataList", "apiVersion": _META}
        return orjson.dumps({**kind, "metadata": meta, "items": [partial(item.obj) for item in items]})

    def bookmark(self, revision: int, *, initial: bool) -> bytes:
        return self._bookmark(partial(self._marker(revision, initial=initial)))


# Clients show these rows dimmed: pods that have ended.
_OVER = {
    "Succeeded": {"reason": "Succeeded", "message": "The pod has completed successfully."},
    "Failed": {"reason": "Failed", "message": "The pod failed."},
}


class Table(Rendering):
    """Rows of cells. A watch sends the columns once, with its first event."""

    def __init__(self, resource: Resource, *, include: str, now: float) -> None:
        super().__init__(resource, custom=resource.custom is not None)
        self._columns, self._include, self._now = columns(resource), include, now
        self._columns_sent = False

    def one(self, item: Item) -> bytes:
        meta = {"resourceVersion": item.obj["metadata"].get("resourceVersion", "")}
        return orjson.dumps(self._table([item.obj], meta))

    def event(self, item: Item) -> bytes:
        meta = {"resourceVersion": item.obj["metadata"].get("resourceVersion", "")}
        table = self._table([item.obj], meta)
        if self._columns_sent:
            table["columnDefinitions"] = None
        self._columns_sent = True
        return orjson.dumps(table)

    def many(self, items: Sequence[Item], meta: Obj) -> bytes:
        return orjson.dumps(self._table([item.obj for item in items], meta))

    def bookmark(self, revision: int, *, initial: bool) -> bytes:
        marker = self._marker(revision, initial=initial)
        return self._bookmark(
            {**self._table([], {"resourceVersion": str(revision)}), "rows": [self._row(marker)]}
        )

    def _table(self, objects: list[Obj], meta: Obj) -> Obj:
        rows = [self._row(obj) for obj in objects]
        head = {"kind": "Table", "apiVersion": _META, "metadata": meta}
        return {**head, "columnDefinitions": list(self._columns.definitions), "rows": rows}

    def _row(self, obj: Obj) -> Obj:
        shown = None if self._include == "None" else obj if self._include == "Object" else partial(obj)
        cells = (
            self._columns.cells(self.resource.store(obj), self._now) if obj["metadata"].get("name") else []
        )
        row: Obj = {"cells": cells, "object": shown}
        if self.resource.storage == "pods." and (
            over := _OVER.get((obj.get("status") or {}).get("phase", ""))
        ):
            row["conditions"] = [{"type": "Completed", "status": "True", **over}]
        return row


def columns(resource: Resource) -> Columns:
    if resource.custom is None:
        return of(resource.storage)
    return _custom_columns(resource.custom.columns)


@cache
def _custom_cells(paths: tuple[tuple[str, str], ...]) -> Cells:
    readers = [(kind, compiled(path)) for kind, path in paths]

    def cells(obj: Obj, now: float) -> list[Any]:
        out: list[Any] = [obj["metadata"]["name"]]
        for kind, read in readers:
            values = read(obj)
            out.append(_cell(kind, values[0], now) if values else None)
        return out

    return cells


def _custom_columns(raw: Sequence[Obj]) -> Columns:
    given = list(raw) or [
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": _AGE}
    ]
    shown = tuple(
        definition(
            column["name"],
            column["type"],
            form=column.get("format", ""),
            text=column.get("description")
            or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}",
            priority=column.get("priority", 0),
        )
        for column in given
    )
    cells = _custom_cells(tuple((column["type"], column["jsonPath"]) for column in given))
    return Columns((definition("Name", form="name"), *shown), cells)


_AGE = "When the object was created."


def _cell(kind: str, value: Any, now: float) -> Any:
    """A value as its column's type shows it; of another type it is not shown at all."""
    if kind == "string":
        return None if value is None else text(value)
    if kind == "date":
        return (
            age(value, now)
            if isinstance(value, str) and parse(value)
            else "<invalid>"
            if isinstance(value, str)
            else None
        )
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "integer":
        return int(value) if number else None
    if kind == "number":
        return value if number else None
    return value if kind == "boolean" and isinstance(value, bool) else None


def text(value: Any) -> str:
    """A value as kubectl's JSONPath prints it: structures as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


@dataclass(frozen=True, slots=True)
class MediaType:
    """One media type of an Accept header with the parameters that Kubernetes reads."""

    form: str
    group: str
    version: str


@cache
def accepted(header: str) -> tuple[MediaType, ...]:
    """The JSON that a client takes, in its order of preference."""
    out = []
    for clause in header.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        if media in (JSON, "*/*", "application/*", ""):
            values: dict[str, str] = dict(part.split("=", 1) for part in parameters if "=" in part)
            out.append(MediaType(values.get("as", ""), values.get("g", ""), values.get("v", "")))
    return tuple(out)


def rendering(resource: Resource, call: ApiCall, now: float) -> Rendering:
    media_types = accepted(call.request.header("Accept"))
    if not media_types:
        types = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
        message = f"406: Not Acceptable\n\nAvailable representations: {types}"
        raise StatusError(406, "NotAcceptable", message, details={})
    for media_type in media_types:
        if not media_type.form:
            break
        if media_type.group != "meta.k8s.io" or media_type.version != "v1":
            continue
        if media_type.form == "Table":
            include = call.request.query.get("includeObject", "")
            if include not in _INCLUDE:
                raise bad_request(f'unrecognized includeObject value: "{include}"')
            return Table(resource, include=include, now=now)
        if media_type.form in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return Partial(resource, custom=resource.custom is not None)
    return Rendering(resource, custom=resource.custom is not None)
