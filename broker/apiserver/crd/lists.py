"""Entries of lists that are sets or maps must be unique.

Rule: k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype.
"""

from __future__ import annotations

from typing import Any

import orjson

from broker.apiserver.errors import FieldError, problem
from broker.apiserver.wire import Obj


def check(value: Any, schema: Any, path: str = "") -> list[FieldError]:
    out: list[FieldError] = []
    if not isinstance(schema, dict):
        return out
    if isinstance(value, list):
        out += _entries(value, schema, path)
        for i, one in enumerate(value):
            if isinstance(one, dict | list):
                out += check(one, schema.get("items"), f"{path}[{i}]")
    elif isinstance(value, dict):
        properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
        for key, one in value.items():
            if not isinstance(one, dict | list):
                continue
            if key in properties:
                out += check(one, properties[key], f"{path}.{key}" if path else key)
            elif more:
                out += check(one, more, f"{path}[{key}]")
    return out


def _entries(values: list[Any], schema: Obj, path: str) -> list[FieldError]:
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set":
        return _repeated(values, path)
    if kind != "map":
        return []
    for i, one in enumerate(values):
        if one is not None and not isinstance(one, dict):
            return [
                problem("invalid", f"{path}[{i}]", "must be an object for an array of list-type map", one)
            ]
    names = schema.get("x-kubernetes-list-map-keys") or ()
    keys = [{name: (one or {})[name] for name in names if name in (one or {})} for one in values]
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
