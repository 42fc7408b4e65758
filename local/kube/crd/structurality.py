"""Whether a schema is structural: it types all fields that it names, and conditions only restrict those.

Rule: k8s.io/apiextensions-apiserver/pkg/apiserver/schema (validation.go, complete.go).
"""

from __future__ import annotations

import re
from typing import Any

from local.kube.crd.schema import go_pattern
from local.kube.errors import FieldError, problem
from local.kube.wire import Obj

_PRESERVE, _INT_OR_STRING = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"
_EMBEDDED = "x-kubernetes-embedded-resource"
_EITHER = [{"type": "integer"}, {"type": "string"}]
_UNTYPED = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}
# Keywords that a condition (allOf, anyOf, oneOf, not) may not have; only the schema itself may.
_OUTSIDE = {
    "type": "empty",
    "additionalProperties": "undefined",
    "default": "undefined",
    "title": "empty",
    "description": "empty",
    "nullable": "false",
    _PRESERVE: "false",
    _EMBEDDED: "false",
    _INT_OR_STRING: "false",
    "x-kubernetes-list-map-keys": "empty",
    "x-kubernetes-list-type": "undefined",
    "x-kubernetes-map-type": "undefined",
    "x-kubernetes-validations": "empty",
}


def problems(schema: Obj, path: str) -> list[FieldError]:
    errors = _schema(schema, path, "root") + _complete(schema, schema, path, path)
    return sorted(errors, key=str)


def _schema(schema: Obj, path: str, level: str) -> list[FieldError]:
    out: list[FieldError] = []
    kind, items, more = schema.get("type", ""), schema.get("items"), schema.get("additionalProperties")
    embedded, preserves = schema.get(_EMBEDDED), schema.get(_PRESERVE)
    if kind == "array" and items is None:
        out.append(problem("required", f"{path}.items", "must be specified"))
    if isinstance(items, dict):
        out += _schema(items, f"{path}.items", "item")
    for name, inner in (schema.get("properties") or {}).items():
        out += _schema(inner, f"{path}.properties[{name}]", "field")
    if more is not None and level == "root":
        out.append(problem("forbidden", f"{path}.additionalProperties", "must not be used at the root"))
    if isinstance(more, dict):
        out += _schema(more, f"{path}.additionalProperties", "field")
    if schema.get(_INT_OR_STRING):
        why = f"must be false if {_INT_OR_STRING} is true"
        both = ((_PRESERVE, preserves), (_EMBEDDED, embedded))
        out += [problem("invalid", f"{path}.{name}", why, True) for name, value in both if value]
    out += _conditions(schema, path, level, any_of=schema.get("anyOf") != _EITHER, first=_first(schema))
    if embedded and kind != "object":
        why = f"must be object if {_EMBEDDED} is true"
        out.append(problem("invalid" if kind else "required", f"{path}.type", why, kind))
    elif not kind and not schema.get(_INT_OR_STRING) and not preserves:
        out.append(problem("required", f"{path}.type", _UNTYPED[level]))
    if embedded and more is not None:
        why = f"must not be used if {_EMBEDDED} is set"
        out.append(problem("forbidden", f"{path}.additionalProperties", why))
    if level == "root" and kind not in ("", "object"):
        out.append(problem("invalid", f"{path}.type", "must be object at the root", kind))
    out += _implied(schema, path, level)
    if embedded and not preserves and not schema.get("properties"):
        why = f"must not be empty if {_EMBEDDED} is true without {_PRESERVE}"
        out.append(problem("required", f"{path}.properties", why))
    return out


def _implied(schema: Obj, path: str, level: str) -> list[FieldError]:
    """The common fields: the kind is text, and of the metadata only the name can be restricted."""
    out: list[FieldError] = []
    known = schema.get("properties") or {}
    whole = level == "root" or schema.get(_EMBEDDED)
    for name, required in (("kind", "string"), ("apiVersion", "string"), ("metadata", "object")):
        kind = known[name].get("type", "") if name in known else required
        if whole and kind != required:
            out.append(problem("invalid", f"{path}.properties[{name}].type", f"must be {required}", kind))
    if level == "root" and "metadata" in known:
        more = {key: value for key, value in known["metadata"].items() if key not in ("type", "default")}
        if set(more.get("properties") or ()) <= {"name", "generateName"}:
            more.pop("properties", None)
        if any(more.values()):
            why = (
                "must not specify anything other than name and generateName, but metadata is implicitly "
                "specified"
            )
            out.append(problem("forbidden", f"{path}.properties[metadata]", why))
    return out


def _first(schema: Obj) -> bool:
    """Whether the first of allOf is a condition like the others; `integer or string` may stand there."""
    all_of = schema.get("allOf") or [{}]
    return bool(all_of[0].get("anyOf") != _EITHER)


def _conditions(
    schema: Obj, path: str, level: str, *, any_of: bool = True, first: bool = True
) -> list[FieldError]:
    out: list[FieldError] = []
    for word in ("anyOf", "allOf", "oneOf"):
        for i, inner in enumerate(schema.get(word) or ()):
            if word != "anyOf" or any_of:
                any_of_allowed = word == "allOf" and not i and not first
                out += _condition(inner, f"{path}.{word}[{i}]", level, any_of=not any_of_allowed)
    out += _condition(schema.get("not"), f"{path}.not", level)
    if pattern := schema.get("pattern"):
        try:
            re.compile(go_pattern(pattern))
        except re.error as error:
            why = f"must be a valid regular expression, but isn't: error parsing regexp: {error}"
            out.append(problem("invalid", f"{path}.pattern", why, pattern))
    return out


def _condition(schema: Any, path: str, level: str, *, any_of: bool = True) -> list[FieldError]:
    if not isinstance(schema, dict):
        return []
    out = _conditions(schema, path, level, any_of=any_of)
    out += _condition(schema.get("items"), f"{path}.items", level)
    known = schema.get("properties") or {}
    for name, inner in known.items():
        out += _condition(inner, f"{path}.properties[{name}]", "field")
    for word, state in _OUTSIDE.items():
        if schema.get(word) not in (None, "", False, []):
            out.append(problem("forbidden", f"{path}.{word}", f"must be {state} to be structural"))
    if "metadata" in known:
        why = "must not be specified in a nested context"
        out.append(problem("forbidden", f"{path}.properties[metadata]", why))
    return out


def _complete(schema: Any, conditions: Obj, path: str, where: str) -> list[FieldError]:
    """A field that a condition restricts has to be in the schema too."""
    out: list[FieldError] = []
    for word in ("allOf", "anyOf", "oneOf"):
        for i, inner in enumerate(conditions.get(word) or ()):
            out += _named(schema, inner, path, f"{where}.{word}[{i}]")
    return out + _named(schema, conditions.get("not"), path, f"{where}.not")


def _named(schema: Any, condition: Any, path: str, where: str) -> list[FieldError]:
    if not isinstance(condition, dict):
        return []
    if not isinstance(schema, dict):
        return [problem("required", path, f"because it is defined in {where}")]
    out = _complete(schema, condition, path, where)
    out += _named(schema.get("items"), condition.get("items"), f"{path}.items", f"{where}.items")
    known = schema.get("properties") or {}
    for name, inner in (condition.get("properties") or {}).items():
        step = f".properties[{name}]"
        out += _named(known.get(name), inner, path + step, where + step)
    return out
