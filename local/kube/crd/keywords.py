"""Checks the schema of a definition, keyword by keyword.

Rule: k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation/validation.go
(ValidateCustomResourceDefinitionOpenAPISchema) and pkg/apiserver/schema/defaulting for defaults.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from local.kube.crd import structural
from local.kube.crd.formats import effective
from local.kube.crd.schema import compiled
from local.kube.errors import FieldError, problem, supported
from local.kube.wire import Obj

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_LISTS, _MAPS = ("atomic", "set", "map"), ("atomic", "granular")
_REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_META = ("metadata", "apiVersion", "kind")
_UNSUPPORTED = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
_LIST, _KEYS, _MAP = "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"
_EMBEDDED = "x-kubernetes-embedded-resource"


def problems(
    schema: Any, path: str, *, root: bool = False, meta: bool = False, fixed: str = ""
) -> list[FieldError]:
    """`meta`: inside the metadata of every object; `fixed`: the reason why defaults are forbidden here."""
    if not isinstance(schema, dict):
        return []
    out = _standard(schema, path, meta=meta, fixed=fixed)
    known, more, items = (
        schema.get("properties") or {},
        schema.get("additionalProperties"),
        schema.get("items"),
    )
    if schema.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        out.append(problem("forbidden", f"{path}.uniqueItems", why))
    if more is not None:
        if known and more is not True:
            why = "additionalProperties and properties are mutual exclusive"
            out.append(problem("forbidden", f"{path}.additionalProperties", why))
        inside = "inside additionalProperties applying to object metadata" if meta else fixed
        out += problems(more, f"{path}.additionalProperties", meta=meta, fixed=inside)
    for name, inner in known.items():
        implied = (root or schema.get(_EMBEDDED)) and name in _META
        inside = f"in top-level {name}" if implied and root else fixed
        where = f"{path}.properties[{name}]"
        out += problems(inner, where, meta=meta or bool(implied), fixed=inside)
    out += problems(schema.get("not"), f"{path}.not", meta=meta, fixed=fixed)
    for word in ("allOf", "oneOf", "anyOf"):
        for i, inner in enumerate(schema.get(word) or ()):
            out += problems(inner, f"{path}.{word}[{i}]", meta=meta, fixed=fixed)
    out += problems(items, f"{path}.items", meta=meta, fixed=fixed)
    return out + _extensions(schema, path) + _list_keys(schema, path) + _rules(schema, path)


def _standard(schema: Obj, path: str, *, meta: bool, fixed: str) -> list[FieldError]:
    out: list[FieldError] = []
    kind = schema.get("type", "")
    if kind and kind not in _TYPES:
        out.append(supported(f"{path}.type", kind, _TYPES))
    if schema.get("default") is not None and fixed:
        out.append(problem("forbidden", f"{path}.default", f"must not be set {fixed}"))
    for word in _UNSUPPORTED:
        if schema.get(word):
            out.append(problem("forbidden", f"{path}.{word}", f"{word} is not supported"))
    if kind == "null":
        why = "type cannot be set to null, use nullable as an alternative"
        out.append(problem("forbidden", f"{path}.type", why))
    if isinstance(schema.get("items"), list) and schema["items"]:
        why = "items must be a schema object and not an array"
        out.append(problem("forbidden", f"{path}.items", why))
    if meta and schema.get(_EMBEDDED):
        out.append(problem("forbidden", f"{path}.{_EMBEDDED}", "must not be used inside of resource meta"))
    return out


def _extensions(schema: Obj, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    kind = schema.get("type", "")
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        where = f"{path}.x-kubernetes-preserve-unknown-fields"
        out.append(problem("invalid", where, "must be true or undefined", False))
    for word, required, values in ((_MAP, "object", _MAPS), (_LIST, "array", _LISTS)):
        value = schema.get(word)
        if value is None:
            continue
        if kind != required:
            why = f"must be {required} if {word} is specified"
            out.append(problem("invalid" if kind else "required", f"{path}.type", why, kind))
        elif word == _LIST and value == "set":
            out += _set_items(schema.get("items"), path)
        if value not in values:
            out.append(supported(f"{path}.{word}", value, values))
    return out


def _set_items(items: Any, path: str) -> list[FieldError]:
    """Entries that are keyed by their value may not be merged."""
    why = f"must be atomic as item of a list with {_LIST}=set"
    if not isinstance(items, dict):
        return []
    if items.get("type") == "array" and items.get(_LIST) not in (None, "atomic"):
        return [problem("invalid", f"{path}.items.{_LIST}", why, items[_LIST])]
    if items.get("type") == "object" and items.get(_MAP) != "atomic":
        return [problem("invalid", f"{path}.items.{_MAP}", why, items.get(_LIST))]
    return []


def _list_keys(schema: Obj, path: str) -> list[FieldError]:
    """The key of a list has to be a scalar that each entry has."""
    out: list[FieldError] = []
    listed, keys, items = schema.get(_LIST), schema.get(_KEYS) or [], schema.get("items")
    if keys and listed != "map":
        why = f"must be map if {_KEYS} is non-empty"
        out.append(problem("required" if listed is None else "invalid", f"{path}.{_LIST}", why, listed))
    if listed == "map" and not keys:
        out.append(problem("required", f"{path}.{_KEYS}", f"must not be empty if {_LIST} is map"))
    if listed == "map" and items is None:
        out.append(problem("required", f"{path}.items", f"must have a schema if {_LIST} is map"))
    if listed not in ("map", "set") or not isinstance(items, dict):
        return out
    nullable = f"cannot be nullable when {_LIST} is {listed}"
    tail = [problem("forbidden", f"{path}.items.nullable", nullable)] if items.get("nullable") else []
    if listed == "set":
        return out + tail
    if items.get("type") != "object":
        why = f"must be object if parent array's {_LIST} is map"
        return [*out, problem("invalid", f"{path}.items.type", why, items.get("type", "")), *tail]
    known, required = items.get("properties") or {}, items.get("required") or ()
    for i, key in enumerate(keys):
        where = f"{path}.items.properties[{key}]"
        inner = known.get(key)
        if inner is None:
            why = "entries must all be names of item properties"
            out.append(problem("invalid", f"{path}.{_KEYS}", why, keys))
        elif inner.get("type") in ("array", "object"):
            why = f"must be a scalar type if parent array's {_LIST} is map"
            out.append(problem("invalid", f"{where}.type", why, items["type"]))
        if key in keys[:i]:
            out.append(problem("invalid", f"{path}.{_KEYS}", "must not contain duplicate entries", keys))
        why = f"this property is in {_KEYS}, so it"
        if inner is not None and key not in required and inner.get("default") is None:
            must = f"{why} must have a default or be a required property"
            tail.append(problem("required", f"{where}.default", must))
        if inner is not None and inner.get("nullable"):
            tail.append(problem("forbidden", f"{where}.nullable", f"{why} cannot be nullable"))
    return out + tail


def _rules(schema: Obj, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for i, item in enumerate(schema.get("x-kubernetes-validations") or ()):
        where = f"{path}.x-kubernetes-validations[{i}]"
        rule, message = item.get("rule", "").strip(), item.get("message", "")
        if not rule:
            out.append(problem("required", f"{where}.rule", "rule is not specified"))
        elif message and not message.strip():
            why = "must be non-empty if specified"
            out.append(problem("invalid", f"{where}.message", why, message))
        elif "\n" in message.strip():
            out.append(problem("invalid", f"{where}.message", "must not contain line breaks", message))
        elif "\n" in rule and not message:
            why = "message must be specified if rule contains line breaks"
            out.append(problem("required", f"{where}.message", why))
        if item.get("messageExpression") and not item["messageExpression"].strip():
            why = "messageExpression must be non-empty if specified"
            out.append(problem("required", f"{where}.messageExpression", why))
        if item.get("reason") is not None and item["reason"] not in _REASONS:
            out.append(supported(f"{where}.reason", item["reason"], _REASONS))
    return out


def defaults(schema: Any, path: str) -> list[FieldError]:
    """Defaults fit the schema that they stand in, and hold nothing that it does not know."""
    if not isinstance(schema, dict):
        return []
    out: list[FieldError] = []
    value = schema.get("default")
    if value is not None:
        pruned, unknown = copy.deepcopy(value), list[str]()
        if isinstance(pruned, dict | list):
            structural.prune_inside(pruned, schema, unknown)
        if unknown:
            out.append(problem("invalid", f"{path}.default", "must not have unknown fields", value))
        for error in compiled(schema)(value, ""):
            below = "" if error.field in ("", "<nil>") else f".{error.field}"
            out.append(replace(error, field=f"{path}.default{below}"))
    out += defaults(schema.get("items"), f"{path}.items")
    for name, inner in (schema.get("properties") or {}).items():
        out += defaults(inner, f"{path}.properties[{name}]")
    return out


def unknown_formats(schema: Any) -> list[str]:
    """Formats without an effect here, which are ignored."""
    if not isinstance(schema, dict):
        return []
    given = schema.get("format", "")
    out = [given] if given and not effective(schema) else []
    inner: list[Any] = [schema.get(word) for word in ("items", "additionalProperties", "not")]
    for word in ("allOf", "oneOf", "anyOf"):
        inner += schema.get(word) or ()
    inner += (schema.get("properties") or {}).values()
    return out + [name for item in inner for name in unknown_formats(item)]
