"""CustomResourceDefinitions as objects: their defaults and their checks; see serving.py for what they do.

Rule: k8s.io/apiextensions-apiserver/pkg/apis/apiextensions (defaults, validation).
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import FieldError, problem, supported
from ..names import dns_1035_label, dns_subdomain
from ..wire import Obj
from . import rules
from .schema import compiled

_TYPES = ("string", "number", "integer", "boolean", "array", "object")
_CONVERSIONS = ("None", "Webhook")
_VERSION = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")


def default(obj: Obj) -> None:
    spec: Obj = obj.get("spec") or {}
    names = spec.get("names") or {}
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")
    if isinstance(spec, dict):
        spec.setdefault("conversion", {"strategy": "None"})


def create(obj: Obj) -> None:
    stored = [v["name"] for v in obj.get("spec", {}).get("versions") or () if v.get("storage")]
    obj["status"] = {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": stored or None,
    }


def update(obj: Obj, old: Obj) -> None:
    status = obj.get("status") or {}
    stored = list(status.get("storedVersions") or ())
    for version in obj["spec"].get("versions") or ():
        if version.get("storage") and version["name"] not in stored:
            stored.append(version["name"])
    status["storedVersions"] = stored
    obj["status"] = status


def validate(obj: Obj) -> list[FieldError]:
    spec, out = obj.get("spec") or {}, list[FieldError]()
    names, versions = spec.get("names") or {}, spec.get("versions") or []
    wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if obj["metadata"].get("name") != wanted:
        why = 'must be spec.names.plural+"."+spec.group'
        out.append(problem("invalid", "metadata.name", why, obj["metadata"].get("name", "")))
    group = spec.get("group", "")
    if not group:
        out.append(problem("required", "spec.group"))
    elif found := dns_subdomain(group):
        out += [problem("invalid", "spec.group", why, group) for why in found]
    elif "." not in group:
        out.append(problem("invalid", "spec.group", "should be a domain with at least one dot", group))
    scope = spec.get("scope", "")
    if not scope:
        out.append(problem("required", "spec.scope"))
    elif scope not in ("Cluster", "Namespaced"):
        out.append(supported("spec.scope", scope, ["Cluster", "Namespaced"]))
    storing = [version for version in versions if version.get("storage")]
    if len(storing) != 1:
        why = "must have exactly one version marked as storage version"
        out.append(problem("invalid", "spec.versions", why, versions))
    for i, version in enumerate(versions):
        out += _version(version, f"spec.versions[{i}]")
    for part, required in (("plural", True), ("singular", False), ("kind", True), ("listKind", True)):
        value = names.get(part, "")
        if not value and required:
            out.append(problem("required", f"spec.names.{part}"))
        elif value:
            text = value.lower()
            out += [problem("invalid", f"spec.names.{part}", why, value) for why in dns_1035_label(text)]
    strategy = (spec.get("conversion") or {}).get("strategy", "")
    if strategy not in _CONVERSIONS:
        out.append(supported("spec.conversion.strategy", strategy, _CONVERSIONS))
    if spec.get("preserveUnknownFields"):
        why = "must be false in order to use defaults in the schema"
        out.append(problem("invalid", "spec.preserveUnknownFields", why, True))
    return out


def _version(version: Obj, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    name = version.get("name", "")
    out += [problem("invalid", f"{path}.name", why, name) for why in dns_1035_label(name)]
    root = (version.get("schema") or {}).get("openAPIV3Schema")
    where = f"{path}.schema.openAPIV3Schema"
    if root is None:
        return [*out, problem("required", where, "schemas are required")]
    if root.get("type") != "object":
        what = "must be object at the root"
        bad = problem("invalid", f"{where}.type", what, root["type"]) if root.get("type") else None
        out.append(bad or problem("required", f"{where}.type", what))
    out += _structural(root, where)
    out += rules.broken(root, where)
    return out


def _structural(schema: Any, path: str, *, root: bool = True) -> list[FieldError]:
    """A schema that says the type of everything it names, or that it may be anything."""
    out: list[FieldError] = []
    if not isinstance(schema, dict):
        return out
    kind = schema.get("type", "")
    anything = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-int-or-string")
    if not kind and not anything and not root:
        out.append(problem("required", f"{path}.type", "must not be empty for specified object fields"))
    elif kind and kind not in _TYPES:
        out.append(supported(f"{path}.type", kind, sorted(_TYPES)))
    if schema.get("properties") and schema.get("additionalProperties") not in (None, False):
        why = "additionalProperties and properties are mutual exclusive"
        out.append(problem("forbidden", f"{path}.additionalProperties", why))
    if schema.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        out.append(problem("forbidden", f"{path}.uniqueItems", why))
    if schema.get("default") is not None:
        out += compiled(schema)(schema["default"], f"{path}.default")
    if isinstance(schema.get("items"), list):
        why = "items must be a schema object and not an array"
        return [*out, problem("forbidden", f"{path}.items", why)]
    if kind == "array" and not schema.get("items"):
        out.append(problem("required", f"{path}.items", "must be specified"))
    listed = schema.get("x-kubernetes-list-type")
    if listed is not None and listed not in ("atomic", "set", "map"):
        out.append(supported(f"{path}.x-kubernetes-list-type", listed, ["atomic", "map", "set"]))
    if listed == "map" and not schema.get("x-kubernetes-list-map-keys"):
        why = "must not be empty if x-kubernetes-list-type is map"
        out.append(problem("required", f"{path}.x-kubernetes-list-map-keys", why))
    out += _map_keys(schema, path) if listed == "map" else []
    for name, inner in (schema.get("properties") or {}).items():
        out += _structural(inner, f"{path}.properties[{name}]", root=False)
    out += _structural(schema.get("items"), f"{path}.items", root=False)
    out += _structural(schema.get("additionalProperties"), f"{path}.additionalProperties", root=False)
    return out


def _map_keys(schema: Obj, path: str) -> list[FieldError]:
    """What tells entries apart has to be in each of them."""
    out: list[FieldError] = []
    items = schema.get("items") or {}
    known = items.get("properties") or {}
    for i, key in enumerate(schema.get("x-kubernetes-list-map-keys") or ()):
        where = f"{path}.x-kubernetes-list-map-keys[{i}]"
        if key not in known:
            out.append(problem("invalid", where, "entries must all be names of item properties", key))
        elif key not in (items.get("required") or ()) and known[key].get("default") is None:
            why = (
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required "
                "property"
            )
            out.append(problem("required", f"{path}.items.properties[{key}].default", why))
    return out
