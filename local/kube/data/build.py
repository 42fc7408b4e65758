"""Joins the Go structs of built-in kinds (structs.go) with Kubernetes' published OpenAPI and discovery.

The result is data, Apache-2.0 like Kubernetes itself (https://github.com/kubernetes/kubernetes):
`resources.json` lists the served resources, `types.json` the shapes of objects.

    cd tests/controlplane && go run ../../local/kube/data/structs.go > structs.json
    python local/kube/data/build.py structs.json $(go list -m -f '{{.Dir}}' k8s.io/kubernetes)
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Kubernetes serves these by default, and no betas.
STABLE = re.compile(r"^v\d+$")
SKIP_RESOURCES = {"componentstatuses"}


def resources(source: Path) -> list[dict[str, Any]]:
    """Every stable resource as aggregated discovery lists it; the core group is in a document of its own."""
    out: list[dict[str, Any]] = []
    listed: list[tuple[str, str, dict[str, Any]]] = []
    for path in sorted((source / "api/discovery").glob("api*__v*.json")):
        document = json.loads(path.read_text())
        group, _, version = document["groupVersion"].rpartition("/")
        if STABLE.match(version):
            listed += [(group, version, item) for item in document["resources"]]
    for group, version, item in listed:
        name, _, sub = item["name"].partition("/")
        if name in SKIP_RESOURCES:
            continue
        entry = {
            "group": group,
            "version": version,
            "plural": name,
            "kind": item["kind"],
            "namespaced": item["namespaced"],
            "verbs": item["verbs"],
        }
        for key in ("singularName", "shortNames", "categories", "storageVersionHash"):
            if item.get(key):
                entry[key] = item[key]
        if "group" in item or "version" in item:
            entry["responseKind"] = {
                "group": item.get("group", ""),
                "version": item["version"],
                "kind": item["kind"],
            }
        if sub:
            parent = next(r for r in out if (r["group"], r["version"], r["plural"]) == (group, version, name))
            parent.setdefault("subresources", {})[sub] = {
                k: v for k, v in entry.items() if k in ("kind", "verbs", "responseKind")
            }
        else:
            out.append(entry)
    return out


def openapi(source: Path) -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for path in sorted((source / "api/openapi-spec/v3").glob("api*__v*_openapi.json")):
        schemas.update(json.loads(path.read_text()).get("components", {}).get("schemas", {}))
    return schemas


def reference(schema: dict[str, Any]) -> str | None:
    """The named type that a field's schema points at, however it is wrapped."""
    for part in (schema, *schema.get("allOf", ())):
        if "$ref" in part:
            return str(part["$ref"]).rsplit("/", 1)[1]
    return None


def field(raw: dict[str, Any], schema: dict[str, Any], pointed: dict[str, Any]) -> list[Any]:
    """[type, protobuf number, flags, {extra}]: o omits empty, z omits zero, r is required."""
    flags = "o" * raw.get("omit", False) + "z" * raw.get("omitzero", False)
    extra: dict[str, Any] = {}
    leaf = raw["type"].split("]")[-1].split("}")[-1].lstrip("*")
    listed, mapped = raw["type"].startswith("[]"), raw["type"].startswith("{}")
    named = (listed and raw["go"][:2] != "[]") or (mapped and raw["go"][:4] != "map[")
    if named or leaf in ("string", "bool", "int32", "int64", "json"):
        extra["go"] = raw["go"]
    for key, short in (("strategy", "strategy"), ("key", "key")):
        if raw.get(key):
            extra[short] = raw[key]
    for key, short in (("list-type", "list"), ("list-map-keys", "keys"), ("map-type", "map")):
        value = schema.get(f"x-kubernetes-{key}") or pointed.get(f"x-kubernetes-{key}")
        if value:
            extra[short] = value
    if schema.get("default") not in (None, {}, "", 0, False):
        extra["default"] = schema["default"]
    if schema.get("enum"):
        extra["enum"] = schema["enum"]
    if schema.get("format"):
        extra["format"] = schema["format"]
    return [raw["type"], raw.get("number", ""), flags, *([extra] if extra else [])]


def types(structs: dict[str, Any], schemas: dict[str, Any], names: set[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    queue = sorted(names)
    while queue:
        name = queue.pop()
        if name in out or name not in structs["structs"]:
            continue
        struct, schema = structs["structs"][name], schemas.get(name, {})
        properties = schema.get("properties", {})
        required = set(schema.get("required", ()))
        out[name] = entry = {"go": struct["go"], "fields": {}}
        if schema.get("x-kubernetes-map-type"):
            entry["map"] = schema["x-kubernetes-map-type"]
        if schema.get("x-kubernetes-group-version-kind"):
            entry["gvk"] = schema["x-kubernetes-group-version-kind"]
        for raw in struct["fields"]:
            known = properties.get(raw["name"], {})
            pointed = schemas.get(reference(known) or "", {})
            entry["fields"][raw["name"]] = described = field(raw, known, pointed)
            if raw["name"] in required:
                described[2] += "r"
            inner = raw["type"].replace("*", "").replace("[]", "").replace("{}", "")
            if "." in inner:
                queue.append(inner)
    return out


def main(structs_file: str, kubernetes: str) -> None:
    structs = json.loads(Path(structs_file).read_text())
    served, schemas = resources(Path(kubernetes)), openapi(Path(kubernetes))
    kinds: dict[str, str] = {}
    for item in served:
        for endpoint in (item, *item.get("subresources", {}).values()):
            gvk = endpoint.get("responseKind") or {
                "group": item["group"],
                "version": item["version"],
                "kind": endpoint["kind"],
            }
            key = f"{gvk['group']}/{gvk['version']}/{gvk['kind']}"
            if key in structs["kinds"]:
                kinds[key] = structs["kinds"][key]
    kinds["meta/v1/DeleteOptions"] = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
    kinds["meta/v1/Status"] = "io.k8s.apimachinery.pkg.apis.meta.v1.Status"
    shaped = types(structs, schemas, set(kinds.values()))
    write("resources.json", served)
    write("types.json", {"kinds": kinds, "structs": shaped})


def write(name: str, value: object) -> None:
    (HERE / name).write_text(json.dumps(value, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
