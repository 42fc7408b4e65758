"""Discovery: the versions, groups and resources that clients read before the data.

Rule: https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api (aggregated and not).
"""

from __future__ import annotations

from local.kube import openapi
from local.kube.errors import method_not_allowed
from local.kube.resources import Registry, Resource
from local.kube.route import page_not_found
from local.kube.tables import accepted
from local.kube.wire import JSON, ApiRequest, Obj, Response, reply

MINOR = "36"
VERSION = {
    "major": "1",
    "minor": MINOR,
    "emulationMajor": "1",
    "emulationMinor": MINOR,
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": f"v1.{MINOR}.3",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "python",
    "platform": "linux/amd64",
}
_V2 = "apidiscovery.k8s.io"
# Depth of discovery under each root; deeper paths are requests for objects.
_DEPTHS = {"": 1, "version": 1, "api": 2, "apis": 3, "openapi": 9}


def answer(registry: Registry, request: ApiRequest) -> Response | None:
    """The answer to a discovery request; None when it is about objects."""
    parts = request.path.strip("/").split("/")
    if parts[0] not in _DEPTHS or len(parts) > _DEPTHS[parts[0]]:
        return None
    if request.method != "GET":
        raise method_not_allowed()
    if parts[0] == "openapi":
        return openapi.answer(registry, request)
    if parts == ["version"]:
        return reply(VERSION)
    if parts == [""]:
        return reply({"paths": _paths(registry)})
    if len(parts) == 1:
        return _roots(registry, request, core=parts[0] == "api")
    groups = registry.groups()
    if parts[0] == "apis" and len(parts) == 2:
        if not parts[1] or parts[1] not in groups:
            raise page_not_found()
        return reply({"kind": "APIGroup", "apiVersion": "v1", **_group(parts[1], list(groups[parts[1]]))})
    name, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
    if version not in groups.get(name, {}):
        raise page_not_found()
    return reply(_resource_list(name, version, groups[name][version]))


def _paths(registry: Registry) -> list[str]:
    groups = registry.groups()
    out = [
        "/api",
        "/api/v1",
        "/apis",
        "/healthz",
        "/livez",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ]
    for group, versions in groups.items():
        if group:
            out += [f"/apis/{group}", *(f"/apis/{group}/{version}" for version in versions)]
    return sorted(out)


def _roots(registry: Registry, request: ApiRequest, *, core: bool) -> Response:
    for media_type in accepted(request.header("Accept")):
        if (
            media_type.group == _V2
            and media_type.form == "APIGroupDiscoveryList"
            and media_type.version in ("v2", "v2beta1")
        ):
            kind = f"{JSON};g={_V2};v={media_type.version};as=APIGroupDiscoveryList"
            return reply(_aggregated(registry, media_type.version, core=core), content_type=kind)
        if not media_type.form:
            break
    if core:
        return reply({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
    groups = [_group(name, list(versions)) for name, versions in registry.groups().items() if name]
    return reply({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})


def _group(name: str, versions: list[str]) -> Obj:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resource_list(group: str, version: str, resources: list[Resource]) -> Obj:
    items: list[Obj] = []
    for resource in sorted(resources, key=lambda resource: resource.plural):
        item: Obj = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(resource.verbs),
        }
        if resource.short:
            item["shortNames"] = list(resource.short)
        if resource.categories:
            item["categories"] = list(resource.categories)
        if resource.storage_hash:
            item["storageVersionHash"] = resource.storage_hash
        items.append(item)
        for name, sub in sorted(resource.subresources.items()):
            entry: Obj = {
                "name": f"{resource.plural}/{name}",
                "singularName": "",
                "namespaced": resource.namespaced,
            }
            if (sub.group, sub.version) != (group, version):
                entry.update(
                    {"group": sub.group, "version": sub.version} if sub.group else {"version": sub.version}
                )
            items.append({**entry, "kind": sub.kind, "verbs": list(sub.verbs)})
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": items}


def _aggregated(registry: Registry, version: str, *, core: bool) -> Obj:
    items: list[Obj] = []
    for group, versions in registry.groups().items():
        if (group == "") is not core:
            continue
        entries = [
            {
                "version": name,
                "resources": [
                    _entry(resource) for resource in sorted(resources, key=lambda resource: resource.plural)
                ],
                "freshness": "Current",
            }
            for name, resources in versions.items()
        ]
        meta: Obj = {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None}
        items.append({"metadata": meta, "versions": entries})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"{_V2}/{version}",
        "metadata": {},
        "items": items,
    }


def _entry(resource: Resource) -> Obj:
    out: Obj = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short:
        out["shortNames"] = list(resource.short)
    if resource.categories:
        out["categories"] = list(resource.categories)
    if resource.subresources:
        out["subresources"] = [
            {
                "subresource": name,
                "responseKind": {"group": sub.group, "version": sub.version, "kind": sub.kind},
                "verbs": list(sub.verbs),
            }
            for name, sub in sorted(resource.subresources.items())
        ]
    return out
