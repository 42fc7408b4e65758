"""Pruning and defaulting by a structural schema. Both work in place on an object that is not shared.

Rule: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
(field pruning, defaulting and nullable).
"""

from __future__ import annotations

import copy
from typing import Any

from local.kube.wire import Obj

_META = frozenset({"apiVersion", "kind", "metadata"})


def prune(obj: Any, schema: Obj, unknown: list[str]) -> None:
    """Drops fields that the root schema does not name, and adds their paths, sorted."""
    dropped: list[str] = []
    _prune(obj, {**schema, "x-kubernetes-embedded-resource": True}, "", dropped)
    unknown += sorted(dropped)


def prune_inside(value: Any, schema: Obj, unknown: list[str]) -> None:
    """The same for a value that is no object of its own."""
    _prune(value, schema, "", unknown)


def _prune(value: Any, schema: Obj | None, path: str, dropped: list[str]) -> None:
    if schema is not None and schema.get("x-kubernetes-preserve-unknown-fields"):
        _descend(value, schema, path, dropped)
        return
    if isinstance(value, dict):
        _prune_object(value, schema, path, dropped)
    elif isinstance(value, list):
        items = schema.get("items") if schema else None
        for i, item in enumerate(value):
            _prune(item, items, f"{path}[{i}]", dropped)


def _prune_object(value: Obj, schema: Obj | None, path: str, dropped: list[str]) -> None:
    properties = schema.get("properties") or {} if schema else {}
    more = schema.get("additionalProperties") if schema else None
    embedded = bool(schema and schema.get("x-kubernetes-embedded-resource"))
    for key, item in list(value.items()):
        if embedded and key in _META:
            continue
        inner = properties.get(key)
        if inner is not None or (more is not None and more is not False):
            if isinstance(item, dict | list):
                below = inner if inner is not None else more if isinstance(more, dict) else None
                _prune(item, below, f"{path}.{key}" if path else key, dropped)
        else:
            if key not in _META or path:
                dropped.append(f"{path}.{key}" if path else key)
            del value[key]


def _descend(value: Any, schema: Obj, path: str, dropped: list[str]) -> None:
    """Below a field that preserves unknown fields, the known ones are still pruned."""
    if isinstance(value, dict):
        properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
        for key in list(value):
            if schema.get("x-kubernetes-embedded-resource") and key in _META:
                continue
            inner = properties.get(key, more)
            if isinstance(inner, dict):
                _prune(value[key], inner, f"{path}.{key}" if path else key, dropped)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for i, item in enumerate(value):
            _descend(item, schema["items"], f"{path}[{i}]", dropped)


def _forbids_null(value: Any, schema: Any) -> bool:
    return value is None and isinstance(schema, dict) and not schema.get("nullable")


def drop_nulls(value: Any, schema: Any) -> None:
    """Nulls where none may be, and no default will replace them, are as good as absent."""
    if not isinstance(schema, dict):
        return
    if isinstance(value, dict):
        properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
        for key, item in list(value.items()):
            inner: Any = properties.get(key, more)
            if item is None and _forbids_null(item, inner) and "default" not in inner:
                del value[key]
            elif isinstance(item, dict | list):
                drop_nulls(item, inner)
    elif isinstance(value, list):
        for item in value:
            drop_nulls(item, schema.get("items"))


def default(value: Any, schema: Any) -> None:
    if not isinstance(schema, dict):
        return
    if isinstance(value, dict):
        properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
        for key, known in properties.items():
            if known.get("default") is not None and (key not in value or _forbids_null(value[key], known)):
                value[key] = copy.deepcopy(known["default"])
        for key, item in value.items():
            inner: Any = properties.get(key, more)
            if item is None and key not in properties and _forbids_null(item, inner):
                value[key] = copy.deepcopy(inner.get("default"))
            if isinstance(value[key], dict | list):
                default(value[key], inner)
    elif isinstance(value, list):
        items = schema.get("items")
        for i, item in enumerate(value):
            if _forbids_null(item, items) and isinstance(items, dict):
                value[i] = copy.deepcopy(items.get("default"))
            default(value[i], items)
