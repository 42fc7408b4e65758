"""OpenAPI v2: the schemas of v3 in the older format, in one document. Older clients read it.

Rule: k8s.io/apiextensions-apiserver/pkg/controller/openapi/v2/conversion.go (custom resources) and
k8s.io/kube-openapi/pkg/handler (media types). kube-apiserver also serves this document as protobuf.
A client that takes only protobuf gets a document without schemas from this server: kubectl goes on without
them, and reports a kind that does not exist as one. With 406 it would report the media type instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from local.kube.wire import JSON, Obj, Response, reply

PATH = "/openapi/v2"
REF = "#/definitions/"
PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_ASKED = {PROTOBUF, PROTOBUF.replace("v2.v1", "v2@v1")}  # kubectl asks for the latter, no valid media type
_NO_SCHEMAS = b"\n\x032.0"  # the message Document with swagger: "2.0"
_ACCEPTED = (JSON, "application/*", "*/*")
_PRODUCES = [JSON]
# Custom schemas lose these, and every schema its defaults, as in kube-apiserver.
_UNKNOWN = frozenset({"allOf", "anyOf", "default", "not", "nullable", "oneOf"})
_LEAVES: dict[str, Obj] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": "string"},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": "string", "format": "int-or-string"},
}


def response(document: Obj, accept: str) -> Response:
    """The document as JSON, an empty one as protobuf, or 406 if the client accepts neither."""
    media = {clause.partition(";")[0].strip() for clause in accept.split(",")}
    if media & _ASKED and not media.intersection(_ACCEPTED):
        return Response(200, {"Content-Type": PROTOBUF, "Vary": "Accept"}, _NO_SCHEMAS)
    if accept and not media.intersection(_ACCEPTED):
        return Response(406, {"Vary": "Accept"})
    return reply(document)


def converted(documents: Iterable[Obj]) -> Obj:
    """One v2 document of the v3 documents of all groups."""
    definitions: Obj = {}
    paths: Obj = {}
    info: Obj = {}
    for document in documents:
        info = document["info"]
        for name, schema in document["components"]["schemas"].items():
            if name not in definitions or "x-kubernetes-group-version-kind" in schema:
                definitions[name] = _LEAVES.get(name) or _schema(schema)
        for path, operations in document["paths"].items():
            paths[path] = {method: _operation(operation) for method, operation in operations.items()}
    return {"swagger": "2.0", "info": info, "paths": paths, "definitions": definitions}


def _schema(schema: Obj) -> Obj:
    out = {key: value for key, value in schema.items() if key not in _UNKNOWN}
    if reference := _reference(schema):
        out.pop("x-kubernetes-map-type", None)  # the definition itself has it
        return {**out, "$ref": reference}
    preserved = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    if schema.get("nullable"):
        out.pop("type", None)
    if schema.get("nullable") or preserved:
        # kubectl fails on an untyped or open schema that has items or properties.
        out.pop("items", None)
        out.pop("properties", None)
    if (out.get("type") == "array" and "items" not in out) or (out.get("type") == "object" and preserved):
        del out["type"]
    if "required" in out:
        out["required"] = [name for name in out["required"] if not _nullable(schema, name)]
        if not out["required"]:
            del out["required"]
    if "properties" in out:
        out["properties"] = {name: _schema(inner) for name, inner in out["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(out.get(key), dict):
            out[key] = _schema(out[key])
    return out


def _nullable(schema: Obj, name: str) -> bool:
    more = schema.get("additionalProperties")
    inner = (schema.get("properties") or {}).get(name) or {}
    return bool(inner.get("nullable") or (isinstance(more, dict) and more.get("nullable")))


def _reference(schema: Obj) -> str:
    """The definition that a v3 schema refers to. Custom schemas hold no references of their own."""
    first: Any = next(iter(schema.get("allOf") or ()), {})
    name = str(first.get("$ref", "")).rpartition("/")[2]
    return REF + name if name else ""


def _operation(operation: Obj) -> Obj:
    parameters = [
        {**{key: value for key, value in parameter.items() if key != "schema"}, **parameter["schema"]}
        for parameter in operation["parameters"]
    ]
    if body := operation.get("requestBody"):
        parameters.insert(0, {"name": "body", "in": "body", "required": True, "schema": _content(body)})
    return {
        "produces": _PRODUCES,
        "parameters": parameters,
        "responses": {
            code: {"description": given["description"], "schema": _content(given)}
            for code, given in operation["responses"].items()
        },
        "x-kubernetes-action": operation["x-kubernetes-action"],
        "x-kubernetes-group-version-kind": operation["x-kubernetes-group-version-kind"],
    }


def _content(holder: Obj) -> Obj:
    schema: Obj = holder["content"][JSON]["schema"]
    return {"$ref": REF + schema["$ref"].rpartition("/")[2]}
