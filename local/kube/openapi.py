"""OpenAPI v3: the source of `kubectl explain`, and kubectl's sign that the server validates fields itself.

Rule: https://kubernetes.io/docs/concepts/overview/kubernetes-api/#openapi-interface-definition
Built-in kinds come from data/types.json, without descriptions; custom ones from their definitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from local.kube import openapi_v2
from local.kube.data import load
from local.kube.resources import Registry, Resource
from local.kube.route import page_not_found
from local.kube.shape import OBJECT_META
from local.kube.wire import ApiRequest, Obj, Response, reply

_ROOT = "/openapi/v3"
_REF = "#/components/schemas/"
_APIMACHINERY = "io.k8s.apimachinery.pkg"
_LEAVES: dict[str, tuple[str, Obj]] = {
    "time": (f"{_APIMACHINERY}.apis.meta.v1.Time", {"type": "string", "format": "date-time"}),
    "microtime": (f"{_APIMACHINERY}.apis.meta.v1.MicroTime", {"type": "string", "format": "date-time"}),
    "duration": (f"{_APIMACHINERY}.apis.meta.v1.Duration", {"type": "string"}),
    "quantity": (
        f"{_APIMACHINERY}.api.resource.Quantity",
        {"oneOf": [{"type": "string"}, {"type": "number"}]},
    ),
    "intorstring": (
        f"{_APIMACHINERY}.util.intstr.IntOrString",
        {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    ),
    "raw": (f"{_APIMACHINERY}.runtime.RawExtension", {"type": "object"}),
    "json": ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON", {}),
}
_SCALARS: dict[str, Obj] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "float64": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
}
_EXTENSIONS = {
    "strategy": "x-kubernetes-patch-strategy",
    "key": "x-kubernetes-patch-merge-key",
    "list": "x-kubernetes-list-type",
    "keys": "x-kubernetes-list-map-keys",
    "map": "x-kubernetes-map-type",
}
_WRITE_OPTIONS = ("dryRun", "fieldManager", "fieldValidation")


def answer(registry: Registry, request: ApiRequest) -> Response:
    path = request.path
    if path == openapi_v2.PATH:
        return openapi_v2.response(_all_as_v2(registry), request.header("Accept"))
    if path.rstrip("/") == _ROOT:
        return reply({"paths": {gv: _entry(registry, gv) for gv in sorted(_group_versions(registry))}})
    gv = path.removeprefix(_ROOT).strip("/")
    resources = _group_versions(registry).get(gv)
    if resources is None:
        raise page_not_found()
    return reply(_cached(registry, gv, lambda: document(gv, resources)))


def _cached(registry: Registry, name: str, make: Callable[[], Obj]) -> Obj:
    """A document of the kinds that are served now; a change of the registry drops it."""
    cached = registry.documents.get(name)
    if cached is None:
        cached = registry.documents[name] = make()
    return cached


def _all_as_v2(registry: Registry) -> Obj:
    def make() -> Obj:
        groups = _group_versions(registry).items()
        return openapi_v2.converted(document(gv, resources) for gv, resources in groups)

    return _cached(registry, openapi_v2.PATH, make)


def _group_versions(registry: Registry) -> dict[str, list[Resource]]:
    out: dict[str, list[Resource]] = {}
    for resource in registry.all():
        prefix = f"apis/{resource.group}" if resource.group else "api"
        out.setdefault(f"{prefix}/{resource.version}", []).append(resource)
    return out


def _entry(registry: Registry, gv: str) -> Obj:
    return {"serverRelativeURL": f"{_ROOT}/{gv}?hash={registry.nonce}{registry.generation}"}


def document(gv: str, resources: list[Resource]) -> Obj:
    schemas: Obj = {}
    paths: Obj = {}
    for resource in resources:
        name = _schema(resource, schemas)
        if name:
            paths.update(_paths(gv, resource, name))
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "1.36"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _schema(resource: Resource, schemas: Obj) -> str:
    """Adds a kind's schema, with all that it refers to; its name."""
    group, version, kind = resource.gvk
    gvk = [{"group": group, "version": version, "kind": kind}]
    if resource.custom is None:
        name = str(load("types.json")["kinds"].get(f"{group}/{version}/{kind}", ""))
        if name:
            _collect(name, schemas)
            schemas[name]["x-kubernetes-group-version-kind"] = gvk
        return name
    name = ".".join([*reversed(group.split(".")), version, kind])
    _collect(OBJECT_META, schemas)
    properties = {
        **(resource.custom.schema.get("properties") or {}),
        "apiVersion": {"type": "string", "description": "The version of the schema that the object is in."},
        "kind": {"type": "string", "description": "The kind of the object."},
        "metadata": {"allOf": [{"$ref": _REF + OBJECT_META}], "description": "Names and labels."},
    }
    schema = {"type": "object", **resource.custom.schema, "properties": properties}
    schemas[name] = {**schema, "x-kubernetes-group-version-kind": gvk}
    return name


def _collect(name: str, schemas: Obj) -> None:
    if name in schemas:
        return
    raw = load("types.json")["structs"][name]
    schema: Obj = {"type": "object"}
    schemas[name] = schema
    properties: Obj = {}
    required: list[str] = []
    for field, (expression, _, flags, *more) in raw["fields"].items():
        extra: Obj = more[0] if more else {}
        properties[field] = _typed(expression, schemas)
        properties[field].update({_EXTENSIONS[key]: extra[key] for key in _EXTENSIONS if key in extra})
        if "default" in extra:
            properties[field]["default"] = extra["default"]
        if "enum" in extra:
            properties[field]["enum"] = extra["enum"]
        if "r" in flags:
            required.append(field)
    schema["properties"] = properties
    if required:
        schema["required"] = required
    if raw.get("map"):
        schema["x-kubernetes-map-type"] = raw["map"]


def _typed(expression: str, schemas: Obj) -> Obj:
    expression = expression.removeprefix("*")
    if expression.startswith("[]"):
        return {"type": "array", "items": _typed(expression[2:], schemas)}
    if expression.startswith("{}"):
        return {"type": "object", "additionalProperties": _typed(expression[2:], schemas)}
    if expression in _SCALARS:
        return dict(_SCALARS[expression])
    if expression in _LEAVES:
        name, schema = _LEAVES[expression]
        schemas.setdefault(name, schema)
    else:
        name = expression
        _collect(name, schemas)
    return {"allOf": [{"$ref": _REF + name}]}


def _paths(gv: str, resource: Resource, schema: str) -> Obj:
    base = f"/{gv}/namespaces/{{namespace}}" if resource.namespaced else f"/{gv}"
    collection = f"{base}/{resource.plural}"
    content = {"application/json": {"schema": {"$ref": _REF + schema}}}
    group, version, kind = resource.gvk
    gvk = {"group": group, "version": version, "kind": kind}

    def operation(action: str, *options: str, body: bool = False) -> Obj:
        out: Obj = {
            "parameters": [_option(name) for name in options],
            "responses": {"200": {"description": "OK", "content": content}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk,
        }
        return {**out, "requestBody": {"content": content}} if body else out

    known: dict[str, tuple[str, str, Any]] = {
        "list": (collection, "get", operation("list")),
        "create": (collection, "post", operation("post", *_WRITE_OPTIONS, body=True)),
        "get": (f"{collection}/{{name}}", "get", operation("get")),
        "update": (f"{collection}/{{name}}", "put", operation("put", *_WRITE_OPTIONS, body=True)),
        "patch": (f"{collection}/{{name}}", "patch", operation("patch", *_WRITE_OPTIONS, "force")),
        "delete": (f"{collection}/{{name}}", "delete", operation("delete", "dryRun")),
    }
    out: Obj = {}
    for verb in resource.verbs:
        if verb in known:
            path, method, described = known[verb]
            out.setdefault(path, {})[method] = described
    return out


def _option(name: str) -> Obj:
    kind = "boolean" if name == "force" else "string"
    return {"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": True}}
