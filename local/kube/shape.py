"""The shape of a kind's objects: fields, maps and lists, and the keys of list entries.

Built-in shapes are compiled on first use from data/types.json, custom ones from the schema of their
definition. Strategic merge, apply and decoding all read the same shapes.
Rule: https://kubernetes.io/docs/reference/using-api/server-side-apply/#merge-strategy
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from local.kube.data import load
from local.kube.wire import Obj

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


@dataclass(slots=True, eq=False)
class Shape:
    """`kind` is struct, map, list, any (deduced from the value) or the name of a leaf type."""

    kind: str
    go: str = ""  # the Go type, as decoding errors name it
    fields: dict[str, Field] = field(default_factory=dict)
    element: Shape | None = None
    keys: tuple[str, ...] = ()  # of a list with entries keyed by fields
    members: bool = False  # a list with entries keyed by their value
    atomic: bool = False

    def child(self, name: str) -> Shape:
        known = self.fields.get(name)
        return known.shape if known is not None else self.element or ANY

    @property
    def item(self) -> Shape:
        return self.element or ANY

    @property
    def keyed(self) -> bool:
        return bool(self.keys) or self.members


@dataclass(slots=True, eq=False)
class Field:
    name: str
    shape: Shape
    pointer: bool = False
    omit: bool = True  # left out when empty
    omit_zero: bool = False
    number: str = ""
    merge: bool = False  # strategic merge goes into the list instead of replacing it
    merge_key: str = ""
    default: Any = None
    key_default: Any = None  # the key's value if a list entry leaves the field out


ANY = Shape("any")
ANY.element = ANY


def builtin(group: str, version: str, kind: str) -> Shape | None:
    name = load("types.json")["kinds"].get(f"{group}/{version}/{kind}")
    return struct(name) if name else None


@cache
def struct(name: str) -> Shape:
    raw = load("types.json")["structs"][name]
    package = name.split(".")[-2]
    shape = Shape("struct", f"{package}.{raw['go']}", atomic=raw.get("map") == "atomic")
    _open[name] = shape
    try:
        for field_name, (expression, number, flags, *more) in raw["fields"].items():
            shape.fields[field_name] = _field(field_name, expression, number, flags, *more)
    finally:
        del _open[name]
    return shape


_open: dict[str, Shape] = {}  # structs being compiled: a type may contain itself


def _field(name: str, expression: str, number: str, flags: str, extra: Obj | None = None) -> Field:
    extra = extra or {}
    strategies = extra.get("strategy", "").split(",")
    pointer = expression.startswith("*")
    return Field(
        name,
        _shape(expression.removeprefix("*"), extra),
        pointer=pointer,
        omit="o" in flags,
        omit_zero="z" in flags,
        number=number,
        merge="merge" in strategies,
        merge_key=extra.get("key", ""),
        default=extra.get("default"),
        key_default=extra.get("default", None if "o" in flags else _ZEROS.get(expression)),
    )


_ZEROS = {"string": "", "int32": 0, "int64": 0, "bool": False}


def _shape(expression: str, extra: Obj) -> Shape:
    go = extra.get("go", "").removeprefix("*")
    if expression.startswith("[]"):
        listed = extra.get("list", "atomic")
        return Shape(
            "list",
            go,
            element=_shape(expression[2:].removeprefix("*"), {"go": go.removeprefix("[]")}),
            keys=tuple(extra.get("keys", ())),
            members=listed == "set",
            atomic=listed == "atomic",
        )
    if expression.startswith("{}"):
        inner = go.partition("]")[2]
        return Shape(
            "map",
            go,
            element=_shape(expression[2:].removeprefix("*"), {"go": inner}),
            atomic=extra.get("map") == "atomic",
        )
    if "." in expression:
        shape = _open.get(expression) or struct(expression)
        if extra.get("map") == "atomic" and not shape.atomic:
            return Shape("struct", shape.go, fields=shape.fields, atomic=True)
        return shape
    if expression in ("raw", "json"):
        # Embedded JSON is a map to apply, unless its schema declares another type.
        return Shape(expression, go, element=ANY)
    return Shape(expression, go or expression)


def custom(schema: Obj) -> Shape:
    """The shape of a custom resource: its structural schema, with the usual metadata on top."""
    shape = _from_schema(schema)
    shape.fields = {
        **shape.fields,
        "apiVersion": Field("apiVersion", Shape("string")),
        "kind": Field("kind", Shape("string")),
        "metadata": Field("metadata", struct(OBJECT_META)),
    }
    shape.atomic = False
    return shape


def _from_schema(schema: Obj) -> Shape:
    preserved = schema.get("x-kubernetes-preserve-unknown-fields", False)
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        return Shape("intorstring")
    if kind == "object":
        fields = {
            name: Field(name, _from_schema(inner), key_default=inner.get("default"))
            for name, inner in (schema.get("properties") or {}).items()
        }
        if schema.get("x-kubernetes-embedded-resource"):
            fields.setdefault("apiVersion", Field("apiVersion", Shape("string")))
            fields.setdefault("kind", Field("kind", Shape("string")))
            fields.setdefault("metadata", Field("metadata", struct(OBJECT_META)))
        more = schema.get("additionalProperties")
        element = _from_schema(more) if isinstance(more, dict) else ANY if preserved or more else None
        named = bool(fields) or not isinstance(more, dict)
        atomic = schema.get("x-kubernetes-map-type") == "atomic"
        return Shape("struct" if named else "map", fields=fields, element=element, atomic=atomic)
    if kind == "array":
        listed = schema.get("x-kubernetes-list-type", "atomic")
        keys = tuple(schema.get("x-kubernetes-list-map-keys") or ()) if listed == "map" else ()
        element = _from_schema(schema.get("items") or {})
        return Shape("list", element=element, keys=keys, members=listed == "set", atomic=listed == "atomic")
    return Shape(kind) if kind else ANY
