"""Entries of lists that are sets or maps must be unique.

Rule: k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype.
"""

from __future__ import annotations

from typing import Any

import orjson

from local.kube.errors import FieldError, problem
from local.kube.wire import Obj


def check(value: Any, schema: Any, path: str = "") -> list[FieldError]:
    out: list[FieldError] = []
    if not isinstance(schema, dict):
        return out
    if isinstance(value, list):
        out += _entries(value, schema, path)
        for i, item in enumerate(value):
            if isinstance(item, dict | list):
                out += check(item, schema.get("items"), f"{path}[{i}]")
    elif isinstance(value, dict):
        properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
        for key, item in value.items():
            if not isinstance(item, dict | list):
                continue
            if key in properties:
                out += check(item, properties[key], f"{path}.{key}" if path else key)
            elif more:
                out += check(item, more, f"{path}[{key}]")
    return out


def _entries(values: list[Any], schema: Obj, path: str) -> list[FieldError]:
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set":
        return _repeated(values, path)
    if kind != "map":
        return []
    for i, entry in enumerate(values):
        if entry is not None and not isinstance(entry, dict):
            return [
                problem("invalid", f"{path}[{i}]", "must be an object for an array of list-type map", entry)
            ]
    names = schema.get("x-kubernetes-list-map-keys") or ()
    keys = [{name: (entry or {})[name] for name in names if name in (entry or {})} for entry in values]
    return _repeated(keys, path)


def _repeated(values: list[Any], path: str) -> list[FieldError]:
    """One problem a repeated value, at its second place."""
    seen: dict[bytes, int] = {}
    out: list[FieldError] = []
    for i, value in enumerate(values):
        key = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] == 2:
            out.append(problem("duplicate", f"{path}[{i}]", "", value))
    return out
