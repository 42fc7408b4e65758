"""CustomResourceDefinitions as objects: their defaults and their checks; definitions.py serves them.

Rule: k8s.io/apiextensions-apiserver/pkg/apis/apiextensions (defaults, validation).
"""

from __future__ import annotations

from typing import Any

from local.kube.crd import keywords, rules, structurality
from local.kube.errors import FieldError, Struct, problem, supported
from local.kube.names import dns_1035_label, dns_subdomain
from local.kube.wire import Obj

_SCOPES, _CONVERSIONS = ("Cluster", "Namespaced"), ("None", "Webhook")
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")


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
    names, versions = spec.get("names") or {}, spec.get("versions")
    if obj["metadata"].get("name") != f"{names.get('plural', '')}.{spec.get('group', '')}":
        why = 'must be spec.names.plural+"."+spec.group'
        out.append(problem("invalid", "metadata.name", why, obj["metadata"].get("name", "")))
    out += _group(spec.get("group", "")) + _one_of("spec.scope", spec.get("scope", ""), _SCOPES)
    shared = _shared(versions or [], "schema")
    for i, version in enumerate(versions or ()):
        if not shared and not (version.get("schema") or {}).get("openAPIV3Schema"):
            out.append(problem("required", f"spec.versions[{i}].schema.openAPIV3Schema"))
    for i, version in enumerate(versions or ()):
        out += _version(version, f"spec.versions[{i}]", versions or [])
    if len({version.get("name") for version in versions or ()}) < len(versions or ()):
        out.append(_versions(versions, "must contain unique version names"))
    if sum(bool(version.get("storage")) for version in versions or ()) != 1:
        out.append(_versions(versions, "must have exactly one version marked as storage version"))
    first = versions[0].get("name", "") if versions else ""
    if first and (label_problems := dns_1035_label(first)):
        out.append(problem("invalid", "spec.version", ",".join(label_problems), first))
    for part in ("plural", "singular", "kind", "listKind"):
        if not names.get(part):
            out.append(problem("required", f"spec.names.{part}"))
    out += _names(names)
    if shared:
        whole = any("status" in (version.get("subresources") or {}) for version in versions or ())
        out += _schema(shared["openAPIV3Schema"], "spec.validation.openAPIV3Schema", status=whole)
    out += _subresources(_shared(versions or [], "subresources"), "spec.subresources")
    for i, column in enumerate(_shared(versions or [], "additionalPrinterColumns") or ()):
        out += _column(column, f"spec.additionalPrinterColumns[{i}]")
    out += _one_of(
        "spec.conversion.strategy", (spec.get("conversion") or {}).get("strategy", ""), _CONVERSIONS
    )
    if not (obj.get("status") or {}).get("storedVersions"):
        where = "status.storedVersions"
        out.append(problem("invalid", where, "must have at least one stored version", None))
    if spec.get("preserveUnknownFields"):
        how = "set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        out.append(problem("invalid", "spec.preserveUnknownFields", f"cannot set to true, {how}", True))
    return out


def validate_update(obj: Obj, old: Obj) -> list[FieldError]:
    """The place of stored objects does not move, nor their kind once they are served."""
    now, was = obj["spec"], old["spec"]
    conditions = (old.get("status") or {}).get("conditions") or ()
    served = any(
        condition["type"] == "Established" and condition["status"] == "True" for condition in conditions
    )
    fixed = [("scope",), ("names", "kind")] * served + [("group",), ("names", "plural")]
    out = []
    for path in fixed:
        new, before = _at(now, path), _at(was, path)
        if new != before:
            out.append(problem("invalid", ".".join(("spec", *path)), "field is immutable", new))
    return out


def _at(obj: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        obj = (obj or {}).get(step, "")
    return obj


def warnings(obj: Obj, old: Obj | None) -> list[str]:
    before = _formats(old) if old else []
    return [f'unrecognized format "{name}"' for name in _formats(obj) if name not in before]


def _formats(obj: Obj) -> list[str]:
    versions = (obj.get("spec") or {}).get("versions") or []
    given = (
        [_shared(versions, "schema")]
        if _shared(versions, "schema")
        else [schema.get("schema") for schema in versions]
    )
    return [
        name for schema in given for name in keywords.unknown_formats((schema or {}).get("openAPIV3Schema"))
    ]


def _shared(versions: list[Obj], part: str) -> Any:
    """Parts that are equal in all versions are checked once, and reported as if they stood above them."""
    first = versions[0].get(part) if versions else None
    alike = first and all(version.get(part) == first for version in versions)
    usable = part != "schema" or (first or {}).get("openAPIV3Schema")
    return first if alike and usable else None


def _group(group: str) -> list[FieldError]:
    if not group:
        return [problem("required", "spec.group")]
    if name_problems := dns_subdomain(group):
        return [problem("invalid", "spec.group", ",".join(name_problems), group)]
    if "." not in group:
        return [problem("invalid", "spec.group", "should be a domain with at least one dot", group)]
    return []


def _one_of(path: str, value: str, allowed: tuple[str, ...]) -> list[FieldError]:
    if not value:
        return [problem("required", path)]
    return [] if value in allowed else [supported(path, value, allowed)]


_SHARED = ("schema", "subresources", "additionalPrinterColumns", "selectableFields")
_EMPTY: Obj = {
    "name": "",
    "served": False,
    "storage": False,
    "deprecated": False,
    "deprecationWarning": None,
    **dict.fromkeys(_SHARED),
}


def _versions(versions: list[Obj] | None, why: str) -> FieldError:
    """Shown as the server holds them: by Go's names, and without the shared parts."""
    shared = [part for part in _SHARED if _shared(versions or [], part)]
    held = [
        Struct(
            (part[:1].upper() + part[1:], None if part in shared else version.get(part, empty))
            for part, empty in _EMPTY.items()
        )
        for version in versions or ()
    ]
    return problem("invalid", "spec.versions", why, held if versions is not None else None)


def _names(names: Obj) -> list[FieldError]:
    out: list[FieldError] = []
    for part in ("plural", "singular", "kind", "listKind"):
        value = names.get(part, "")
        mixed = part in ("kind", "listKind")
        if value and (label_problems := dns_1035_label(value.lower() if mixed else value)):
            why = "may have mixed case, but should otherwise match: " * mixed + ",".join(label_problems)
            out.append(problem("invalid", f"spec.names.{part}", why, value))
    for i, word in enumerate(names.get("shortNames") or ()):
        if label_problems := dns_1035_label(word):
            out.append(problem("invalid", f"spec.names.shortNames[{i}]", ",".join(label_problems), word))
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        why = "kind and listKind may not be the same"
        out.append(problem("invalid", "spec.names.listKind", why, names["listKind"]))
    for i, word in enumerate(names.get("categories") or ()):
        if label_problems := dns_1035_label(word):
            out.append(problem("invalid", f"spec.names.categories[{i}]", ",".join(label_problems), word))
    return out


def _version(version: Obj, path: str, versions: list[Obj]) -> list[FieldError]:
    name, out = version.get("name", ""), list[FieldError]()
    if label_problems := dns_1035_label(name):
        out.append(problem("invalid", f"{path}.name", ",".join(label_problems), name))
    if version.get("deprecationWarning") is not None and not version.get("deprecated"):
        why, given = "can only be set for deprecated versions", version["deprecationWarning"]
        out.append(problem("invalid", f"{path}.deprecationWarning", why, given))
    root = (version.get("schema") or {}).get("openAPIV3Schema")
    if root is not None and not _shared(versions, "schema"):
        status = "status" in (version.get("subresources") or {})
        out += _schema(root, f"{path}.schema.openAPIV3Schema", status=status)
    if not _shared(versions, "subresources"):
        out += _subresources(version.get("subresources"), f"{path}.subresources")
    if not _shared(versions, "additionalPrinterColumns"):
        for i, column in enumerate(version.get("additionalPrinterColumns") or ()):
            out += _column(column, f"{path}.additionalPrinterColumns[{i}]")
    return out


def _schema(root: Obj, path: str, *, status: bool) -> list[FieldError]:
    out: list[FieldError] = []
    if status and root.get("type") != "object":
        why = (
            'only "object" is allowed as the type at the root of the schema if the status subresource is '
            "enabled"
        )
        if root.get("type"):
            out.append(problem("invalid", f"{path}.type", why, root["type"]))
    if root.get("nullable"):
        out.append(problem("forbidden", f"{path}.nullable", "nullable cannot be true at the root"))
    sound = structurality.problems(root, path) or keywords.defaults(root, path)
    out += sound + keywords.problems(root, path, root=True)
    return out or rules.broken(root, path)


def _subresources(given: Any, path: str) -> list[FieldError]:
    scale, out = (given or {}).get("scale"), list[FieldError]()
    if scale is None:
        return out
    for name, below in (("specReplicasPath", (".spec.",)), ("statusReplicasPath", (".status.",))):
        value, where = scale.get(name, ""), f"{path}.scale.{name}"
        if not value:
            out.append(problem("required", where))
        else:
            out += _json_path(value, where, below, f"under {below[0].rstrip('.')}")
    if value := scale.get("labelSelectorPath"):
        both = "under either .spec or .status"
        out += _json_path(value, f"{path}.scale.labelSelectorPath", (".spec.", ".status."), both)
    return out


def _json_path(value: str, path: str, below: tuple[str, ...], where: str) -> list[FieldError]:
    if not value.startswith("."):
        return [problem("invalid", path, "must be a simple json path starting with .", value)]
    return (
        [] if value.startswith(below) else [problem("invalid", path, f"should be a json path {where}", value)]
    )


def _column(column: Obj, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    if not column.get("name"):
        out.append(problem("required", f"{path}.name"))
    kind, form = column.get("type", ""), column.get("format", "")
    if kind not in _COLUMN_TYPES:
        why = f"must be one of {','.join(_COLUMN_TYPES)}"
        out.append(problem("invalid" if kind else "required", f"{path}.type", why, kind))
    if form and form not in _COLUMN_FORMATS:
        why = f"must be one of {','.join(_COLUMN_FORMATS)}"
        out.append(problem("invalid", f"{path}.format", why, form))
    if not column.get("jsonPath"):
        out.append(problem("required", f"{path}.JSONPath"))
    elif not column["jsonPath"].startswith("."):
        why = "must be a simple json path starting with ."
        out.append(problem("invalid", f"{path}.JSONPath", why, column["jsonPath"]))
    return out
